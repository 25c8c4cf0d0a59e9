"""A few films as a network sees them while it learns."""

from collections.abc import Sequence
from typing import Final

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from kneematch.geometry.pose import pose_matrix
from kneematch.geometry.view import transform
from kneematch.io.display import LEFT_COLOUR, RIGHT_COLOUR, to_grey8

GAP: Final = 6
CORNERS: Final = ((-1.0, -1.0), (1.0, -1.0), (1.0, 1.0), (-1.0, 1.0), (-1.0, -1.0))
HEIGHT: Final = 400  # of a half


def draw_poses(halves: Tensor, theta: Tensor, aspect: float) -> Image.Image:
    """Halves (K, 2, H, W) side by side, the poses (K, 2, 4) of a template on them."""
    pairs = [
        [_half(halves[k, s], theta[k, s], aspect, (LEFT_COLOUR, RIGHT_COLOUR)[s]) for s in (0, 1)]
        for k in range(len(halves))
    ]
    return _side_by_side([image for pair in pairs for image in pair])


def _half(
    pixels: Tensor, theta: Tensor, aspect: float, colour: tuple[int, int, int]
) -> Image.Image:
    height, width = pixels.shape
    matrix = pose_matrix(theta.cpu().double(), aspect, height / width)
    scale = HEIGHT / height
    size = round(scale * width), HEIGHT
    corners = (transform(matrix, torch.tensor(CORNERS)) + 1) / 2 * torch.tensor(size)
    picture = Image.fromarray(to_grey8(pixels.cpu().numpy())).resize(size).convert("RGB")
    points = [(float(x), float(y)) for x, y in corners]
    ImageDraw.Draw(picture).line(points, fill=colour, width=2)
    return picture


def _side_by_side(images: Sequence[Image.Image]) -> Image.Image:
    width = sum(image.width + GAP for image in images) - GAP
    sheet = Image.new("RGB", (width, HEIGHT))
    x = 0
    for image in images:
        sheet.paste(image, (x, 0))
        x += image.width + GAP
    return sheet
