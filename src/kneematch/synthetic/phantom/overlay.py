"""What lies over the picture: letters, coins, beads, unexposed corners and borders."""

import math

import torch
from torch import Tensor

from kneematch.synthetic.phantom.film import Extras, Framing

# Letters as strokes (x0, y0, x1, y1) in a box 0.7 wide and 1 high.
STROKES = {
    "R": (
        (0.1, 0.95, 0.1, 0.05),
        (0.1, 0.05, 0.42, 0.05),
        (0.42, 0.05, 0.58, 0.15),
        (0.58, 0.15, 0.58, 0.36),
        (0.58, 0.36, 0.42, 0.48),
        (0.42, 0.48, 0.1, 0.48),
        (0.36, 0.48, 0.62, 0.95),
    ),
    "L": ((0.12, 0.05, 0.12, 0.95), (0.12, 0.95, 0.6, 0.95)),
}
# box grey, letter grey; None: no box
STYLES: tuple[tuple[float | None, float], ...] = (
    (0.42, 0.9),
    (0.85, 0.35),
    (None, 1.0),
    (0.8, 0.1),
)


def lay_over(film: Tensor, extras: Extras, framing: Framing) -> None:
    """Draw markers, coin, beads, corners and borders on a film (H, W), in place."""
    for x, y, radius in extras.beads:
        _disc(film, (x, y), radius, 0.95)
    if extras.coin is not None:
        _disc(film, extras.coin[:2], extras.coin[2], 0.93)
    _unexpose(film, extras, framing)
    for letter, x, y, tall, style in extras.markers:
        _letter(film, letter, (x, y), tall, STYLES[style])
    _border(film, extras, framing)


def _patch(
    film: Tensor, centre: tuple[float, float], reach: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The pixels within reach, and their x and y from the centre."""
    height, width = film.shape
    x0, x1 = max(int(centre[0] - reach), 0), min(int(centre[0] + reach) + 2, width)
    y0, y1 = max(int(centre[1] - reach), 0), min(int(centre[1] + reach) + 2, height)
    patch = film[y0 : max(y1, y0), x0 : max(x1, x0)]
    x = torch.arange(patch.shape[1], device=film.device) + (x0 + 0.5 - centre[0])
    y = torch.arange(patch.shape[0], device=film.device) + (y0 + 0.5 - centre[1])
    return patch, x[None, :], y[:, None]


def _disc(film: Tensor, centre: tuple[float, float], radius: float, grey: float) -> None:
    patch, x, y = _patch(film, centre, radius + 1)
    patch.lerp_(torch.full_like(patch, grey), (radius - torch.hypot(x, y) + 0.5).clamp(0, 1))


def _letter(
    film: Tensor,
    letter: str,
    centre: tuple[float, float],
    tall: float,
    style: tuple[float | None, float],
) -> None:
    box, grey = style
    patch, x, y = _patch(film, centre, 0.62 * tall)
    if box is not None:
        inside = torch.minimum(0.47 * tall - x.abs(), 0.6 * tall - y.abs())
        patch.lerp_(torch.full_like(patch, box), (inside + 0.5).clamp(0, 1))
    x, y = x / (0.8 * tall) + 0.35, y / (0.8 * tall) + 0.5
    far = torch.full_like(patch, 9.0)
    for x0, y0, x1, y1 in STROKES[letter]:
        dx, dy = x1 - x0, y1 - y0
        along = (((x - x0) * dx + (y - y0) * dy) / (dx * dx + dy * dy)).clamp(0, 1)
        far = torch.minimum(far, torch.hypot(x - x0 - along * dx, y - y0 - along * dy))
    ink = ((0.065 - far) * 0.8 * tall + 0.5).clamp(0, 1)
    patch.lerp_(torch.full_like(patch, grey), ink)


def _unexpose(film: Tensor, extras: Extras, framing: Framing) -> None:
    """Whiten what the round beam did not reach, with the dark seam that films show there."""
    for cx, cy, radius, grey in extras.arcs:
        x = torch.arange(film.shape[1], device=film.device)[None, :] + (0.5 - cx)
        y = torch.arange(film.shape[0], device=film.device)[:, None] + (0.5 - cy)
        beyond = (torch.hypot(x, y) - radius) / (0.1 * framing.plateau_px[0])
        film.lerp_(torch.full_like(film, grey), beyond.add_(0.5).clamp_(0, 1))


def _border(film: Tensor, extras: Extras, framing: Framing) -> None:
    """Fill what lies outside of the (slightly turned) field."""
    height, width = film.shape
    x0, y0, x1, y1 = framing.field
    if extras.tilt_deg == 0 and extras.border == 0:
        film[: round(y0)] = 0
        film[round(y1) :] = 0
        film[:, : round(x0)] = 0
        film[:, round(x1) :] = 0
        return
    turn = math.radians(extras.tilt_deg)
    x = torch.arange(width, device=film.device)[None, :] + 0.5 - (x0 + x1) / 2
    y = torch.arange(height, device=film.device)[:, None] + 0.5 - (y0 + y1) / 2
    across = (x * math.cos(turn) + y * math.sin(turn)).abs_().neg_().add_((x1 - x0) / 2)
    down = (y * math.cos(turn) - x * math.sin(turn)).abs_().neg_().add_((y1 - y0) / 2)
    outside = torch.minimum(across, down).add_(0.5).clamp_(0, 1).neg_().add_(1)
    film.lerp_(torch.full_like(film, extras.border), outside)
