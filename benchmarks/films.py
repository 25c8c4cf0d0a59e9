"""Films with known knees for the benchmarks, and scores of what is found on them.

Films are phantoms or a folder of labelled real films. Such a folder holds films/, labels.csv
(id,knee,x1,y1,x2,y2,flag: the outermost points of the tibial plateau, the left one in the picture
first; knee L or R is the half of the picture; flagged knees are not scored) and template.json with
the two margins as its landmarks.

Columns of scores: "mean IoU" of the knee areas (squares around the midpoint of the plateau's
margins, 1.5 times as wide as they are apart), "recall" (share of knees whose IoU reaches the limit)
and "margin error" (mean distance of both margins from the truth, in percent of the plateau's
width).
"""

import argparse
import csv
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from kneephantoms.phantom import Phantom, phantom
from torch import Tensor

from kneematch.errors import TemplateError
from kneematch.evaluation.ground_truth import SQUARE_WIDTHS
from kneematch.films.annotation import annotate, load_annotation
from kneematch.films.read import read
from kneematch.knee.knee_images import SIDE_MARGIN, film_tensor
from kneematch.paper.energy import losses, paper_terms, symmetry_penalty
from kneematch.paper.pose import (
    pose_from_points,
    pose_from_vector,
    pose_matrix,
    vector_from_pose,
)
from kneematch.paper.problem import Solver, make_problem
from kneematch.paper.split import HALF_SIZE, SIDES, split
from kneematch.paper.template import Template, cut_from_view, cut_template
from kneematch.sampling import View, compose, transform

Result = TypeVar("Result")

TEMPLATE_SEEDS = range(1_000_000, 1_001_000)  # disjoint from those of the searched films
FAMILY = 3


@dataclass(frozen=True, slots=True, eq=False)
class Film:
    """A film's halves and its true knees."""

    name: str
    tags: tuple[str, ...]  # groups that the film is scored in
    halves: View  # pixels (2, 800, 500)
    margins: Tensor  # (2, 2, 2) film pixels: side, left and right, x and y; NaN if unknown


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Poses found in N films."""

    theta: Tensor  # (N, 2, 4) on the CPU
    loss: Tensor  # (N, 2), the paper's
    energy: Tensor  # (N,), the paper's
    seconds: float  # per film


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """Accuracy of detections on N films; NaN where the truth is unknown."""

    iou: Tensor  # (N, 2)
    margin: Tensor  # (N, 2), margin error in % of the plateau's width

    def row(self, films: Sequence[Film], tag: str | None = None) -> list[str]:
        """Return the cells of SCORE_COLUMNS, for all films or those with a tag."""
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


def rows_by_tag(scores: Scores, films: Sequence[Film]) -> list[list[str]]:
    """Return a row of SCORE_COLUMNS for all films, and one for each of their tags."""
    tags = sorted({tag for film in films for tag in film.tags})
    return [[tag or "all", *scores.row(films, tag)] for tag in (None, *tags)]


SCORE_COLUMNS = (
    "knees",
    "mean IoU",
    "recall at 0.75",
    "recall at 0.9",
    "margin error, median %",
    "95th percentile %",
)


def benchmark_parser(about: str, *, films: int) -> argparse.ArgumentParser:
    """Return a parser with the options that all benchmarks share."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--films", type=int, default=films, help="number of phantoms")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first phantom")
    parser.add_argument("--real", type=Path, help="folder of labelled real films")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--batch", type=int, default=8, help="films per batch")
    parser.add_argument("--threads", type=int, default=1, help="threads of PyTorch")
    return parser


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a Markdown table whose first column is text and whose others are numbers."""
    print(f"| {' | '.join(columns)} |")
    print(f"|---|{'---:|' * (len(columns) - 1)}")
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)
    print(flush=True)


def film_sets(args: argparse.Namespace) -> dict[str, list[Film]]:
    """Return the "phantoms" and, if given, the "real" films."""
    sets = {}
    if args.films:
        sets["phantoms"] = phantom_films(range(args.seed, args.seed + args.films))
    if args.real:
        sets["real"] = real_films(args.real)
    return sets


def sets_of_films(args: argparse.Namespace) -> list[tuple[str, list[Film], Template]]:
    """Return the name, films and template of each of `film_sets`."""
    return [
        (name, films, real_template(args.real) if name == "real" else phantom_template(FAMILY))
        for name, films in film_sets(args).items()
    ]


def phantom_films(
    seeds: Iterable[int],
    family: int | None = None,
    framing: str | None = None,
    *,
    side_margin: float = SIDE_MARGIN,
) -> list[Film]:
    """Return phantoms; see `kneephantoms.film_plan.plan_film` for family and framing."""
    return [
        film_of_phantom(
            f"phantom {seed}",
            phantom(seed, family=family, framing=framing),
            side_margin=side_margin,
        )
        for seed in seeds
    ]


def film_of_phantom(name: str, made: Phantom, *, side_margin: float = SIDE_MARGIN) -> Film:
    """Return a phantom's halves and true margins."""
    tags = ("implant",) * any(knee.implant for knee in made.knees) + ("negative",) * made.negative
    margins = [[knee.plateau_left, knee.plateau_right] for knee in made.knees]
    halves = split(film_tensor(made.radiograph), side_margin=side_margin)
    truth = torch.tensor(margins, dtype=torch.float64)
    return Film(name, tags or ("ordinary",), halves, truth)


def ordinary_phantoms(family: int, framing: str | None = None) -> Iterator[tuple[str, Phantom]]:
    """Yield names and phantoms of a family with two healthy knees, to cut templates from."""
    for seed in TEMPLATE_SEEDS:
        made = phantom(seed, family=family, framing=framing)
        healthy = max(knee.grade for knee in made.knees) <= 1
        if healthy and not made.negative and not any(knee.implant for knee in made.knees):
            yield f"phantom {seed}", made


def phantom_template(family: int) -> Template:
    """Return the first template of a family whose boxes lie inside the half."""
    for name, made in ordinary_phantoms(family):
        with suppress(TemplateError):  # the box leaves the half
            return template_at(film_of_phantom(name, made), 1)
    raise RuntimeError("no phantom of this family can serve as a template")


def real_films(folder: Path, *, side_margin: float = SIDE_MARGIN) -> list[Film]:
    """Return the labelled films of a folder."""
    known: dict[str, Tensor] = {}
    with (folder / "labels.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            margins = known.setdefault(row["id"], torch.full((2, 2, 2), torch.nan).double())
            if row["x1"] and not row["flag"]:
                corners = [[float(row[f"{axis}{k}"]) for axis in "xy"] for k in (1, 2)]
                margins["LR".index(row["knee"])] = torch.tensor(corners, dtype=torch.float64)
    paths = {path.stem: path for path in sorted((folder / "films").iterdir())}
    return [
        Film(
            name,
            (_source(name),),
            split(film_tensor(read(paths[name])), side_margin=side_margin),
            margins,
        )
        for name, margins in known.items()
        if not margins.isnan().all()
    ]


def _source(name: str) -> str:
    """Return the source in a name, such as "knee" in dev-knee-07."""
    return name.split("-")[1] if name.count("-") > 1 else "all"


def real_template(folder: Path) -> Template:
    """Return the template of a folder of real films."""
    drawn = load_annotation(folder / "template.json")
    return cut_template(read(drawn.film), drawn)[0]


def template_at(film: Film, side: int) -> Template:
    """Return the template of the standard boxes around a knee whose margins are known."""
    left, right = ((float(x), float(y)) for x, y in film.margins[side])
    drawn = annotate(Path(film.name), SIDES[side], left, right)
    half = View(film.halves.pixels[side], film.halves.to_film[side])
    return cut_from_view(half, drawn)[0]


def halves_of(films: Sequence[Film], device: str) -> Tensor:
    """Return the pixels of the halves, (N, 2, 800, 500)."""
    return torch.stack([film.halves.pixels for film in films]).to(device)


def known(films: Sequence[Film]) -> list[Film]:
    """Return the films with two labelled knees."""
    return [film for film in films if not film.margins.isnan().any()]


def true_vectors(films: Sequence[Film], template: Template) -> Tensor:
    """Return the vectors (N, 2, 4) that map the template's landmarks to the true margins."""
    to_film = torch.stack([film.halves.to_film for film in films])
    margins = torch.stack([film.margins for film in films])
    there = _by_x(transform(torch.linalg.inv(to_film), margins))
    image_aspect = HALF_SIZE[0] / HALF_SIZE[1]
    theta = pose_from_points(there, _landmarks(template), template.aspect, image_aspect)
    return vector_from_pose(theta, template.aspect / image_aspect)


def _landmarks(template: Template) -> Tensor:
    """Return the template's landmarks (2, 2) in [-1, 1]^2, the left one first."""
    return _by_x(torch.tensor(list(template.landmarks.values()), dtype=torch.float64))


def _by_x(points: Tensor) -> Tensor:
    """Sort pairs of points (..., 2, 2) by x."""
    swap = points[..., 0, 0] > points[..., 1, 0]
    return torch.where(swap[..., None, None], points.flip(-2), points)


def score(films: Sequence[Film], template: Template, theta: Tensor) -> Scores:
    """Score poses (N, 2, 4) by where they map the template's landmarks on the films."""
    matrices = pose_matrix(theta.double(), template.aspect, HALF_SIZE[0] / HALF_SIZE[1])
    to_film = torch.stack([film.halves.to_film for film in films])
    found = _by_x(transform(compose(to_film, matrices), _landmarks(template)))  # (N, 2, 2, 2)
    truth = torch.stack([film.margins for film in films])
    width = (truth[..., 1, :] - truth[..., 0, :]).norm(dim=-1)
    margin = 100 * (found - truth).norm(dim=-1).mean(-1) / width
    return Scores(area_iou(found, truth), margin)


def area_iou(one: Tensor, other: Tensor) -> Tensor:
    """Return the IoU (...) of the areas around two sets of margins (..., 2, 2)."""
    corners = []
    for margins in (one, other):
        reach = (
            SQUARE_WIDTHS / 2 * (margins[..., 1, :] - margins[..., 0, :]).norm(dim=-1, keepdim=True)
        )
        corners.append((margins.mean(-2) - reach, margins.mean(-2) + reach))
    (low, high), (other_low, other_high) = corners
    both = (high.minimum(other_high) - low.maximum(other_low)).clamp(min=0).prod(-1)
    return both / ((high - low).prod(-1) + (other_high - other_low).prod(-1) - both)


def find(
    method: Solver,
    films: Sequence[Film],
    template: Template,
    args: argparse.Namespace,
    *,
    paper: bool,
) -> Found:
    """Run a solver on films in batches and time it, after a warm-up with the first batch."""
    ratio = template.aspect * HALF_SIZE[1] / HALF_SIZE[0]

    def poses(some: Sequence[Film]) -> Tensor:
        problem = make_problem(halves_of(some, args.device), template, paper=paper)
        return pose_from_vector(method(problem), ratio)

    poses(films[: args.batch])
    theta, seconds = [], 0.0
    for first in range(0, len(films), args.batch):
        found, taken = timed(lambda first=first: poses(films[first : first + args.batch]))
        theta.append(found.cpu())
        seconds += taken
    return evaluate_poses(films, template, torch.cat(theta), seconds / len(films))


def evaluate_poses(
    films: Sequence[Film], template: Template, theta: Tensor, seconds: float
) -> Found:
    """Return the paper's losses and energies at poses (N, 2, 4)."""
    loss = torch.cat(
        [
            losses(paper_terms(halves_of([film], "cpu"), template), at[None])
            for film, at in zip(films, theta.float(), strict=True)
        ]
    )
    return Found(theta, loss, loss.sum(-1) + symmetry_penalty(theta), seconds)


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """Return a function's result and its seconds, with the GPU synchronised."""
    start = _now()
    found = work()
    return found, _now() - start


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def share_worse(energy: Tensor, than: Tensor, by: float) -> float:
    """Return the share of films whose energy is higher by more than `by`."""
    return float((energy.cpu() > than.cpu() + by).double().mean())
