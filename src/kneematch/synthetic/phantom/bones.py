"""X-ray attenuation of the four bones of a knee, cortex and trabecular core apart."""

import numpy as np
import torch
from torch import Tensor

from kneematch.synthetic.phantom.anatomy import Array, Shape
from kneematch.synthetic.phantom.joint import (
    CORTICAL,
    TRABECULAR,
    add_condyles,
    add_plateau,
    plateau_cover,
)
from kneematch.synthetic.phantom.outlines import (
    condyle_line,
    femur_outline,
    fibula_outline,
    tibia_outline,
)
from kneematch.synthetic.phantom.shapes import Canvas, dome, ellipsoid, shell, tube


def add_bones(canvas: Canvas, attenuation: Tensor, shape: Shape, grain: Tensor) -> None:
    """Add femur, tibia, fibula and patella to the attenuation (H, W), in place.

    `grain` (H, W) is the trabecular texture: 1 on average.
    """
    _add_femur(canvas, attenuation, shape, grain)
    add_condyles(canvas, attenuation, shape)
    _add_tibia(canvas, attenuation, shape, grain)
    add_plateau(canvas, attenuation, shape)
    _add_fibula(canvas, attenuation, shape, grain)
    _add_patella(canvas, attenuation, shape)


def _hollow(
    part: Canvas,
    outline: tuple[Array, Array],
    depth: Tensor,
    wall: Tensor,
    square: float,
) -> tuple[Tensor, Tensor]:
    """Chords through a whole tube, and through its core inside the walls."""
    left, right = (part.along(side) for side in outline)
    # The canal is rounder than the bone, so the wall fades inwards.
    core = tube(part.u, left + wall, right - wall, depth - 2 * wall, 0.4 * square)
    return tube(part.u, left, right, depth, square), core


def _fill(part: Canvas, attenuation: Tensor, whole: Tensor, core: Tensor, mineral: Tensor) -> None:
    """Add a tube whose core holds trabecular bone and whose wall is cortical, in place."""
    cortex = whole.sub_(core).clamp_(min=0)
    attenuation[part.box] += core.mul_(mineral).add_(cortex, alpha=CORTICAL)


def _reach(
    canvas: Canvas, outline: tuple[Array, Array], v0: float, v1: float
) -> tuple[Canvas, tuple[Array, Array]] | None:
    """The box that holds what lies between two outlines over the rows, and these cut to it."""
    left, right = float(outline[0].min()), float(outline[1].max())
    part = canvas.part(left - 0.01, right + 0.01, v0, v1)
    if part is None:
        return None
    return part, (outline[0][part.box[0]], outline[1][part.box[0]])


def _add_femur(canvas: Canvas, attenuation: Tensor, shape: Shape, grain: Tensor) -> None:
    cut = _reach(canvas, femur_outline(shape, np.clip(canvas.rows, -4.5, 0.05)), -4.5, 0.05)
    if cut is None:
        return
    part, outline = cut
    depth = part.profile((-4.5, -1.4, -0.9, -0.5, -0.1), (0.38, 0.38, 0.44, 0.64, 0.63))
    wall = part.profile(
        (-4.5, -2.0, -1.3, -0.9, -0.6, 0.0), (0.07, 0.065, 0.042, 0.020, 0.008, 0.007)
    ) * float(shape.cortex[0])
    whole, core = _hollow(part, outline, depth, wall, 0.8)
    marrow = part.profile((-2.2, -1.2, -0.6, 0.0), (0.15, 0.45, 0.9, 1.0))
    mineral = grain[part.box] * (marrow * (TRABECULAR * float(shape.density[0])))
    end = part.part(-9.0, 9.0, -0.45, 9.0)
    if end is not None:
        height = end.across(condyle_line(shape, end.columns)) - end.v
        whole[end.box].mul_(dome(height, 0.10))
        core[end.box].mul_(dome(height - 0.012, 0.11))
    _fill(part, attenuation, whole, core, mineral)


def _add_tibia(canvas: Canvas, attenuation: Tensor, shape: Shape, grain: Tensor) -> None:
    cut = _reach(canvas, tibia_outline(shape, np.clip(canvas.rows, -0.2, 5.0)), -0.2, 5.0)
    if cut is None:
        return
    part, outline = cut
    depth = part.profile((-0.1, 0.1, 0.4, 0.8, 1.4, 5.0), (0.66, 0.66, 0.54, 0.42, 0.38, 0.36))
    wall = part.profile(
        (-0.1, 0.2, 0.4, 0.7, 1.2, 2.0, 5.0), (0.006, 0.008, 0.020, 0.045, 0.068, 0.075, 0.065)
    ) * float(shape.cortex[0])
    whole, core = _hollow(part, outline, depth, wall, 0.7)
    marrow = part.profile((0.0, 0.35, 0.7, 1.2, 2.0), (0.88, 0.86, 0.68, 0.42, 0.22))
    mineral = grain[part.box] * (marrow * (TRABECULAR * float(shape.density[0])))
    end = part.part(-9.0, 9.0, -9.0, 0.4)
    if end is not None:
        cover = plateau_cover(end, shape)
        whole[end.box].mul_(cover)
        core[end.box].mul_(cover)
    _fill(part, attenuation, whole, core, mineral)


def _add_fibula(canvas: Canvas, attenuation: Tensor, shape: Shape, grain: Tensor) -> None:
    cut = _reach(canvas, fibula_outline(shape, np.clip(canvas.rows, 0.1, 5.0)), 0.1, 5.0)
    if cut is None:
        return
    part, outline = cut
    depth = part.profile((0.15, 0.4, 0.7, 5.0), (0.24, 0.28, 0.19, 0.18))
    wall = part.profile((0.1, 0.35, 0.6, 1.0, 5.0), (0.012, 0.014, 0.024, 0.032, 0.036)) * float(
        shape.cortex[0]
    )
    whole, core = _hollow(part, outline, depth, wall, 0.3)
    end = part.part(-9.0, 9.0, -9.0, 0.6)
    if end is not None:
        off = end.u + 0.47 - float(shape.turn[0])  # from the styloid tip
        height = end.v - (0.17 + 0.6 * off**2 + torch.where(off < 0, -0.75 * off, 0.35 * off))
        whole[end.box].mul_(dome(height, 0.08))
        core[end.box].mul_(dome(height - 0.014, 0.08))
    marrow = part.profile((0.2, 0.45, 0.8), (0.9, 0.7, 0.15))
    mineral = grain[part.box] * (marrow * (TRABECULAR * float(shape.density[0])))
    _fill(part, attenuation, whole, core, mineral)


def _add_patella(canvas: Canvas, attenuation: Tensor, shape: Shape) -> None:
    u, v, half_width, half_height, thickness = (float(value) for value in shape.patella)
    u, v = u - 1.2 * float(shape.turn[0]), v + 0.05 * float(shape.flexion[0])
    part = canvas.part(u - 0.45, u + 0.45, v - 0.45, v + 0.45)
    if part is None:
        return
    radius2 = ellipsoid(part, (u, v), (half_width, half_height), taper=0.14)
    y = (part.v - v) / half_height
    radius2 = (
        radius2 * (0.3 + 0.7 * radius2) * (1 + 0.12 * torch.cos(4 * torch.atan2(y, part.u - u)))
    )
    cortex, core = shell(radius2, 0.03)
    bone = core.mul_(0.5 * TRABECULAR).add_(cortex, alpha=0.8 * CORTICAL)
    bone.mul_((0.75 - 0.35 * y).clamp_(0.3, 1.0))  # its lower part is thin
    attenuation[part.box] += bone.mul_(thickness * float(shape.density[0]))
