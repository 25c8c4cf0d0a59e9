"""Measure how long Algorithm 2 takes on phantoms; the model is evaluated by benchmarks/evaluate.py.

    python benchmarks/train.py --device cuda -o paper.safetensors     # the paper's recipe
    python benchmarks/train.py --device cuda --recipe default -o default.safetensors

Prints the loss and the time at the first and last epoch of every round, then the seconds from
prepared films to weights; rendering the phantoms is not counted. Their seeds are disjoint from
those of the phantoms that models are evaluated on.
"""

import argparse
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from films import FAMILY, ordinary_phantoms, phantom_films
from kneematch.errors import TemplateError
from kneematch.films.annotation import Annotation, annotate
from kneematch.films.read import read
from kneematch.films.write import write_dicom
from kneematch.knee.knee_images import SIDE_MARGIN
from kneematch.models.model_file import Model, save_model
from kneematch.paper.template import cut_template
from kneematch.training.config import RECIPES, TrainConfig
from kneematch.training.dataset import FilmsInMemory
from kneematch.training.distributed import Group
from kneematch.training.initial_weights import initial_networks
from kneematch.training.pseudo_labels import make_pseudo_labels
from kneematch.training.trainer import cut_templates
from kneematch.training.two_phases import Task, activation_ranges, train_two_phases

TRAINED_FROM = 500_000


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, help="model file")
    parser.add_argument("--films", type=int, default=500)
    parser.add_argument("--kind", default="knee", help="kind of phantoms")
    parser.add_argument("--recipe", choices=list(RECIPES), default="paper")
    parser.add_argument("--start", default="synthetic")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=2, help="processes that render phantoms")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    config = TrainConfig(
        args.recipe, args.start, args.rounds, args.epochs, seed=args.seed, device=args.device
    )
    model, seconds = trained(config, args)
    print(f"{config.recipe} recipe, {args.films} films, {args.device}: {seconds:.1f} s")
    if args.out:
        save_model(args.out, model)


def trained(config: TrainConfig, args: argparse.Namespace) -> tuple[Model, float]:
    """Run Algorithm 2 as `kneematch train` does; return the model and the seconds."""
    recipe = config.hyperparameters()
    seeds = range(TRAINED_FROM, TRAINED_FROM + args.films)
    side_margin = 0.0 if recipe.paper_energy else SIDE_MARGIN
    with ProcessPoolExecutor(args.workers) as pool:
        made = list(pool.map(partial(halves, args.kind, side_margin), seeds))
    templates, half = cut_templates(annotate_a_phantom(args.kind), config.device)
    start = initial_networks(config.start, seed=config.seed)
    networks = start.networks[0].to(config.device), start.networks[1].to(config.device)
    films, group = FilmsInMemory(torch.stack(made).to(config.device)), Group()
    labels, started = None, time.perf_counter()
    if not recipe.minimise_energy:
        labels = make_pseudo_labels(films, templates, half, start.model, group)
    task = Task(films, templates, recipe, labels, config.seed, start.random)
    for phase, state in train_two_phases(task, networks, group):
        if state.epoch in (1, recipe.epochs):
            text = f"{phase} {state.round + 1}.{state.epoch} loss {state.loss:.4f}"
            print(f"{text} {time.perf_counter() - started:.1f} s", flush=True)
    if config.device.startswith("cuda"):
        torch.cuda.synchronize()
    about = {"recipe": asdict(recipe), "start": config.start, "films": "phantoms"}
    coarse, fine = (network.state_dict() for network in networks)
    seconds = time.perf_counter() - started
    ranges = activation_ranges(task, networks)
    return Model(coarse, fine, templates.coarse, templates.fine, about, ranges), seconds


def halves(kind: str, side_margin: float, seed: int) -> Tensor:
    """Return the halves (2, 800, 500) of a phantom."""
    torch.set_num_threads(1)
    (film,) = phantom_films([seed], framing=kind, side_margin=side_margin)
    return film.halves.pixels


def annotate_a_phantom(kind: str) -> Annotation:
    """Annotate an ordinary phantom, written to a temporary folder."""
    folder = Path(tempfile.mkdtemp())
    for name, made in ordinary_phantoms(FAMILY, kind):
        path = folder / f"{name}.dcm"
        write_dicom(path, made.radiograph.pixels, mm_per_px=0.3, laterality="B", bits=16)
        knee = made.knees[1]
        annotation = annotate(path, knee.side, knee.plateau_left, knee.plateau_right)
        with suppress(TemplateError):  # a box leaves the half
            for box in ("fine", "coarse"):
                cut_template(read(path), annotation, box)
            return annotation
    raise RuntimeError("no phantom of this family can serve as a template")


if __name__ == "__main__":
    main()
