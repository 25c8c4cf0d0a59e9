"""X-ray attenuation of a leg's soft tissue: subcutaneous fat and muscles inside the skin."""

from typing import Final

import numpy as np
from torch import Tensor

from kneematch.synthetic.phantom.anatomy import (
    SKIN_V,
    Array,
    KneeShape,
    catmull_rom,
    femur_outline,
    fibula_outline,
    tibia_outline,
)
from kneematch.synthetic.phantom.solids import Grid, tube_chord

MUSCLE_ATTENUATION: Final = 1.45  # of a chord one plateau width (75 mm) long
FAT_RATIO: Final = 0.84  # attenuation of fat over that of muscle
SKIN_SOFTNESS: Final = 0.04

# v, and the lateral and medial outline there as fractions of the leg's half width
MUSCLES: Final[tuple[tuple[Array, Array, Array], ...]] = tuple(
    (np.array(v), np.array(lateral), np.array(medial))
    for v, lateral, medial in (
        # vastus lateralis and medialis
        ((-4.5, -2.0, -1.0, -0.55), (-0.9, -0.88, -0.8, -0.62), (-0.1, -0.2, -0.4, -0.6)),
        ((-4.5, -2.0, -1.0, -0.5), (0.1, 0.1, 0.25, 0.6), (0.8, 0.8, 0.86, 0.64)),
        # the two heads of gastrocnemius, tibialis anterior
        ((0.1, 0.5, 1.3, 2.2, 3.2), (0.3, 0.1, 0.0, 0.1, 0.3), (0.35, 0.75, 0.93, 0.8, 0.4)),
        ((0.1, 0.5, 1.3, 2.2, 3.0), (-0.5, -0.7, -0.75, -0.6, -0.3), (-0.4, -0.1, 0.0, 0.0, -0.1)),
        ((0.3, 0.8, 1.5, 3.0, 4.5), (-0.7, -0.92, -0.94, -0.8, -0.6), (-0.6, -0.3, -0.2, -0.2, 0)),
    )
)


def add_soft_tissue(
    grid: Grid, attenuation: Tensor, shape: KneeShape, texture: Tensor, midline_u: float
) -> None:
    """Add the leg without its bones to the attenuation (H, W), in place.

    Args:
        grid: the pixels of `attenuation`.
        attenuation: (H, W), changed in place.
        shape: the knee.
        texture: (H, W) unevenness of the tissue, 1 on average.
        midline_u: where the leg touches the other one and is flattened.
    """
    skin = _skin(shape, midline_u)
    middle, half = 0.5 * (skin[0] + skin[1]), 0.5 * (skin[1] - skin[0])
    fat = np.clip(shape.fat, 0.04, None)
    left, right = (grid.per_row(catmull_rom(grid.rows, SKIN_V, side)) for side in skin)
    thickness = half * np.interp(SKIN_V, [-1.5, 0, 1.3, 4], [1.8, 1.72, 1.75, 1.8])
    depth = grid.per_row(catmull_rom(grid.rows, SKIN_V, thickness))
    # A leg is thicker on its lateral side, and its edge is steeper there.
    skew = 1 - 0.33 * grid.u.clamp(-1, 1)
    squareness = (grid.u * -8).sigmoid_().mul_(0.5)
    leg = tube_chord(grid.u, left, right, depth, squareness, SKIN_SOFTNESS).mul_(skew * FAT_RATIO)
    lean = tube_chord(grid.u, left + fat[0], right - fat[1], depth - 0.1, squareness).mul_(skew)
    leg.add_(lean, alpha=(1 - FAT_RATIO) * 0.6)
    attenuation += leg.mul_(texture).mul_(MUSCLE_ATTENUATION)
    inset = float(fat.mean())
    for muscle in MUSCLES:
        _add_muscle(grid, attenuation, muscle, (middle, half - inset))


def _skin(shape: KneeShape, midline_u: float) -> tuple[Array, Array]:
    """Return u of the lateral and medial skin at SKIN_V, outside of all bones."""
    thigh = np.clip(-SKIN_V / 1.2, 0, 1)
    girth = shape.girth[0] + (shape.girth[1] - 1) * thigh
    femur, tibia = np.clip(SKIN_V, None, 0), np.clip(SKIN_V, 0, None)
    shear = shape.tibia_shear * tibia + shape.femur_shear * femur
    lateral, medial = shape.skin_lateral * girth + shear, shape.skin_medial * girth + shear
    lateral = np.minimum(lateral, _outermost_bone(shape, 0) - 0.10)
    medial = np.maximum(medial, _outermost_bone(shape, 1) + 0.14)
    return lateral, np.minimum(medial, midline_u)


def _add_muscle(
    grid: Grid,
    attenuation: Tensor,
    muscle: tuple[Array, Array, Array],
    leg: tuple[Array, Array],
) -> None:
    """Add what a muscle attenuates more than fat; `leg` is its middle and half width at SKIN_V."""
    v, lateral, medial = muscle
    middle, half = (np.interp(v, SKIN_V, values) for values in leg)
    left, right = middle + lateral * half, middle + medial * half
    part = grid.crop(float(left.min()), float(right.max()), v[0], v[-1])
    if part is None:
        return
    ends = np.clip(np.minimum(part.rows - v[0], v[-1] - part.rows) / 0.3, 0, 1)
    depth = part.per_row(np.interp(part.rows, v, right - left) * ends)
    lateral_side, medial_side = (
        part.per_row(np.interp(part.rows, v, side)) for side in (left, right)
    )
    chord = tube_chord(part.u, lateral_side, medial_side, depth)
    attenuation[part.box] += chord.mul_(MUSCLE_ATTENUATION * (1 - FAT_RATIO) * 0.85)


def _outermost_bone(shape: KneeShape, side: int) -> Array:
    """Return u of the outermost bone at SKIN_V on the lateral side (0) or the medial one (1)."""
    femur = femur_outline(shape, np.clip(SKIN_V, None, 0.0))[side]
    tibia = tibia_outline(shape, np.clip(SKIN_V, 0.05, None))[side]
    fibula = fibula_outline(shape, np.clip(SKIN_V, 0.1, None))[side]
    bones = np.where(SKIN_V < 0, femur, tibia)
    outermost: Array = (np.minimum, np.maximum)[side](bones, np.where(SKIN_V > 0.1, fibula, bones))
    return outermost
