"""Paint objects and text on films, in place."""

import math
from functools import lru_cache

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from kneematch.synthetic.framing import Field, Point
from kneematch.synthetic.overlays import STYLES, Label, Overlays
from kneematch.synthetic.solids import segment_distance


def paint_overlays(film: Tensor, overlays: Overlays, field: Field, unit_px: float) -> None:
    """Paint everything that overlays the legs on a film (H, W)."""
    for x0, y0, x1, y1, wide, grey in overlays.lines:
        centre, reach = ((x0 + x1) / 2, (y0 + y1) / 2), (abs(x1 - x0) / 2, abs(y1 - y0) / 2)
        crop, dx, dy = _crop_around(film, centre, (reach[0] + wide, reach[1] + wide))
        ends = (x0 - centre[0], y0 - centre[1], x1 - centre[0], y1 - centre[1])
        if crop.numel():
            _blend(crop, grey, wide / 2 - segment_distance(dx, dy, ends) + 0.5)
    for x, y, radius, grey in overlays.discs:
        crop, dx, dy = _crop_around(film, (x, y), (radius + 1, radius + 1))
        _blend(crop, grey, radius - torch.hypot(dx, dy) + 0.5)
    for x, y, across, down, grey in overlays.shields:
        _, dx, dy = _crop_around(film, (x, y), (math.inf, math.inf))
        _blend(film, grey, (dx * across + dy * down) * (2.0 / max(0.02 * unit_px, 1)))
    if overlays.round_field is not None:
        x, y, radius, grey = overlays.round_field
        _, dx, dy = _crop_around(film, (x, y), (math.inf, math.inf))
        beyond = (torch.hypot(dx, dy) - radius) / (0.1 * unit_px)
        _blend(film, grey, beyond.add_(0.5))
    for label in (*overlays.markers, *overlays.texts):
        paint_label(film, label)
    _paint_border(film, overlays, field)


def paint_label(film: Tensor, label: Label) -> None:
    """Paint a text, with its box if its style has one."""
    box_grey, grey = STYLES[label.style]
    mask = _text_mask(label.text, max(round(label.height), 4), label.angle_deg, label.mirrored)
    height, width = mask.shape[1:]
    left, top = (round(c - s / 2) for c, s in zip(label.centre, (width, height), strict=True))
    rows = slice(max(top, 0), min(top + height, film.shape[0]))
    columns = slice(max(left, 0), min(left + width, film.shape[1]))
    if rows.stop <= rows.start or columns.stop <= columns.start:
        return
    part = mask[:, rows.start - top : rows.stop - top, columns.start - left : columns.stop - left]
    if box_grey is not None:
        _blend(film[rows, columns], box_grey, part[0].clone())
    _blend(film[rows, columns], grey, part[1].clone())


@lru_cache(maxsize=256)
def _text_mask(text: str, height: int, angle_deg: float, mirrored: bool) -> Tensor:
    """Return opacities (2, h, w) of a text's box and of its strokes; its capitals are `height`."""
    font = ImageFont.load_default(1.35 * height)
    left, top, right, bottom = font.getbbox(text)
    margin = 0.2 * height
    size = math.ceil(right - left + 2 * margin), math.ceil(bottom - top + 2 * margin)
    box, strokes = Image.new("L", size, 255), Image.new("L", size)
    ImageDraw.Draw(strokes).text((margin - left, margin - top), text, fill=255, font=font)
    masks = []
    for picture in (box, strokes):
        if mirrored:
            picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        if angle_deg:
            picture = picture.rotate(angle_deg, Image.Resampling.BILINEAR, expand=True)
        masks.append(np.asarray(picture, dtype=np.float32) / 255)
    return torch.from_numpy(np.stack(masks))


def _blend(film: Tensor, grey: float, opacity: Tensor) -> None:
    """Paint a film (H, W) with a grey of an opacity (H, W), clipped to [0, 1]."""
    film.lerp_(torch.full_like(film, grey), opacity.clamp_(0, 1))


def _crop_around(
    film: Tensor, centre: Point, reach: tuple[float, float]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the pixels (h, w) within reach, and their x (1, w) and y (h, 1) from the centre."""
    (x0, x1), (y0, y1) = (
        (max(int(max(c - r, 0)), 0), int(min(max(c + r + 2, 0), length)))
        for c, r, length in zip(centre, reach, (film.shape[1], film.shape[0]), strict=True)
    )
    crop = film[y0 : max(y1, y0), x0 : max(x1, x0)]
    x = torch.arange(crop.shape[1]) + (x0 + 0.5 - centre[0])
    y = torch.arange(crop.shape[0]) + (y0 + 0.5 - centre[1])
    return crop, x[None, :], y[:, None]


def _paint_border(film: Tensor, overlays: Overlays, field: Field) -> None:
    """Paint what lies outside of the exposed field, which may be tilted."""
    height, width = film.shape
    x0, y0, x1, y1 = field
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
