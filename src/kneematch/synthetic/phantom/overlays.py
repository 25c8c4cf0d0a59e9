"""Draw what lies over the legs on a film: letters, coin, beads, unexposed corners and borders."""

import math
from typing import Final

import torch
from torch import Tensor

from kneematch.synthetic.phantom.film_plan import Framing, Overlays, Point

# Letters as strokes (x0, y0, x1, y1) in a box 0.7 wide and 1 high.
STROKES: Final = {
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
# Styles of letters: grey of the box (None: no box) and of the letter.
STYLES: Final[tuple[tuple[float | None, float], ...]] = (
    (0.42, 0.9),
    (0.85, 0.35),
    (None, 1.0),
    (0.8, 0.1),
)


def draw_overlays(film: Tensor, overlays: Overlays, framing: Framing) -> None:
    """Draw beads, coin, unexposed corners, letters and border on a film (H, W), in place."""
    for x, y, radius in overlays.beads:
        _draw_disc(film, (x, y), radius, 0.95)
    if overlays.coin is not None:
        _draw_disc(film, overlays.coin[:2], overlays.coin[2], 0.93)
    for x, y, radius, grey in overlays.arcs:
        _whiten_corners(film, (x, y), radius, grey, 0.1 * framing.plateau_px[0])
    for letter, x, y, height, style in overlays.markers:
        _draw_letter(film, letter, (x, y), height, STYLES[style])
    _draw_border(film, overlays, framing)


def _blend(film: Tensor, grey: float, opacity: Tensor) -> None:
    """Paint a film (H, W) with a grey of an opacity (H, W), in place."""
    film.lerp_(torch.full_like(film, grey), opacity)


def _crop_around(film: Tensor, centre: Point, reach: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the pixels (h, w) within reach, and their x (1, w) and y (h, 1) from the centre."""
    height, width = film.shape
    x0, x1 = max(int(centre[0] - reach), 0), min(int(centre[0] + reach) + 2, width)
    y0, y1 = max(int(centre[1] - reach), 0), min(int(centre[1] + reach) + 2, height)
    crop = film[y0 : max(y1, y0), x0 : max(x1, x0)]
    x = torch.arange(crop.shape[1]) + (x0 + 0.5 - centre[0])
    y = torch.arange(crop.shape[0]) + (y0 + 0.5 - centre[1])
    return crop, x[None, :], y[:, None]


def _draw_disc(film: Tensor, centre: Point, radius: float, grey: float) -> None:
    crop, x, y = _crop_around(film, centre, radius + 1)
    _blend(crop, grey, (radius - torch.hypot(x, y) + 0.5).clamp(0, 1))


def _draw_letter(
    film: Tensor, letter: str, centre: Point, height: float, style: tuple[float | None, float]
) -> None:
    box_grey, grey = style
    crop, x, y = _crop_around(film, centre, 0.62 * height)
    if box_grey is not None:
        inside = torch.minimum(0.47 * height - x.abs(), 0.6 * height - y.abs())
        _blend(crop, box_grey, (inside + 0.5).clamp(0, 1))
    x, y = x / (0.8 * height) + 0.35, y / (0.8 * height) + 0.5
    distance = torch.full_like(crop, 9.0)  # to the nearest stroke
    for x0, y0, x1, y1 in STROKES[letter]:
        dx, dy = x1 - x0, y1 - y0
        along = (((x - x0) * dx + (y - y0) * dy) / (dx * dx + dy * dy)).clamp(0, 1)
        distance = torch.minimum(distance, torch.hypot(x - x0 - along * dx, y - y0 - along * dy))
    _blend(crop, grey, ((0.065 - distance) * 0.8 * height + 0.5).clamp(0, 1))


def _whiten_corners(
    film: Tensor, centre: Point, radius: float, grey: float, softness: float
) -> None:
    """Paint what lies outside of a round field of exposure."""
    x = torch.arange(film.shape[1])[None, :] + (0.5 - centre[0])
    y = torch.arange(film.shape[0])[:, None] + (0.5 - centre[1])
    beyond = (torch.hypot(x, y) - radius) / softness
    _blend(film, grey, beyond.add_(0.5).clamp_(0, 1))


def _draw_border(film: Tensor, overlays: Overlays, framing: Framing) -> None:
    """Paint what lies outside of the exposed field, which may be tilted."""
    height, width = film.shape
    x0, y0, x1, y1 = framing.field
    if overlays.field_tilt_deg == 0 and overlays.border_grey == 0:
        film[: round(y0)] = 0
        film[round(y1) :] = 0
        film[:, : round(x0)] = 0
        film[:, round(x1) :] = 0
        return
    tilt = math.radians(overlays.field_tilt_deg)
    x = torch.arange(width)[None, :] + 0.5 - (x0 + x1) / 2
    y = torch.arange(height)[:, None] + 0.5 - (y0 + y1) / 2
    across = (x * math.cos(tilt) + y * math.sin(tilt)).abs_().neg_().add_((x1 - x0) / 2)
    down = (y * math.cos(tilt) - x * math.sin(tilt)).abs_().neg_().add_((y1 - y0) / 2)
    outside = torch.minimum(across, down).add_(0.5).clamp_(0, 1).neg_().add_(1)
    _blend(film, overlays.border_grey, outside)
