"""Algorithm 2 from start to end: how long it takes, and how well its networks then do.

    python benchmarks/algorithms.py --films 500 --device cuda  # the paper's, on phantoms
    python benchmarks/algorithms.py --films 0 --real FOLDER --recipe default --threads 2

Phantoms: trained on some, tested on others (--test). Real films: trained on all of the folder's
films without a look at the labels, tested on those that are labelled.
"""

import argparse
import time
from pathlib import Path

import torch

from films import (
    FAMILY,
    SCORE_COLUMNS,
    TEMPLATE_SEEDS,
    Film,
    find,
    halves_of,
    options,
    phantom_films,
    real_films,
    score,
    table,
)
from kneematch.errors import TemplateError
from kneematch.matching.annotation import Annotation, load_annotation
from kneematch.matching.template import cut_template
from kneematch.matching.truth import annotate
from kneematch.minimisers.adam import adam
from kneematch.minimisers.nearby import nearby
from kneematch.minimisers.neural import TwoPhases, neural, sharpened
from kneematch.minimisers.sliding import sliding
from kneematch.radiograph.phantom import phantom
from kneematch.radiograph.read import read
from kneematch.radiograph.split import ROOM, split
from kneematch.radiograph.write import write_dicom
from kneematch.training.group import Group
from kneematch.training.lesson import InMemory
from kneematch.training.phase import Learner
from kneematch.training.recipe import RECIPES, Recipe, chosen
from kneematch.training.session import Settings, draw, find_targets
from kneematch.training.start import start_networks
from kneematch.training.two_phases import Task, train

TRAINED_FROM = 500_000  # seeds apart from those of the tests


def main() -> None:
    parser = options(__doc__, films=500)
    parser.add_argument("--test", type=int, default=200, help="phantoms")
    parser.add_argument("--recipe", choices=list(RECIPES), default="paper")
    parser.add_argument("--start", default="synthetic")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--sliding", type=int, default=0, help="films for the baseline, too")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    recipe = chosen(asked.recipe, asked.rounds, asked.epochs)
    if asked.real:
        paths = sorted((asked.real / "films").iterdir())
        halves = torch.stack([split(read(path), room=ROOM).pixels for path in paths])
        films, annotation = real_films(asked.real), load_annotation(asked.real / "template.json")
    else:
        seeds = range(TRAINED_FROM, TRAINED_FROM + asked.films)
        halves = halves_of(phantom_films(seeds), "cpu")
        films, annotation = phantom_films(range(asked.test)), drawn_on_a_phantom()
    measure(InMemory(halves.to(asked.device)), films, annotation, recipe, asked)


def drawn_on_a_phantom() -> Annotation:
    """The boxes on an ordinary film, written to a temporary folder."""
    import tempfile

    folder = Path(tempfile.mkdtemp())
    for seed in TEMPLATE_SEEDS:
        made = phantom(seed, family=FAMILY)
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


def measure(
    trained_on: InMemory,
    films: list[Film],
    annotation: Annotation,
    recipe: Recipe,
    asked: argparse.Namespace,
) -> None:
    settings = Settings(recipe, asked.start, asked.seed, asked.device)
    drawn, half = draw(annotation, asked.device)
    networks = tuple(network.to(asked.device) for network in start_networks(asked.start))
    started, group, targets = time.perf_counter(), Group(), None
    if not recipe.energy:
        drawn, targets = find_targets(trained_on, drawn, half, settings, group)
    task = Task(trained_on, drawn, recipe, targets, asked.seed)

    def report(phase: str, learner: Learner) -> None:
        if learner.epoch in (1, recipe.epochs):
            seconds = time.perf_counter() - started
            told = f"{phase} {learner.round + 1}.{learner.epoch}"
            print(f"{told} loss {learner.loss:.4f} {seconds:.1f} s", flush=True)

    train(task, networks, group, report)
    if torch.device(asked.device).type == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    print(f"\n{recipe.name} recipe, {len(trained_on)} films, {asked.device}: {seconds:.1f} s\n")
    two = TwoPhases(*networks, drawn.coarse.aspect, drawn.fine.aspect)
    sharpen = adam if recipe.printed else nearby
    methods = {"neural": neural(two), "neural+sharpen": sharpened(two, sharpen)}
    rows = []
    for name, method in (methods | ({"sliding": sliding} if asked.sliding else {})).items():
        some = films[: asked.sliding] if name == "sliding" else films
        found = find(method, some, drawn.fine, asked, paper=recipe.printed)
        scores = score(some, drawn.fine, found.theta)
        for tag in (None, *sorted({tag for film in some for tag in film.tags})):
            tagged = torch.tensor([tag is None or tag in film.tags for film in some])
            loss = f"{found.loss[tagged].sum(-1).mean():.4f}"
            rows.append([f"{name}, {tag or 'all'}", *scores.row(some, tag), loss])
    table(("method", *SCORE_COLUMNS, "left + right loss"), rows)


if __name__ == "__main__":
    main()
