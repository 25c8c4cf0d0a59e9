"""How long Algorithm 2 takes on phantoms; the model that comes of it is for `kneematch evaluate`.

    python benchmarks/algorithms.py --device cuda -o paper.safetensors  # the paper's, on 500 films
    python benchmarks/algorithms.py --device cuda --recipe default -o default.safetensors

The phantoms' seeds are apart from those of any test. Making them is not counted.
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
    parser.add_argument("-o", "--out", type=Path, help="the model")
    parser.add_argument("--films", type=int, default=500)
    parser.add_argument("--kind", default="knee", help="of phantoms")
    parser.add_argument("--recipe", choices=list(RECIPES), default="paper")
    parser.add_argument("--start", default="synthetic")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=2, help="processes that make phantoms")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    recipe = chosen(asked.recipe, asked.rounds, asked.epochs)
    room = 0.0 if recipe.printed else ROOM
    model, seconds = trained(Settings(recipe, asked.start, asked.seed, asked.device), room, asked)
    print(f"{recipe.name} recipe, {asked.films} films, {asked.device}: {seconds:.1f} s")
    if asked.out:
        save_model(asked.out, model)


def trained(settings: Settings, room: float, asked: argparse.Namespace) -> tuple[Model, float]:
    """Algorithm 2 as `kneematch train` has it, and the seconds from films to weights."""
    seeds = range(TRAINED_FROM, TRAINED_FROM + asked.films)
    with ProcessPoolExecutor(asked.workers) as pool:
        made = list(pool.map(partial(halves, asked.kind, room), seeds))
    drawn, half = draw(drawn_on_a_phantom(asked.kind), settings.device)
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
    """(2, 800, 500)."""
    torch.set_num_threads(1)
    (film,) = phantom_films([seed], kind=kind, room=room)
    return film.halves.pixels


def drawn_on_a_phantom(kind: str) -> Annotation:
    """The boxes on an ordinary film, written to a temporary folder."""
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
