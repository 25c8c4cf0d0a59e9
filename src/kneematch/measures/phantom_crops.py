"""Attenuation maps of single phantom knees with their exact outlines, to learn outlines from."""

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kneematch.synthetic.anatomy import (
    MIN_RIM_SEPARATION,
    KneeShape,
    condyle_line,
    femur_outline,
    plateau_line,
    plateau_margins,
    spine_height,
    tibia_outline,
)
from kneematch.synthetic.film_plan import plan_film
from kneematch.synthetic.leg import draw_leg

Array = NDArray[np.float64]

# The border of the plateau is its floor, where readers draw it, and not its upper rim.
FLOOR: Final = 0.7  # of the rim's height
SPINE_START: Final = (
    0.025  # height at which the border follows the spines' crest, in plateau widths
)
CONDYLE_END: Final = 0.43  # |u| beyond which the joint space is open
OPENING: Final = 0.25  # how fast it opens there, v per u
FEMUR_ENDS_V: Final = -0.13  # the sides of the femur are known above it
TIBIA_STARTS_V: Final = 0.04  # and those of the tibia below it


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
    first = replace(plan.legs[0].place, plateau_px=float(extent.px))
    legs = replace(plan.legs[0], place=first, implant=""), plan.legs[1]
    plan = replace(plan, legs=legs)
    corner = -extent.width / 2
    size = extent.size, extent.size
    leg = draw_leg(size, (corner, corner), plan, 0)
    places = corner + (np.arange(extent.size) + 0.5) / extent.px
    shape = plan.legs[0].shape
    femur, tibia = borders(shape, places)
    outlines = femur, tibia, bone_sides(shape, places), np.array(plateau_margins(shape))
    return leg.half().numpy(), *((outline - corner) * extent.px for outline in outlines)


def borders(shape: KneeShape, u: Array) -> tuple[Array, Array]:
    """Return v of the femur's lower border and of the tibia's upper border at u, both (K,)."""
    spines = spine_height(shape, u)
    on_spines = np.clip(spines / SPINE_START, 0, 1)
    floor = FLOOR * max(shape.rim_separation, MIN_RIM_SEPARATION)
    tibia = plateau_line(shape, u) - spines + floor * (1 - on_spines)
    ends = np.clip(u, -CONDYLE_END, CONDYLE_END)
    opened = condyle_line(shape, ends) - OPENING * np.abs(u - ends)
    return np.maximum(condyle_line(shape, u), opened), tibia


def bone_sides(shape: KneeShape, v: Array) -> Array:
    """Return u of the lateral and medial side of femur and tibia at v, (2, K); NaN between."""
    sides = np.where(v < 0, femur_outline(shape, v), tibia_outline(shape, v))
    sides[:, (v > FEMUR_ENDS_V) & (v < TIBIA_STARTS_V)] = np.nan
    return sides
