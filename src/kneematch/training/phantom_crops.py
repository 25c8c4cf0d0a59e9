"""Attenuation maps of single phantom knees with their exact outlines, to learn outlines from."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kneematch.knee.outlines import Array, Outlines
from kneematch.models.outlines import JOINT_FRAME, LEG_FRAME, CropFrame
from kneephantoms.anatomy import (
    KneeShape,
    femur_border,
    femur_outline,
    spine_height,
    surface_ends,
    tibia_border,
    tibia_outline,
)
from kneephantoms.film_plan import FilmPlan, Leg, plan_film
from kneephantoms.leg import render_leg
from kneephantoms.rendering import exposed_legs, to_picture

# Readers draw borders where the film is steepest: a little inside the femur, whose edge is thin,
# and on the upper edge of the tibia's bright subchondral line. In plateau widths. The femur's is
# where profiles across it on phantom films are steepest; the tibia's, whose edge is less sharp in
# phantoms, was chosen on the 43 real crops of lab/measure.py.
FEMUR_EDGE: Final = 0.0026
TIBIA_EDGE: Final = 0.0045
# On the flanks of the spines the beam leaves the bone gradually, and the film is steepest below the
# border: by so much from this height of a spine on, and by less on lower parts.
FLANK_EDGE: Final = 0.0083
FLANK_HEIGHT: Final = 0.025
FEMUR_ENDS_V: Final = -0.13  # the sides of the femur are known above it
TIBIA_STARTS_V: Final = 0.04  # and those of the tibia below it
FARTHEST_V: Final = 1.6  # to which true outlines follow the shafts


@dataclass(frozen=True, slots=True)
class Extent:
    """The part of a knee that a map shows, and the crops that are cut from it."""

    width: float  # in plateau widths
    px: int  # pixels per plateau width
    frame: CropFrame

    @property
    def size(self) -> int:
        """Number of rows and of columns."""
        return round(self.width * self.px)


JOINT: Final = Extent(1.6, 240, JOINT_FRAME)
LEG: Final = Extent(3.8, 80, LEG_FRAME)


@dataclass(frozen=True, slots=True, eq=False)
class KneeMaps:
    """N knees, lateral on the left; positions in pixels from a map's top left corner.

    Outlines are NaN where the bone has none.
    """

    extent: Extent
    pixels: Tensor  # (N, S, S), half precision
    femur: Tensor  # (N, S) y of the lower border in each column
    tibia: Tensor  # (N, S) y of the upper border
    sides: Tensor  # (N, 2, S) x of the left and right side in each row
    margins: Tensor  # (N, 2, 2) left and right end (x, y) of the tibial plateau
    are_films: bool = False  # pixels are the greys of real films instead of attenuation

    def to(self, device: str | torch.device) -> "KneeMaps":
        """Return the maps on a device."""
        names = "pixels", "femur", "tibia", "sides", "margins"
        return replace(self, **{name: getattr(self, name).to(device) for name in names})


def render_maps(
    seeds: Sequence[int],
    extent: Extent,
    apply: Callable[[Callable[[int], Any], Sequence[int]], Iterable[Any]] = map,
) -> KneeMaps:
    """Render the left knees of the phantoms of seeds.

    `apply` works as `map`; that of a pool of processes renders several knees at a time.
    """
    knees = apply(partial(_render, extent), seeds)
    parts = (torch.from_numpy(np.stack(part)) for part in zip(*knees, strict=True))
    pixels, femur, tibia, sides, margins = parts
    return KneeMaps(extent, pixels, femur.float(), tibia.float(), sides.float(), margins.float())


def _render(extent: Extent, seed: int) -> tuple[NDArray[Any], ...]:
    plan = plan_film(seed)
    legs = tuple(
        replace(leg, implant="", place=replace(leg.place, plateau_px=float(extent.px)))
        for leg in plan.legs
    )
    corner, size, shape = -extent.width / 2, (extent.size, extent.size), legs[0].shape
    attenuation = render_leg(size, (corner, corner), replace(plan, legs=legs), 0)
    places = corner + (np.arange(extent.size) + 0.5) / extent.px
    outlines = *borders(shape, places), bone_sides(shape, places), np.array(surface_ends(shape))
    return attenuation.half().numpy(), *((each - corner) * extent.px for each in outlines)


def borders(shape: KneeShape, u: Array) -> tuple[Array, Array]:
    """Return v of the femur's lower border and of the tibia's upper border at u, both (K,)."""
    flank = FLANK_EDGE * (spine_height(shape, u) / FLANK_HEIGHT).clip(0, 1)
    return femur_border(shape, u) - FEMUR_EDGE, tibia_border(shape, u) - TIBIA_EDGE + flank


def bone_sides(shape: KneeShape, v: Array) -> Array:
    """Return u of the lateral and medial side of femur and tibia at v, (2, K); NaN between."""
    sides = np.where(v < 0, femur_outline(shape, v), tibia_outline(shape, v))
    sides[:, (v > FEMUR_ENDS_V) & (v < TIBIA_STARTS_V)] = np.nan
    return sides


def true_outlines(plan: FilmPlan) -> tuple[Outlines, ...]:
    """Return the exact outlines of the knees `phantom.true_knees(plan)`, in their order."""
    return tuple(_true_outlines(plan, leg) for leg in exposed_legs(plan))


def _true_outlines(plan: FilmPlan, leg: Leg) -> Outlines:
    def in_picture(u: Array, v: Array) -> Array:
        return np.array([to_picture(plan, leg, point) for point in zip(u, v, strict=True)])

    def sides(first: float, last: float) -> tuple[Array, Array]:
        v = np.linspace(first, last, 201)
        left, right = [in_picture(side, v) for side in bone_sides(leg.shape, v)][::step]
        return left, right

    (lateral, _), (medial, _) = surface_ends(leg.shape)
    u = np.linspace(lateral, medial, 401)
    femur, tibia = (in_picture(u, line) for line in borders(leg.shape, u))
    step = 1 if tibia[0, 0] < tibia[-1, 0] else -1  # from the picture's left to its right
    return Outlines(
        femur[::step],
        tibia[::step],
        "right" if step == 1 else "left",
        femur_sides=sides(-FARTHEST_V, FEMUR_ENDS_V),
        tibia_sides=sides(TIBIA_STARTS_V, FARTHEST_V),
    )
