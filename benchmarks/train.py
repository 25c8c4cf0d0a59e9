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
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from films import FAMILY, TEMPLATE_SEEDS, phantom_films
from kneematch.errors import TemplateError
from kneematch.geometry.split import ROOM
from kneematch.io.read import read
from kneematch.io.write import write_dicom
from kneematch.matching.annotation import Annotation
from kneematch.matching.template import cut_template
from kneematch.networks.model_file import Model, save_model
from kneematch.synthetic.annotation import annotate
from kneematch.synthetic.phantom import phantom
from kneematch.training.config import RECIPES, chosen
from kneematch.training.distributed import Group
from kneematch.training.initial_weights import start_networks
from kneematch.training.phase import Learner
from kneematch.training.phase_data import InMemory
from kneematch.training.session import Settings, draw, find_targets
from kneematch.training.two_phases import Task, train

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
    recipe = chosen(args.recipe, args.rounds, args.epochs)
    room = 0.0 if recipe.printed else ROOM
    model, seconds = trained(Settings(recipe, args.start, args.seed, args.device), room, args)
    print(f"{recipe.name} recipe, {args.films} films, {args.device}: {seconds:.1f} s")
    if args.out:
        save_model(args.out, model)


def trained(settings: Settings, room: float, args: argparse.Namespace) -> tuple[Model, float]:
    """Run Algorithm 2 as `kneematch train` does; return the model and the seconds."""
    seeds = range(TRAINED_FROM, TRAINED_FROM + args.films)
    with ProcessPoolExecutor(args.workers) as pool:
        made = list(pool.map(partial(halves, args.kind, room), seeds))
    drawn, half = draw(annotate_a_phantom(args.kind), settings.device)
    coarse, fine = start_networks(settings.start, seed=settings.seed)
    networks = coarse.to(settings.device), fine.to(settings.device)
    films, group, targets = InMemory(torch.stack(made).to(settings.device)), Group(), None
    started = time.perf_counter()
    if not settings.recipe.energy:
        drawn, targets = find_targets(films, drawn, half, settings, group)
    task = Task(films, drawn, settings.recipe, targets, settings.seed)

    def report(phase: str, learner: Learner) -> None:
        if learner.epoch in (1, settings.recipe.epochs):
            told = f"{phase} {learner.round + 1}.{learner.epoch} loss {learner.loss:.4f}"
            print(f"{told} {time.perf_counter() - started:.1f} s", flush=True)

    train(task, networks, group, report)
    if settings.device.startswith("cuda"):
        torch.cuda.synchronize()
    about = {"recipe": asdict(settings.recipe), "start": settings.start, "films": "phantoms"}
    weights = (network.state_dict() for network in networks)
    return Model(*weights, drawn.coarse, drawn.fine, about), time.perf_counter() - started


def halves(kind: str, room: float, seed: int) -> Tensor:
    """Return the halves (2, 800, 500) of a phantom."""
    torch.set_num_threads(1)
    (film,) = phantom_films([seed], kind=kind, room=room)
    return film.halves.pixels


def annotate_a_phantom(kind: str) -> Annotation:
    """Annotate an ordinary phantom, written to a temporary folder."""
    folder = Path(tempfile.mkdtemp())
    for seed in TEMPLATE_SEEDS:
        made = phantom(seed, family=FAMILY, kind=kind)
        if made.negative or made.hardware or max(knee.grade for knee in made.knees) > 1:
            continue
        path = folder / f"{seed}.dcm"
        write_dicom(path, made.radiograph.pixels, mm_per_px=0.3, laterality="B", bits=16)
        knee = made.knees[1]
        annotation = annotate(path, knee.side, knee.plateau_left, knee.plateau_right)
        try:
            for box in ("fine", "coarse"):
                cut_template(read(path), annotation, box)
        except TemplateError:  # a box leaves the half
            continue
        return annotation
    raise RuntimeError("no phantom of this family can serve as a template")


if __name__ == "__main__":
    main()
