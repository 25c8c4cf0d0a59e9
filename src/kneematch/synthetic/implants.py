"""Metal in knees: total and partial replacements, plates and nails."""

from itertools import pairwise
from typing import Final

import numpy as np
import torch
from torch import Tensor

from kneematch.synthetic.anatomy import KneeShape
from kneematch.synthetic.rods import Rod, add_rods
from kneematch.synthetic.solids import Grid

SATURATED: Final = 2.8  # attenuation above which metal is no denser


def add_implant(
    grid: Grid, attenuation: Tensor, shape: KneeShape, kind: str, rng: np.random.Generator
) -> None:
    """Add "total", "partial", "plate" or "nail" to a leg's attenuation (H, W), in place."""
    rods = {"total": _total, "partial": _partial, "plate": _plate, "nail": _nail}[kind](shape, rng)
    metal = torch.zeros_like(attenuation)
    add_rods(grid, metal, rods)
    attenuation += metal.clamp_(max=SATURATED)


def _metal(u0: float, v0: float, u1: float, v1: float, *radius: float) -> Rod:
    return Rod((u0, v0), (u1, v1), (radius[0], radius[-1]), wall=1.0, material="metal")


def _total(shape: KneeShape, rng: np.random.Generator) -> list[Rod]:
    """A femoral shield, and a tibial tray with its stem; the inlay between is radiolucent."""
    tray, top, wide = rng.uniform(0.02, 0.08), rng.uniform(-0.5, -0.36), rng.uniform(0.43, 0.47)
    apex = rng.uniform(-0.18, 0.08)
    return [
        *(_metal(u, -0.31, u * 1.02, -0.165, 0.17, 0.15) for u in (-0.28, 0.30)),
        *(_metal(u, -0.26, u * 1.1, -0.10, 0.10, 0.07) for u in (-0.36, -0.2, 0.22, 0.38)),
        _metal(apex, top + 0.2, 0.0, -0.3, 0.2, 0.28),
        _metal(-wide, tray, wide, tray, 0.028),
        _metal(0.0, tray + 0.04, rng.normal(0, 0.02), tray + rng.uniform(0.35, 0.65), 0.2, 0.05),
    ]


def _partial(shape: KneeShape, rng: np.random.Generator) -> list[Rod]:
    """A curved piece on one condyle and a small tray with pegs, mostly medial."""
    side = 1.0 if rng.random() < 0.85 else -1.0
    tray, end = rng.uniform(0.03, 0.07), rng.uniform(0.44, 0.5)
    return [
        _metal(side * 0.36, rng.uniform(-0.42, -0.34), side * 0.32, -0.13, 0.075, 0.09),
        _metal(side * 0.34, -0.14, side * 0.28, -0.09, 0.07),
        _metal(side * 0.17, tray, side * end, tray, 0.025),
        *(_metal(side * u, tray, side * u, tray + 0.08, 0.025) for u in (0.25, 0.37)),
    ]


def _plate(shape: KneeShape, rng: np.random.Generator) -> list[Rod]:
    """A buttress plate at the tibia or at the femur, with screws."""
    side, down = float(rng.choice([-1, -1, 1])), 1.0 if rng.random() < 0.7 else -1.0
    start = 0.06 if down > 0 else -0.12
    line = [(0.53, start), (0.49, start + down * 0.2), (0.34, start + down * 0.45)]
    line += [(0.25, start + down * 0.85), (0.22, start + down * rng.uniform(1.1, 2.2))]
    rods = [_metal(side * u0, v0, side * u1, v1, 0.03) for (u0, v0), (u1, v1) in pairwise(line)]
    for share in (0.02, 0.06, 0.3, 0.55, 0.75):
        v = start + down * (0.03 + 1.3 * share)
        u = float(np.interp(abs(v - start), [0.0, 0.2, 0.45, 0.85, 2.2], [p[0] for p in line]))
        length = 0.85 if share < 0.1 else 0.45
        rods.append(_metal(side * u, v, side * (u - length), v + rng.normal(0, 0.03), 0.025))
    return rods


def _nail(shape: KneeShape, rng: np.random.Generator) -> list[Rod]:
    """An intramedullary nail in the tibia or in the femur, and its locking screws."""
    if rng.random() < 0.7:
        far, start, axis = 4.2, rng.uniform(0.08, 0.2), 0.09 + 4 * shape.tibia_shear
        screws = (0.35, 0.55)
        near = 0.04
    else:
        far, start, axis = -4.2, rng.uniform(-0.35, -0.2), -0.25 - 3.7 * shape.femur_shear
        screws, near = (-0.4, -0.6), 0.02
    return [
        _metal(near, start, axis, far, 0.055),
        *(_metal(-0.3, v, 0.33, v + rng.normal(0.02, 0.03), 0.022) for v in screws),
    ]
