"""Synthetic bilateral knee radiographs whose knees are known exactly."""

import math
from dataclasses import dataclass

import torch

from kneematch.io.radiograph import Radiograph
from kneematch.synthetic.phantom.film import KINDS, LETTERS, PLATEAU_MM, Plan, plan
from kneematch.synthetic.phantom.outlines import margins
from kneematch.synthetic.phantom.rendering import render, to_film

__all__ = ["KINDS", "Knee", "Phantom", "Plan", "knees_of", "phantom", "plan", "render"]


@dataclass(frozen=True, slots=True)
class Knee:
    """The truth about one knee; points (x, y) in film pixels, pixel centres at +0.5."""

    side: str  # "left" or "right" half of the picture
    laterality: str  # the patient's side, "R" or "L"
    plateau_left: tuple[
        float, float
    ]  # outermost margins of the tibial plateau, osteophytes included
    plateau_right: tuple[float, float]
    centre: tuple[float, float]  # midpoint of the margins
    rotation_deg: float  # of the line through the margins, picture clockwise positive
    grade: int  # KL-like, 0..4


@dataclass(frozen=True, slots=True, eq=False)
class Phantom:
    """A synthetic film and its truth."""

    radiograph: Radiograph
    knees: tuple[Knee, Knee]  # the picture's left one first
    negative: bool  # bones are dark, although the polarity tag claims otherwise
    hardware: str | None  # "plate", "prosthesis", "nail" or None


def phantom(
    seed: int,
    *,
    size: tuple[int, int] | None = None,
    family: int | None = None,
    kind: str | None = None,
    device: torch.device | str = "cpu",
) -> Phantom:
    """Make the film of a seed; films of one family share their bones' shape but for details.

    A kind is one of KINDS, how the film is framed; else any, as often as it is met.
    """
    drawn = plan(seed, size, family, kind)
    film = Radiograph(
        pixels=render(drawn, device).cpu().numpy(),
        mm_per_px=2 * PLATEAU_MM / sum(drawn.framing.plateau_px),
        laterality="B",
        view="AP",
        series="phantom",
        polarity_tag="MONOCHROME2",
    )
    return Phantom(film, knees_of(drawn), drawn.negative, drawn.hardware)


def knees_of(drawn: Plan) -> tuple[Knee, Knee]:
    """The truth of a plan, without rendering it."""
    return _knee(drawn, 0), _knee(drawn, 1)


def _knee(drawn: Plan, side: int) -> Knee:
    ends = [to_film(drawn, side, point) for point in margins(drawn.shapes[side])]
    (x0, y0), (x1, y1) = sorted(ends)
    return Knee(
        side=("left", "right")[side],
        laterality=LETTERS[side],
        plateau_left=(x0, y0),
        plateau_right=(x1, y1),
        centre=((x0 + x1) / 2, (y0 + y1) / 2),
        rotation_deg=math.degrees(math.atan2(y1 - y0, x1 - x0)),
        grade=drawn.grades[side],
    )
