"""Exact outlines of the bones at a phantom's knee joints, in pixels of the picture."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from kneematch.synthetic.anatomy import (
    Array,
    femur_border,
    femur_outline,
    tibia_border,
    tibia_outline,
)
from kneematch.synthetic.film_plan import FilmPlan, Leg
from kneematch.synthetic.phantom import exposed_legs, to_picture

JOINT_U: Final = (-0.5, 0.5)  # extent of the borders along the joint
FEMUR_V: Final = (-1.2, -0.13)  # extent of the femur's sides
TIBIA_V: Final = (0.02, 1.2)
SPACING: Final = 0.005  # of the points, in plateau widths


@dataclass(frozen=True, slots=True, eq=False)
class Outlines:
    """Polylines (N, 2) of points (x, y) in pixels of the picture, pixel centres at +0.5."""

    femur: Array  # lower border of the condyles, notch included, from lateral to medial
    tibia: Array  # upper border of the plateau, spines included, from lateral to medial
    femur_lateral: Array  # sides of the bones, from above to below
    femur_medial: Array
    tibia_lateral: Array
    tibia_medial: Array


def true_outlines(plan: FilmPlan) -> tuple[Outlines, ...]:
    """Return the outlines of each of `phantom.true_knees(plan)`, in their order."""
    return tuple(_outlines(plan, leg) for leg in exposed_legs(plan))


def _outlines(plan: FilmPlan, leg: Leg) -> Outlines:
    u, above, below = (
        np.linspace(*ends, round((ends[1] - ends[0]) / SPACING) + 1)
        for ends in (JOINT_U, FEMUR_V, TIBIA_V)
    )
    borders = [(u, femur_border(leg.shape, u)), (u, tibia_border(leg.shape, u))]
    sides = [(side, above) for side in femur_outline(leg.shape, above)]
    sides += [(side, below) for side in tibia_outline(leg.shape, below)]
    return Outlines(
        *(
            np.array([to_picture(plan, leg, (x, y)) for x, y in zip(*line, strict=True)])
            for line in borders + sides
        )
    )
