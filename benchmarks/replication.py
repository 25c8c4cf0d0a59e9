"""Train by the paper's Algorithm 2 from weights that know no knees, and with small changes to it.

    python benchmarks/replication.py --start WEIGHTS -o OUT [--films 500] [--real FOLDER]
        [--device cuda] [--jobs 6] [--seconds 330]

Trains on phantoms and, with --real, on all films of a folder (films.py describes it), without
their labels. On phantoms only the paper's training and the best of the changed ones, by the energy
that it reaches on the training films, run their fine phase; on real films all do. Prints a table of
the test films' loss and IoU, and writes to OUT: results.json with all figures and the course of
every training, curves-*.png and areas-*.png. Trainings run as parallel processes on one GPU; those
that are not done after --seconds are stopped and marked.

Phantoms are tested on others of the same kind. Real films are tested on the labelled ones, which
are among those trained on. The paper's energy is used throughout, with no margin beside the film.
"""

import argparse
import json
import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from films import Film, evaluate_poses, halves_of, known, phantom_films, real_films, score, table
from kneematch.films.annotation import Annotation, load_annotation, save_annotation
from kneematch.films.read import read
from kneematch.knee.knee_images import film_tensor
from kneematch.models.model_file import PHASES
from kneematch.models.two_stage import TwoStageNetworks
from kneematch.paper.energy import energy, paper_terms
from kneematch.paper.network import crop_views, full_frames
from kneematch.paper.pose import (
    compose_pose,
    pose_from_vector,
    pose_matrix,
    relative_pose,
    vector_from_pose,
)
from kneematch.paper.problem import Problem, make_problem, pyramid
from kneematch.paper.sharpening import adam
from kneematch.paper.sliding_window import sliding_window
from kneematch.paper.split import HALF_ASPECT, split
from kneematch.paper.template import Template
from kneematch.sampling import View, sample
from kneematch.search.exhaustive_search import exhaustive_search
from kneematch.training import distributed
from kneematch.training.config import PAPER
from kneematch.training.dataset import FilmsInMemory
from kneematch.training.initial_weights import RANDOM, Networks, initial_networks
from kneematch.training.phase import PhaseState, predict_poses, train_phase
from kneematch.training.trainer import cut_templates
from kneematch.training.two_phases import Task, TemplatePair, coarse_phase, fine_phase
from partial_weights import learn_at_the_heads_rate, partial_networks, unfold_batchnorm
from train import TRAINED_FROM, annotate_a_phantom

TESTED_FROM = 700_000  # seed of the first phantom to test on
EVERY = 3  # epochs between two tests
WHITE = 65535
SHOWN = 6  # test films in a picture
BYTES_PER_FILM = distributed.BYTES_PER_FILM
MOVED = {"shift": 0.1, "zoom": 0.25}
SMALL = {"shrink": 16}
FASTER = {"backbone_rate": 1e-4, "head_rate": 1e-3}

# Changes of the paper's recipe, by name.
CHANGES: dict[str, dict[str, Any]] = {
    "paper": {},
    "larger shift and zoom": MOVED,
    "small images first": SMALL,
    "both": {**MOVED, **SMALL},
    "ten times the rates": FASTER,
    "rates, shift and zoom": {**FASTER, **MOVED},
    "rates, small images": {**FASTER, **SMALL},
    "all three": {**FASTER, **MOVED, **SMALL},
}
ON_PHANTOMS = (
    *("paper", "larger shift and zoom", "both", "ten times the rates"),
    *("rates, shift and zoom", "all three"),
)


@dataclass(frozen=True, slots=True, eq=False)
class FilmSet:
    """Films to train and to test on, and the template, drawn on one of the former."""

    train: NDArray[np.uint16]  # (N, 2, 800, 500)
    test: list[Film]
    annotation: Annotation


@dataclass(frozen=True, slots=True)
class Job:
    """One training."""

    films: str  # "phantoms" or "real"
    name: str
    changes: dict[str, Any]
    start: str
    phases: tuple[str, ...] = PHASES
    coarse: str = ""  # file of the weights of a coarse phase that was run before


@dataclass(frozen=True, slots=True)
class Setting:
    """What all trainings share."""

    work: Path
    device: str
    jobs: int
    deadline: float


@dataclass(slots=True)
class Result:
    """What a training, or a method without one, reached."""

    films: str
    name: str
    changes: dict[str, Any] = field(default_factory=dict)
    start: str = ""
    epochs: list[tuple[str, int, int, float, float]] = field(default_factory=list)
    tests: list[dict[str, float]] = field(default_factory=list)  # in the course of the training
    train_energy: dict[str, float] = field(default_factory=dict)  # by phase
    scores: dict[str, dict[str, float]] = field(default_factory=dict)  # by method
    theta: list[Any] = field(default_factory=list)  # (N, 2, 4), the last poses of the test films
    stopped: bool = False


def main() -> None:
    args = parse_arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    on_phantoms = phantom_jobs(args.start, args.full)
    only = args.only or [job.name for job in (*on_phantoms, *real_jobs(args.start))]
    started, results = time.time(), list[Result]()
    spawn = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(args.workers, spawn) as cpu,
        ProcessPoolExecutor(args.jobs, spawn) as trainings,
    ):
        setting = Setting(Path(folder), args.device, args.jobs, started + args.seconds)
        futures = []
        if args.real:
            store(setting, "real", films_of_folder(args.real, args.limit))
            jobs = [job for job in real_jobs(args.start) if job.name in only]
            futures += [trainings.submit(trained, setting, job) for job in jobs]
        if args.films:
            store(setting, "phantoms", phantoms(args.films, args.test, cpu))
            jobs = [job for job in on_phantoms if job.name in only]
            futures += [trainings.submit(trained, setting, job) for job in jobs]
        for name in ("real",) * bool(args.real) + ("phantoms",) * bool(args.films):
            results += references(setting, name, cpu)
        for future in as_completed(futures):
            if error := future.exception():
                traceback.print_exception(error)
                continue
            results.append(future.result())
            save(results, args.out, started)
        changed = [each for each in results if each.train_energy.keys() == {"coarse"}]
        if changed:
            best = min(changed, key=lambda each: each.train_energy["coarse"])
            weights = str(coarse_file(setting, best.films, best.name))
            job = Job(best.films, best.name, best.changes, args.start, PHASES, weights)
            fine = trainings.submit(trained, setting, job).result()
            fine.tests, fine.epochs = best.tests + fine.tests, best.epochs + fine.epochs
            fine.train_energy |= best.train_energy
            fine.scores = best.scores | fine.scores
            results[results.index(best)] = fine
        save(results, args.out, started)
        for name in dict.fromkeys(each.films for each in results):
            draw_curves(results, name, args.out)
            draw_areas(results, name, load(setting, name), args.out)
    print_tables(results)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--start",
        required=True,
        help="safetensors file with weights of a ResNet18, or some of them",
    )
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--films", type=int, default=500, help="number of phantoms")
    parser.add_argument("--test", type=int, default=100, help="number of phantoms to test on")
    parser.add_argument("--real", type=Path, help="folder of labelled real films")
    parser.add_argument("--limit", type=int, help="only the first of the real films")
    parser.add_argument("--only", nargs="+", help="names of trainings", metavar="NAME")
    parser.add_argument("--full", action="store_true", help="all phases on phantoms too")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=6, help="trainings at once")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="CPU processes")
    parser.add_argument("--seconds", type=float, default=330.0)
    return parser.parse_args()


def phantom_jobs(start: str, full: bool) -> list[Job]:
    """Return the paper's training, and the changed ones or only their coarse phases."""
    return [
        Job(
            *("phantoms", name, CHANGES[name], start),
            PHASES if full or name == "paper" else PHASES[:1],
        )
        for name in ON_PHANTOMS
    ]


def real_jobs(start: str) -> list[Job]:
    """Return all trainings on real films, the long one first.

    With 66 films, 105 epochs are as many steps as 15 epochs of 500.
    """
    longer = {"epochs": 7 * PAPER.epochs}
    return [
        Job("real", "paper, 7 times the epochs", longer, start),
        *(Job("real", name, changes, start) for name, changes in CHANGES.items()),
        Job("real", "paper, built-in start", {}, "synthetic"),
        Job("real", "paper, random start", {}, "none"),
    ]


def phantoms(count: int, test: int, pool: ProcessPoolExecutor) -> FilmSet:
    """Render phantoms that are framed as knee films."""
    seeds = [*range(TRAINED_FROM, TRAINED_FROM + count), *range(TESTED_FROM, TESTED_FROM + test)]
    films = list(pool.map(rendered, seeds, chunksize=2))
    return FilmSet(to_integers(films[:count]), films[count:], annotate_a_phantom("knee"))


def rendered(seed: int) -> Film:
    torch.set_num_threads(1)
    return phantom_films([seed], framing="knee", side_margin=0.0)[0]


def films_of_folder(folder: Path, limit: int | None) -> FilmSet:
    """Read the films of a folder, to train on all and to test on the labelled ones."""
    paths = sorted((folder / "films").iterdir())[:limit]
    train = [Film(path.stem, (), split(film_tensor(read(path))), torch.empty(0)) for path in paths]
    names = {path.stem for path in paths}
    test = [film for film in known(real_films(folder, side_margin=0.0)) if film.name in names]
    return FilmSet(to_integers(train), test, load_annotation(folder / "template.json"))


def to_integers(films: Sequence[Film]) -> NDArray[np.uint16]:
    pixels = torch.stack([film.halves.pixels for film in films]).numpy()
    return np.rint(pixels.clip(0, 1) * WHITE).astype(np.uint16)


def store(setting: Setting, name: str, films: FilmSet) -> None:
    """Write the films where worker processes find them."""
    tensors = {
        "train": torch.from_numpy(films.train),
        "pixels": torch.stack([film.halves.pixels for film in films.test]),
        "to_film": torch.stack([film.halves.to_film for film in films.test]),
        "margins": torch.stack([film.margins for film in films.test]),
    }
    names = {"names": json.dumps([film.name for film in films.test])}
    save_file(tensors, setting.work / f"{name}.safetensors", names)
    save_annotation(films.annotation, setting.work / f"{name}.json")


def load(setting: Setting, name: str) -> FilmSet:
    """Read what `store` wrote."""
    with safe_open(setting.work / f"{name}.safetensors", "pt") as file:
        names = json.loads(file.metadata()["names"])
        train = file.get_tensor("train").numpy()
        parts = [file.get_tensor(part) for part in ("pixels", "to_film", "margins")]
    test = [
        Film(title, (), View(pixels, to_film), margins)
        for title, pixels, to_film, margins in zip(names, *parts, strict=True)
    ]
    return FilmSet(train, test, load_annotation(setting.work / f"{name}.json"))


def coarse_file(setting: Setting, films: str, name: str) -> Path:
    return setting.work / f"{films} {name}.pt"


def trained(setting: Setting, job: Job) -> Result:
    """Run the phases of a training; test it on the way and at the end."""
    # Several processes share the memory of the GPU.
    distributed.BYTES_PER_FILM = setting.jobs * BYTES_PER_FILM  # type: ignore[misc]
    if setting.device != "cpu":
        torch.cuda.empty_cache()
    torch.set_num_threads(1)
    films, group = load(setting, job.films), distributed.Group(device=setting.device)
    pixels = torch.from_numpy(films.train.astype(np.float32) / WHITE).to(setting.device)
    templates, _ = cut_templates(films.annotation, setting.device)
    recipe, drawn = replace(PAPER, **job.changes), frozenset[str]()
    if Path(job.start).is_file():
        started, drawn = partial_networks(job.start)
    else:
        started = initial_networks(job.start).networks
    task = Task(FilmsInMemory(pixels), templates, recipe, None, random=job.start == RANDOM)
    networks = started[0].to(setting.device), started[1].to(setting.device)
    result = Result(job.films, job.name, job.changes, Path(job.start).name)
    test, began = halves_of(films.test, setting.device), time.time()
    for number, phase in enumerate(job.phases):
        if job.coarse and number == 0:
            networks[0].load_state_dict(torch.load(job.coarse, weights_only=True))
            continue
        data, loss = coarse_phase(task) if number == 0 else fine_phase(task, networks[0], group)
        state = PhaseState(networks[number], len(pixels), number, task.random)
        if Path(job.start).is_file():
            unfold_batchnorm(networks[number], data, drawn, group)
            learn_at_the_heads_rate(state, drawn)
        result.tests.append(tested(films, test, templates, networks, phase, 0))
        for _ in train_phase(state, data, loss, recipe, group):
            done = state.round * recipe.epochs + state.epoch
            seconds = round(time.time() - began, 2)
            result.epochs.append((phase, state.round + 1, state.epoch, state.loss, seconds))
            if done % EVERY == 0:
                share = done / (recipe.rounds * recipe.epochs)
                result.tests.append(tested(films, test, templates, networks, phase, share))
            if time.time() > setting.deadline:
                result.stopped = True
                break
        theta = predict_poses(networks[number], data, group)
        result.train_energy[phase] = mean_energy(pixels, data.template, theta)
        theta = test_poses(networks, templates, phase, test)
        if number == 0:
            torch.save(networks[0].state_dict(), coarse_file(setting, job.films, job.name))
            theta = fine_box(theta, templates)
        result.scores["coarse network" if number == 0 else "neural"] = summary(
            films.test, templates.fine, theta
        )
    if "fine" in job.phases:
        theta = sharpened(test, templates.fine, theta)
        result.scores["neural+sharpen"] = summary(films.test, templates.fine, theta)
    result.theta = theta.tolist()
    return result


def tested(
    films: FilmSet,
    halves: Tensor,
    templates: TemplatePair,
    networks: Networks,
    phase: str,
    share: float,
) -> dict[str, float]:
    """Return the energy and the IoU of the test films at a share of a phase."""
    theta = test_poses(networks, templates, phase, halves)
    box = fine_box(theta, templates) if phase == PHASES[0] else theta
    return {
        "time": PHASES.index(phase) + share,
        "energy": mean_energy(halves, getattr(templates, phase), theta),
        "iou": float(score(films.test, templates.fine, box.cpu()).iou.mean()),
    }


@torch.no_grad()
def test_poses(networks: Networks, templates: TemplatePair, phase: str, halves: Tensor) -> Tensor:
    """Return the poses (N, 2, 4) of the phase's template in halves (N, 2, H, W)."""
    coarse, fine = (network.eval() for network in networks)
    if phase == PHASES[0]:
        v = coarse(crop_views(halves, full_frames(halves), HALF_ASPECT))
        return pose_from_vector(v, templates.coarse.aspect / HALF_ASPECT)
    both = TwoStageNetworks(coarse, fine, templates.coarse.aspect, templates.fine.aspect)
    theta = both.poses(halves)
    ratio = templates.fine.aspect / HALF_ASPECT
    return pose_from_vector(vector_from_pose(theta, ratio), ratio)  # inside D's range


def fine_box(theta: Tensor, templates: TemplatePair) -> Tensor:
    """Return the poses (N, 2, 4) of the fine box inside coarse boxes at poses (N, 2, 4)."""
    aspect = templates.coarse.aspect
    offset = relative_pose(templates.coarse_pose, templates.fine_pose, aspect, HALF_ASPECT)
    return compose_pose(theta, offset.to(theta).expand_as(theta), aspect, HALF_ASPECT)


@torch.no_grad()
def mean_energy(halves: Tensor, template: Template, theta: Tensor) -> float:
    parts = zip(halves.split(32), theta.split(32), strict=True)
    terms = [energy(paper_terms(part, template.to(part)), at) for part, at in parts]
    return float(torch.cat(terms).mean())


def sharpened(halves: Tensor, template: Template, theta: Tensor) -> Tensor:
    """Return the poses (N, 2, 4) after the paper's 300 steps of Adam."""
    found = []
    for part, at in zip(halves.split(32), theta.split(32), strict=True):
        problem = make_problem(part, template, paper=True)
        v = adam(problem, vector_from_pose(at, problem.height_ratio)).v
        found.append(pose_from_vector(v, problem.height_ratio))
    return torch.cat(found)


def summary(films: Sequence[Film], template: Template, theta: Tensor) -> dict[str, float]:
    """Return the loss and the scores of poses (N, 2, 4) of the fine template."""
    template = template.to(torch.empty(0))
    found = evaluate_poses(films, template, theta.detach().cpu(), 0.0)
    scores = score(films, template, found.theta)
    return {
        "loss": float(found.loss.sum(-1).mean()),
        "iou": float(scores.iou.mean()),
        "recall_50": float((scores.iou >= 0.5).double().mean()),
        "recall_75": float((scores.iou >= 0.75).double().mean()),
        "margin_percent": float(scores.margin.median()),
    }


def references(setting: Setting, name: str, pool: ProcessPoolExecutor) -> Iterable[Result]:
    """Yield methods without a training, all on the paper's energy."""
    films = load(setting, name)
    template = cut_templates(films.annotation, "cpu")[0].fine
    methods = {
        "template matching": sliding_window,
        "search": exhaustive_search,
        "Adam from the middle": descend_from_middle,
        "Adam, small images first": partial(descend_from_middle, shrinks=(16, 4, 1)),
    }
    for title, method in methods.items():
        theta = torch.cat(list(pool.map(partial(solved, method, template), films.test)))
        scores = {title: summary(films.test, template, theta)}
        yield Result(name, title, scores=scores, theta=theta.tolist())


def descend_from_middle(problem: Problem, shrinks: tuple[int, ...] = (1,)) -> Tensor:
    """Descend by Adam from v = 0, where untrained networks begin, on images of growing size."""
    n, sides = problem.halves.shape[:2]
    v = problem.halves.new_zeros(n, sides, 4)
    for shrink in shrinks:
        v = adam(pyramid(problem, (shrink,))[shrink], v).v
    return v


def solved(method: Any, template: Template, film: Film) -> Tensor:
    torch.set_num_threads(1)
    problem = make_problem(halves_of([film], "cpu"), template, paper=True)
    return pose_from_vector(method(problem), problem.height_ratio)


def save(results: Sequence[Result], out: Path, started: float) -> None:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    about = {
        "device": device,
        "torch": torch.__version__,
        "seconds": round(time.time() - started, 1),
        "results": [asdict(each) for each in results],
    }
    (out / "results.json").write_text(json.dumps(about), "utf-8")


def print_tables(results: Sequence[Result]) -> None:
    columns = (
        *("left + right loss", "mean IoU", "recall at 0.5", "recall at 0.75"),
        *("margin error, median %", "coarse energy, training films", "s"),
    )
    for films in dict.fromkeys(each.films for each in results):
        rows = []
        for each in (each for each in results if each.films == films):
            for method, found in each.scores.items():
                note = ", stopped early" if each.stopped else ""
                title = each.name if each.name == method else f"{each.name}: {method}{note}"
                coarse = each.train_energy.get("coarse") if method == "coarse network" else None
                last = f"{each.epochs[-1][-1]:.0f}" if each.epochs else "-"
                cells = [f"{value:.3f}" for value in found.values()]
                rows.append([title, *cells, "-" if coarse is None else f"{coarse:.3f}", last])
        table((films, *columns), rows)


def draw_curves(results: Sequence[Result], films: str, out: Path) -> None:
    """Plot the energy and the IoU of the test films in the course of every training."""
    figure = Figure((9, 4), layout="constrained")
    panels = figure.subplots(1, 2)
    chosen = [each for each in results if each.films == films and each.tests]
    for axes, name in zip(panels, ("energy", "iou"), strict=True):
        for each in sorted(chosen, key=lambda each: each.name):
            x, y = [test["time"] for test in each.tests], [test[name] for test in each.tests]
            axes.plot(x, y, linewidth=1.2, label=each.name)
        axes.axvline(1, color="#888888", linewidth=0.7)
        axes.set(xlabel="coarse phase (0 to 1), fine phase (1 to 2)")
    panels[0].set(ylabel="energy of the test films", ylim=(0, None))
    panels[1].set(ylabel="mean IoU of the test films", ylim=(0, 1))
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    figure.savefig(out / f"curves-{films}.png", dpi=150)


def draw_areas(results: Sequence[Result], name: str, films: FilmSet, out: Path) -> None:
    """Draw the area that every method found in the right half of some test films."""
    chosen = sorted((each for each in results if each.films == name), key=lambda each: each.name)
    template = cut_templates(films.annotation, "cpu")[0].fine
    count = min(SHOWN, len(films.test))
    figure = Figure((1.3 * len(chosen), 1.35 * count + 0.4), layout="constrained")
    grid = figure.subplots(count, len(chosen), squeeze=False)
    halves = halves_of(films.test[:count], "cpu")[:, 1]
    for column, each in zip(grid.T, chosen, strict=True):
        theta = torch.tensor(each.theta)[:count, 1]
        matrices = pose_matrix(theta, template.aspect, HALF_ASPECT)
        patches = sample(halves, matrices.float(), (128, 128))
        column[0].set_title(each.name.replace(", ", ",\n"), size=6)
        for axes, patch in zip(column, patches, strict=True):
            axes.imshow(patch, cmap="gray")
            axes.set(xticks=[], yticks=[])
    figure.savefig(out / f"areas-{name}.png", dpi=120)


if __name__ == "__main__":
    import replication  # so that worker processes find its functions by the module's name

    replication.main()
