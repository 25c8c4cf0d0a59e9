"""Train by the paper's Algorithm 2 and compare its methods, as in the paper's Tables 1 and 2.

    python lab/paper.py -o OUT [--films 500] [--test-films 400] [--device cuda]
    python lab/paper.py -o OUT --train OAI --template template.json --test @test.txt --beside oai
    python lab/paper.py -o OUT --model OAI-OUT/model.safetensors --test MOST --beside most

Without --train, the films are phantoms, framed as knee films. --train and --test are whatever
`kneematch train` and `evaluate` take: folders, files, @LIST; docs/reproduce.md says how the films
of the studies are laid out.

Prints the mean of left + right loss by method, beside the figures that the paper printed for a
study (--beside), then the tables of `kneematch evaluate`; with --truth, IoU and recall as well. The
training starts from ImageNet's weights, which are downloaded, with `--start imagenet`; the start is
printed with the table, since by default it is not the paper's.
"""

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

import torch

from films import read_rows, table
from kneematch.devices import resolve_device
from kneematch.films.annotation import load_annotation
from kneematch.films.discovery import find_films
from kneematch.models.model_file import Model, builtin_model, load_model, save_model
from kneematch.models.weights import network_from_weights
from kneematch.paper.algorithm1 import Hyperparameters, PhaseData, energy_loss
from kneematch.paper.algorithm2 import Networks, fine_phase, train_two_phases
from kneematch.paper.network import PoseNetwork
from kneematch.parallel import choose_workers
from kneematch.training.dataset import prepare_films
from kneematch.training.recipes import activation_ranges
from kneematch.training.trainer import cut_templates

METHODS = {
    "sliding": "template matching",
    "neural": "neural method",
    "neural+sharpen": "neural method + sharpening step",
}
PRINTED = {  # left + right loss in the paper's Tables 1 and 2
    "oai": {"sliding": 0.221, "neural": 0.159, "neural+sharpen": 0.141},
    "most": {"sliding": 0.249, "neural": 0.224, "neural+sharpen": 0.157},
}
TRAIN_SEED, TEST_SEED = 500_000, 700_000  # disjoint from those of other trainings and benchmarks
IMAGENET_URL = "https://download.pytorch.org/models/resnet18-f37072fd.pth"
CLASSIFIER = "fc."  # torchvision's last layer, which the networks do not have
STARTS = {
    "synthetic": "Training started from `synthetic`, the built-in networks, which have learnt to "
    "find knees in phantoms; the paper starts from ImageNet's weights.",
    "imagenet": "Training started from ImageNet's weights, as in the paper.",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--films", type=int, default=500, help="number of phantoms to train on")
    parser.add_argument("--test-films", type=int, default=400, help="phantoms to test on")
    parser.add_argument("--train", nargs="+", help="films to train on")
    parser.add_argument("--template", type=Path, help="annotation to train on")
    parser.add_argument("--test", nargs="+", help="films to test on")
    parser.add_argument("--truth", type=Path, help="labels of the films to test on")
    parser.add_argument("--model", type=Path, help="model to test instead of training one")
    parser.add_argument("--start", choices=list(STARTS), default="synthetic")
    parser.add_argument("--rounds", type=int, default=3, help="the paper's T")
    parser.add_argument("--epochs", type=int, default=15, help="the paper's M")
    parser.add_argument("--grid", type=int, default=0, help="films of the grid search")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--beside", choices=list(PRINTED), help="a study's printed figures")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    model = args.model or train(args)
    evaluation = evaluate(args, model)
    print_losses(evaluation, args)
    print((evaluation / "evaluation.md").read_text("utf-8"))


def train(args: argparse.Namespace) -> Path:
    """Train on films, or on phantoms, unless it is done; return the model."""
    model = args.out / "model.safetensors"
    films, template = args.train, args.template
    if films is None:
        folder = phantoms(args.out / "train", args.films, TRAIN_SEED)
        films, template = [str(folder)], folder / "template.json"
    if not model.exists():
        train_model(films, template, model, args)
    return model


def train_model(films: list[str], template: Path, out: Path, args: argparse.Namespace) -> None:
    """Run Algorithm 2 on films that show both knees, and write the model."""
    device, paths = resolve_device(args.device), find_films(films)
    workers = choose_workers(None, len(paths))
    found, failures = prepare_films(
        paths, out.parent, side_margin=0.0, device=device, workers=workers
    )
    for _, reason in failures:
        print(reason, file=sys.stderr)
    templates, _ = cut_templates(load_annotation(template), device)
    coarse, fine = (network.to(device) for network in initial_networks(args.start))
    numbers = Hyperparameters(args.rounds, args.epochs)
    data = PhaseData(found.halves, len(found), templates.coarse)
    phases = lambda: data, lambda: fine_phase(data, coarse, templates.fine)
    for phase, state in train_two_phases((coarse, fine), phases, 2 * (energy_loss(),), numbers):
        if state.epoch:
            loss = f"loss {state.loss:.4f}"
            print(f"{phase} {state.round + 1}.{state.epoch} {loss}", file=sys.stderr, flush=True)
    settings = {"recipe": "paper", "start": args.start, "count": len(found)}
    ranges = activation_ranges(found, templates, (coarse, fine))
    weights = coarse.state_dict(), fine.state_dict()
    save_model(out, Model(*weights, templates.coarse, templates.fine, settings, ranges))


def initial_networks(start: str) -> Networks:
    """Return the built-in coarse and fine network, or two with ImageNet's weights."""
    if start == "synthetic":
        built_in = load_model(builtin_model())
        return network_from_weights(built_in.coarse), network_from_weights(built_in.fine)
    weights = torch.hub.load_state_dict_from_url(
        IMAGENET_URL, map_location="cpu", check_hash=True, weights_only=True
    )
    kept = {name: each for name, each in weights.items() if not name.startswith(CLASSIFIER)}
    torch.manual_seed(0)
    networks = PoseNetwork().eval(), PoseNetwork().eval()
    for network in networks:
        network.backbone.load_state_dict(kept)
    return networks


def evaluate(args: argparse.Namespace, model: Path) -> Path:
    """Run the paper's methods; return the folder of the results."""
    films, truth = args.test, args.truth
    if films is None:
        folder = phantoms(args.out / "test", args.test_films, TEST_SEED)
        films, truth = [str(path) for path in folder.glob("*.dcm")], folder / "truth.csv"
    out = args.out / "evaluation"
    command = ["evaluate", *films, "-o", str(out), "--model", str(model)]
    command += ["--methods", ",".join(METHODS), "--grid", str(args.grid)]
    command += ["--device", args.device, *(["--truth", str(truth)] if truth else [])]
    kneematch(*command)
    return out


def phantoms(folder: Path, count: int, seed: int) -> Path:
    """Write phantoms, unless they are there."""
    if not (folder / "truth.csv").exists():
        options = ("-n", str(count), "--seed", str(seed), "--framing", "knee", "--force")
        kneematch("synth", "-o", str(folder), *options)
    return folder


def kneematch(*arguments: str) -> None:
    """Run a command; films that could not be used are no reason to stop."""
    print(f"$ kneematch {shlex.join(arguments)[:200]}", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "kneematch", *arguments]
    done = subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
    if done.returncode not in (0, 1):
        raise SystemExit(done.returncode)


def print_losses(evaluation: Path, args: argparse.Namespace) -> None:
    """Print the losses beside the printed ones, and where the training started."""
    printed = PRINTED.get(args.beside, {})
    cells = []
    for row in read_rows(evaluation / "losses.csv"):
        here, there = float(row["left + right loss"]), printed.get(row["method"])
        compared = [f"{there:.3f}", f"{here - there:+.3f}"] if there else ["-", "-"]
        error = f"{float(row['standard error'] or 'nan'):.4f}"
        name = METHODS.get(row["method"], row["method"])
        cells.append([name, row["films"], f"{here:.3f}", error, *compared])
    table(
        ("method", "films", "left + right loss", "standard error", "printed", "difference"), cells
    )
    print("The model was given." if args.model else STARTS[args.start])
    print("Neither the template nor the films are the paper's.\n")


if __name__ == "__main__":
    main()
