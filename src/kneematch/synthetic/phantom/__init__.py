"""Synthetic bilateral knee radiographs (phantoms) with exactly known knees."""

import math
from dataclasses import dataclass

from kneematch.geometry.split import SIDES
from kneematch.io.radiograph import Radiograph
from kneematch.synthetic.phantom.anatomy import plateau_margins
from kneematch.synthetic.phantom.film_plan import KINDS, LATERALITY, PLATEAU_MM, FilmPlan, plan_film
from kneematch.synthetic.phantom.rendering import render, to_film

__all__ = ["KINDS", "FilmPlan", "Knee", "Phantom", "phantom", "plan_film", "render", "true_knees"]


@dataclass(frozen=True, slots=True)
class Knee:
    """Ground truth of one knee; points (x, y) in film pixels, pixel centres at +0.5."""

    side: str  # half of the picture, "left" or "right"
    laterality: str  # the patient's side, "R" or "L"
    plateau_left: tuple[float, float]  # outermost points of the plateau, osteophytes included
    plateau_right: tuple[float, float]
    centre: tuple[float, float]  # midpoint of the two
    rotation_deg: float  # of the line through the two, clockwise positive
    grade: int  # Kellgren-Lawrence, 0..4


@dataclass(frozen=True, slots=True, eq=False)
class Phantom:
    """A synthetic film and its ground truth."""

    radiograph: Radiograph
    knees: tuple[Knee, Knee]  # in the left and the right half of the picture
    negative: bool  # bones are dark, although the photometric interpretation says otherwise
    hardware: str | None  # "plate", "prosthesis", "nail" or None


def phantom(
    seed: int,
    *,
    size: tuple[int, int] | None = None,
    family: int | None = None,
    kind: str | None = None,
) -> Phantom:
    """Return the film of a seed; see `plan_film` for the arguments."""
    plan = plan_film(seed, size, family, kind)
    film = Radiograph(
        pixels=render(plan).numpy(),
        mm_per_px=2 * PLATEAU_MM / sum(plan.framing.plateau_px),
        laterality="B",
        view="AP",
        series="phantom",
        polarity_tag="MONOCHROME2",
    )
    return Phantom(film, true_knees(plan), plan.negative, plan.hardware)


def true_knees(plan: FilmPlan) -> tuple[Knee, Knee]:
    """Return the ground truth of a planned film without rendering it."""
    left, right = (_true_knee(plan, side) for side in (0, 1))
    return left, right


def _true_knee(plan: FilmPlan, side: int) -> Knee:
    (x0, y0), (x1, y1) = ends = sorted(
        to_film(plan, side, point) for point in plateau_margins(plan.shapes[side])
    )
    return Knee(
        side=SIDES[side],
        laterality=LATERALITY[side],
        plateau_left=ends[0],
        plateau_right=ends[1],
        centre=((x0 + x1) / 2, (y0 + y1) / 2),
        rotation_deg=math.degrees(math.atan2(y1 - y0, x1 - x0)),
        grade=plan.grades[side],
    )
