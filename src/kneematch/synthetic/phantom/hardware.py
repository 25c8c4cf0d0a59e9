"""Metal in a knee: plates with screws, nails and total knee prostheses."""

from itertools import pairwise

import torch
from torch import Tensor

from kneematch.synthetic.phantom.anatomy import Shape
from kneematch.synthetic.phantom.outlines import condyle_line
from kneematch.synthetic.phantom.shapes import Canvas, dome

METAL = 3.0  # attenuation where metal fills the chord


def add_hardware(canvas: Canvas, attenuation: Tensor, shape: Shape, kind: str) -> None:
    """Add a piece of metal to the attenuation (H, W), in place."""
    metal = torch.zeros_like(attenuation)
    {"plate": _plate, "prosthesis": _prosthesis, "nail": _nail}[kind](canvas, metal, shape)
    attenuation += metal


def _bar(
    canvas: Canvas,
    metal: Tensor,
    ends: tuple[float, float, float, float],
    radius: float,
    strength: float = 1.0,
) -> None:
    """A round bar from (u0, v0) to (u1, v1)."""
    u0, v0, u1, v1 = ends
    part = canvas.part(
        min(u0, u1) - radius, max(u0, u1) + radius, min(v0, v1) - radius, max(v0, v1) + radius
    )
    if part is None:
        return
    du, dv = u1 - u0, v1 - v0
    along = (((part.u - u0) * du + (part.v - v0) * dv) / (du * du + dv * dv)).clamp(0, 1)
    far = torch.hypot(part.u - u0 - along * du, part.v - v0 - along * dv)
    chord = (1 - (far / radius) ** 2).clamp(min=0).sqrt() * (METAL * strength)
    metal[part.box] = torch.maximum(metal[part.box], chord)


def _plate(canvas: Canvas, metal: Tensor, shape: Shape) -> None:
    """A buttress plate at the lateral tibia, its screws under the plateau and in the shaft."""
    line = [(-0.53, 0.06), (-0.47, 0.25), (-0.32, 0.5), (-0.24, 0.9), (-0.20, 1.3)]
    for (u0, v0), (u1, v1) in pairwise(line):
        _bar(canvas, metal, (u0, v0, u1, v1), 0.03, 0.6)
    for v, length in ((0.09, 0.85), (0.14, 0.8), (0.45, 0.5), (0.75, 0.45), (1.1, 0.42)):
        u = -0.50 if v < 0.2 else -0.36 if v < 0.5 else -0.26 if v < 0.9 else -0.23
        _bar(canvas, metal, (u, v, u + length, v + 0.02), 0.016, 0.5)


def _nail(canvas: Canvas, metal: Tensor, shape: Shape) -> None:
    """A nail down the tibia's shaft and its two locking screws."""
    lean = float(shape.tibia_lean[0])
    _bar(canvas, metal, (0.04, 0.12, 0.09 + 4 * lean, 4.2), 0.055, 0.7)
    for v in (0.35, 0.55):
        _bar(canvas, metal, (-0.28, v, 0.32, v + 0.05), 0.022, 0.5)


def _prosthesis(canvas: Canvas, metal: Tensor, shape: Shape) -> None:
    """A tray with a stem on the tibia, a shield on the condyles, plastic (dark) between."""
    _bar(canvas, metal, (-0.46, 0.02, 0.46, 0.02), 0.03)
    _bar(canvas, metal, (0.0, 0.10, 0.02, 0.5), 0.075, 0.7)
    part = canvas.part(-0.47, 0.49, -0.5, 0.03)
    if part is None:
        return
    height = part.across(condyle_line(shape, part.columns)) - part.v
    crown = part.v + 0.34 - 0.5 * (part.u - 0.01) ** 2  # higher in the middle, over the groove
    sides = 0.45 - (part.u - 0.01).abs() - 0.10 * (part.v + 0.2).abs()
    depth = dome(height, 0.12).mul_(dome(crown, 0.05)).mul_(dome(sides, 0.04))
    metal[part.box] = torch.maximum(metal[part.box], depth * (0.7 * METAL))
