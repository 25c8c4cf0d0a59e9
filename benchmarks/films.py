"""Films with known knees for the benchmarks: phantoms, and a folder of labelled real films.

A folder of real films holds films/, labels.csv (id,knee,x1,y1,x2,y2,flag: the outermost margins of
the tibial plateau, the picture's left one first; knee L or R is the half of the picture; a flagged
knee has no truth here) and template.json, whose landmarks are plateau_left and plateau_right.
"""

import argparse
import csv
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from kneematch.errors import TemplateError
from kneematch.geometry.pose import (
    pose_from_points,
    pose_from_vector,
    pose_matrix,
    vector_from_pose,
)
from kneematch.geometry.split import HALF_SIZE, ROOM, SIDES, split
from kneematch.geometry.view import View, compose, transform
from kneematch.io.read import read
from kneematch.matching.annotation import load_annotation
from kneematch.matching.energy import losses, printed, symmetry_penalty
from kneematch.matching.template import Template, cut_from_half, cut_template
from kneematch.solvers.problem import Problem, Solution, problem
from kneematch.synthetic.annotation import annotate
from kneematch.synthetic.phantom import phantom

Result = TypeVar("Result")

AREA = 1.5  # a knee's area is a square of this many plateau widths around the margins' middle
TEMPLATE_SEEDS = range(1_000_000, 1_001_000)  # apart from those of the films that are searched
FAMILY = 3


@dataclass(frozen=True, slots=True, eq=False)
class Film:
    """A film's halves and where its knees are."""

    name: str
    tags: tuple[str, ...]  # a phantom's peculiarities, a real film's source
    halves: View  # pixels (2, 800, 500)
    margins: Tensor  # (2, 2, 2) film pixels: side, left and right margin, x and y; NaN: not known


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Where the template was found in each film, and what that took."""

    theta: Tensor  # (N, 2, 4) on the CPU
    loss: Tensor  # (N, 2), the printed one
    energy: Tensor  # (N,), the printed one
    seconds: float  # a film


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """How good detections are; NaN where the truth is not known."""

    iou: Tensor  # (N, 2)
    margin: Tensor  # (N, 2), mean distance of the two margins, in % of the plateau's width

    def row(self, films: Sequence[Film], tag: str | None = None) -> list[str]:
        """Knees, mean IoU, recall at 0.75 and 0.9, median and 95th percentile of the error."""
        rows = torch.tensor([tag is None or tag in film.tags for film in films])
        known = rows[:, None] & ~self.iou.isnan()
        iou, margin = self.iou[known], self.margin[known]
        if not len(iou):
            return ["0", *["-"] * 5]
        spread = margin.quantile(torch.tensor([0.5, 0.95]).to(margin)).tolist()
        recall = [(iou >= limit).double().mean() for limit in (0.75, 0.9)]
        return [
            str(len(iou)),
            f"{iou.mean():.3f}",
            *(f"{share:.3f}" for share in recall),
            *(f"{error:.2f}" for error in spread),
        ]


SCORE_COLUMNS = (
    "knees",
    "mean IoU",
    "recall at 0.75",
    "recall at 0.9",
    "margin error, median %",
    "95th percentile %",
)


def options(about: str, *, films: int) -> argparse.ArgumentParser:
    """The options that all benchmarks share."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--films", type=int, default=films, help="phantoms")
    parser.add_argument("--seed", type=int, default=0, help="of the first phantom")
    parser.add_argument("--real", type=Path, help="folder of labelled real films")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--batch", type=int, default=8, help="films at once")
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch")
    return parser


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print Markdown; the first column holds words, the others numbers."""
    print(f"| {' | '.join(columns)} |")
    print(f"|---|{'---:|' * (len(columns) - 1)}")
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)
    print(flush=True)


def sets_of_films(chosen: argparse.Namespace) -> list[tuple[str, list[Film], Template]]:
    """The phantoms that were asked for and, where given, the real films: name, films, template."""
    sets = []
    if chosen.films:
        seeds = range(chosen.seed, chosen.seed + chosen.films)
        sets.append(("phantoms", phantom_films(seeds), phantom_template(FAMILY)))
    if chosen.real:
        sets.append(("real", real_films(chosen.real), real_template(chosen.real)))
    return sets


def phantom_films(
    seeds: Iterable[int],
    family: int | None = None,
    kind: str | None = None,
    *,
    room: float = ROOM,
) -> list[Film]:
    """Phantoms, of anyone or of one family, framed in any way or in one."""
    films = []
    for seed in seeds:
        made = phantom(seed, family=family, kind=kind)
        tags = ("implant",) * bool(made.hardware) + ("negative",) * made.negative
        margins = [[knee.plateau_left, knee.plateau_right] for knee in made.knees]
        halves = split(made.radiograph, room=room)
        truth = torch.tensor(margins, dtype=torch.float64)
        films.append(Film(f"phantom {seed}", tags or ("ordinary",), halves, truth))
    return films


def phantom_template(family: int) -> Template:
    """A template from the first ordinary film of a family, both of its knees healthy."""
    for seed in TEMPLATE_SEEDS:
        made = phantom(seed, family=family)
        if made.negative or made.hardware or max(knee.grade for knee in made.knees) > 1:
            continue
        (film,) = phantom_films([seed], family)
        try:
            return transplanted(film, 1)
        except TemplateError:  # the box leaves the half
            continue
    raise RuntimeError("no phantom of this family can serve as a template")


def real_films(folder: Path) -> list[Film]:
    """The labelled films of a folder."""
    known: dict[str, Tensor] = {}
    with (folder / "labels.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            margins = known.setdefault(row["id"], torch.full((2, 2, 2), torch.nan).double())
            if row["x1"] and not row["flag"]:
                corners = [[float(row[f"{axis}{k}"]) for axis in "xy"] for k in (1, 2)]
                margins["LR".index(row["knee"])] = torch.tensor(corners, dtype=torch.float64)
    paths = {path.stem: path for path in sorted((folder / "films").iterdir())}
    return [
        Film(name, (_source(name),), split(read(paths[name]), room=ROOM), margins)
        for name, margins in known.items()
        if not margins.isnan().all()
    ]


def _source(name: str) -> str:
    """dev-knee-07 is of the source knee."""
    return name.split("-")[1] if name.count("-") > 1 else "all"


def real_template(folder: Path) -> Template:
    """The template that is drawn in a folder."""
    drawn = load_annotation(folder / "template.json")
    return cut_template(read(drawn.film), drawn)[0]


def transplanted(film: Film, side: int) -> Template:
    """The template of the same geometry on another knee whose margins are known."""
    left, right = ((float(x), float(y)) for x, y in film.margins[side])
    drawn = annotate(Path(film.name), SIDES[side], left, right)
    half = View(film.halves.pixels[side], film.halves.to_film[side])
    return cut_from_half(half, drawn)[0]


def halves_of(films: Sequence[Film], device: str) -> Tensor:
    """(N, 2, 800, 500)."""
    return torch.stack([film.halves.pixels for film in films]).to(device)


def known(films: Sequence[Film]) -> list[Film]:
    """Films of which both knees are known."""
    return [film for film in films if not film.margins.isnan().any()]


def true_vectors(films: Sequence[Film], template: Template) -> Tensor:
    """The vectors (N, 2, 4) that put the template's landmarks on the true margins."""
    to_film = torch.stack([film.halves.to_film for film in films])
    margins = torch.stack([film.margins for film in films])
    there = _by_x(transform(torch.linalg.inv(to_film), margins))
    image_aspect = HALF_SIZE[0] / HALF_SIZE[1]
    theta = pose_from_points(there, _landmarks(template), template.aspect, image_aspect)
    return vector_from_pose(theta, template.aspect / image_aspect)


def _landmarks(template: Template) -> Tensor:
    """The two margins in the template's [-1, 1]^2, (2, 2), the left one first."""
    points = [template.landmarks[name] for name in ("plateau_left", "plateau_right")]
    return _by_x(torch.tensor(points, dtype=torch.float64))


def _by_x(points: Tensor) -> Tensor:
    """Pairs of points (..., 2, 2), the left one first."""
    swap = points[..., 0, 0] > points[..., 1, 0]
    return torch.where(swap[..., None, None], points.flip(-2), points)


def score(films: Sequence[Film], template: Template, theta: Tensor) -> Scores:
    """Compare the landmarks that poses (N, 2, 4) carry to the films with the truth."""
    matrices = pose_matrix(theta.double(), template.aspect, HALF_SIZE[0] / HALF_SIZE[1])
    to_film = torch.stack([film.halves.to_film for film in films])
    carried = _by_x(transform(compose(to_film, matrices), _landmarks(template)))  # (N, 2, 2, 2)
    truth = torch.stack([film.margins for film in films])
    width = (truth[..., 1, :] - truth[..., 0, :]).norm(dim=-1)
    margin = 100 * (carried - truth).norm(dim=-1).mean(-1) / width
    return Scores(_iou(_area(carried), _area(truth)), margin)


def _area(margins: Tensor) -> tuple[Tensor, Tensor]:
    """The square around two margins (..., 2, 2): its upper left and its lower right corner."""
    reach = AREA / 2 * (margins[..., 1, :] - margins[..., 0, :]).norm(dim=-1, keepdim=True)
    return margins.mean(-2) - reach, margins.mean(-2) + reach


def _iou(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> Tensor:
    both = (one[1].minimum(other[1]) - one[0].maximum(other[0])).clamp(min=0).prod(-1)
    return both / ((one[1] - one[0]).prod(-1) + (other[1] - other[0]).prod(-1) - both)


def find(
    method: Callable[[Problem], Solution],
    films: Sequence[Film],
    template: Template,
    chosen: argparse.Namespace,
    *,
    paper: bool,
) -> Found:
    """Run a minimiser on films, batch by batch; the first batch once more, to warm up."""
    ratio = template.aspect * HALF_SIZE[1] / HALF_SIZE[0]

    def poses(some: Sequence[Film]) -> Tensor:
        asked = problem(halves_of(some, chosen.device), template, paper=paper)
        return pose_from_vector(method(asked).v, ratio)

    poses(films[: chosen.batch])
    theta, seconds = [], 0.0
    for first in range(0, len(films), chosen.batch):
        found, taken = timed(lambda first=first: poses(films[first : first + chosen.batch]))
        theta.append(found.cpu())
        seconds += taken
    return judged(films, template, torch.cat(theta), seconds / len(films))


def judged(films: Sequence[Film], template: Template, theta: Tensor, seconds: float) -> Found:
    """The printed losses and energies at poses (N, 2, 4)."""
    loss = torch.cat(
        [
            losses(printed(halves_of([film], "cpu"), template), at[None])
            for film, at in zip(films, theta.float(), strict=True)
        ]
    )
    return Found(theta, loss, loss.sum(-1) + symmetry_penalty(theta), seconds)


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """What a function returns and the seconds it took, those of the GPU included."""
    start = _now()
    found = work()
    return found, _now() - start


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def share_worse(energy: Tensor, than: Tensor, by: float) -> float:
    """The share of films whose energy is higher by more than a margin."""
    return float((energy.cpu() > than.cpu() + by).double().mean())
