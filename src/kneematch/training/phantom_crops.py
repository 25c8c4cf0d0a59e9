"""Attenuation maps of single phantom knees with their exact outlines, to learn outlines from."""

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kneematch.knee.outlines import Array, Outlines
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
from kneephantoms.leg import draw_leg
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
    """The part of a knee that a map shows, in plateau widths, and its pixels per plateau width."""

    width: float
    px: int

    @property
    def size(self) -> int:
        """Number of rows and of columns."""
        return round(self.width * self.px)


JOINT: Final = Extent(width=1.6, px=240)
LEG: Final = Extent(width=3.8, px=80)


@dataclass(frozen=True, slots=True, eq=False)
class KneeMaps:
    """N knees, lateral on the left; positions in pixels from a map's top left corner.

    Outlines are NaN where the bone has none.
    """

    extent: Extent
    attenuation: Tensor  # (N, S, S), half precision
    femur: Tensor  # (N, S) y of the lower border in each column
    tibia: Tensor  # (N, S) y of the upper border
    sides: Tensor  # (N, 2, S) x of the left and right side in each row
    margins: Tensor  # (N, 2, 2) left and right end (x, y) of the tibial plateau

    def to(self, device: str | torch.device) -> "KneeMaps":
        """Return the maps on a device."""
        moved = (
            getattr(self, name).to(device)
            for name in ("attenuation", "femur", "tibia", "sides", "margins")
        )
        return KneeMaps(self.extent, *moved)


def draw_maps(seeds: Sequence[int], extent: Extent, workers: int = 0) -> KneeMaps:
    """Draw the left knees of the phantoms of seeds, in worker processes if there are any."""
    jobs = [(seed, extent) for seed in seeds]
    if workers:
        with ProcessPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            drawn = list(pool.map(_draw, jobs, chunksize=32))
    else:
        drawn = [_draw(job) for job in jobs]
    attenuation, *outlines = (np.stack(part) for part in zip(*drawn, strict=True))
    return KneeMaps(
        extent,
        torch.from_numpy(attenuation),
        *(torch.from_numpy(outline).float() for outline in outlines),
    )


def _draw(job: tuple[int, Extent]) -> tuple[NDArray[Any], ...]:
    seed, extent = job
    plan = plan_film(seed)
    legs = tuple(
        replace(leg, implant="", place=replace(leg.place, plateau_px=float(extent.px)))
        for leg in plan.legs
    )
    corner = -extent.width / 2
    size = extent.size, extent.size
    drawn = draw_leg(size, (corner, corner), replace(plan, legs=legs), 0)
    places = corner + (np.arange(extent.size) + 0.5) / extent.px
    shape = legs[0].shape
    outlines = (
        *borders(shape, places),
        bone_sides(shape, places),
        np.array(surface_ends(shape)),
    )
    return drawn.half().numpy(), *((outline - corner) * extent.px for outline in outlines)


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

    (lateral, _), (medial, _) = surface_ends(leg.shape)
    u = np.linspace(lateral, medial, 401)
    femur, tibia = (in_picture(u, line) for line in borders(leg.shape, u))
    order = slice(None) if tibia[0, 0] < tibia[-1, 0] else slice(None, None, -1)
    sides = []
    for v in (
        np.linspace(-FARTHEST_V, FEMUR_ENDS_V, 201),
        np.linspace(TIBIA_STARTS_V, FARTHEST_V, 201),
    ):
        both = [in_picture(side, v) for side in bone_sides(leg.shape, v)]
        sides.append((both[0], both[1]) if order == slice(None) else (both[1], both[0]))
    known = "right" if order == slice(None) else "left"
    return Outlines(femur[order], tibia[order], known, femur_sides=sides[0], tibia_sides=sides[1])
