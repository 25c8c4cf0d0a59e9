"""X-ray attenuation of the soft tissue of a leg: skin outline, fat and muscles."""

import numpy as np
from torch import Tensor

from kneematch.synthetic.phantom.anatomy import LEG_AT, Array, Shape
from kneematch.synthetic.phantom.outlines import femur_outline, fibula_outline, tibia_outline
from kneematch.synthetic.phantom.shapes import Canvas, spline, tube

SOFT = 1.45  # attenuation of a chord one plateau width (75 mm) long
FAT = 0.84  # of that of muscle
FEATHER = 0.04

# v, and the lateral and medial outline there in parts of the leg's half width
MUSCLES: tuple[tuple[Array, Array, Array], ...] = tuple(
    (np.array(at), np.array(left), np.array(right))
    for at, left, right in (
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
    canvas: Canvas, attenuation: Tensor, shape: Shape, cloud: Tensor, room: float
) -> None:
    """Add the leg without its bones to the attenuation (H, W), in place.

    `cloud` (H, W) is the unevenness of the tissue, 1 on average; `room` is the u at which
    the leg would meet the other one, which presses it flat.
    """
    thigh = np.clip(-LEG_AT / 1.2, 0, 1)
    girth = shape.girth[0] + (shape.girth[1] - 1) * thigh
    sway = shape.tibia_lean[0] * np.clip(LEG_AT, 0, None) + shape.femur_lean[0] * np.clip(
        LEG_AT, None, 0
    )
    skin = [shape.leg_lateral * girth + sway, shape.leg_medial * girth + sway]
    skin[0] = np.minimum(skin[0], _outermost(shape, 0) - 0.10)
    skin[1] = np.minimum(np.maximum(skin[1], _outermost(shape, 1) + 0.14), room)
    middle, half = 0.5 * (skin[0] + skin[1]), 0.5 * (skin[1] - skin[0])
    fat = np.clip(shape.fat, 0.04, None)
    left, right = (canvas.along(spline(canvas.rows, LEG_AT, side)) for side in skin)
    deep = half * np.interp(LEG_AT, [-1.5, 0, 1.3, 4], [1.8, 1.72, 1.75, 1.8])
    depth = canvas.along(spline(canvas.rows, LEG_AT, deep))
    # A leg is thicker on its outer side, and falls off more steeply there.
    skew = 1 - 0.33 * canvas.u.clamp(-1, 1)
    square = (canvas.u * -8).sigmoid_().mul_(0.5)
    leg = tube(canvas.u, left, right, depth, square, FEATHER).mul_(skew * FAT)
    lean = tube(canvas.u, left + fat[0], right - fat[1], depth - 0.1, square).mul_(skew)
    attenuation += leg.add_(lean, alpha=(1 - FAT) * 0.6).mul_(cloud).mul_(SOFT)
    inset = float(fat.mean())
    for muscle in MUSCLES:
        _add_muscle(canvas, attenuation, muscle, (middle, half - inset))


def _add_muscle(
    canvas: Canvas,
    attenuation: Tensor,
    muscle: tuple[Array, Array, Array],
    leg: tuple[Array, Array],
) -> None:
    """Add what a muscle attenuates more than fat; `leg` is its middle and half width at LEG_AT."""
    at, lateral, medial = muscle
    middle, half = (np.interp(at, LEG_AT, values) for values in leg)
    left, right = middle + lateral * half, middle + medial * half
    part = canvas.part(float(left.min()), float(right.max()), at[0], at[-1])
    if part is None:
        return
    ends = np.clip(np.minimum(part.rows - at[0], at[-1] - part.rows) / 0.3, 0, 1)
    deep = part.along(np.interp(part.rows, at, right - left) * ends)
    lateral_side, medial_side = (
        part.along(np.interp(part.rows, at, side)) for side in (left, right)
    )
    chord = tube(part.u, lateral_side, medial_side, deep)
    attenuation[part.box] += chord.mul_(SOFT * (1 - FAT) * 0.85)


def _outermost(shape: Shape, side: int) -> Array:
    """u of the outermost bone at LEG_AT, on the lateral side (0) or the medial one (1)."""
    femur = femur_outline(shape, np.clip(LEG_AT, None, 0.0))[side]
    tibia = tibia_outline(shape, np.clip(LEG_AT, 0.05, None))[side]
    bones = np.where(LEG_AT < 0, femur, tibia)
    fibula = np.where(LEG_AT > 0.1, fibula_outline(shape, np.clip(LEG_AT, 0.1, None))[side], bones)
    pick = (np.minimum, np.maximum)[side]
    outermost: Array = pick(bones, fibula)
    return outermost
