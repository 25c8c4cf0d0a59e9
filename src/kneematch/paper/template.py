"""Template: the image to look for, with its red and green window (paper, Sect. 4)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import EllipsisType
from typing import Final

import torch
from torch import Tensor

from kneematch.errors import TemplateError
from kneematch.films.annotation import Annotation, Box
from kneematch.films.radiograph import Radiograph
from kneematch.knee.knee_images import film_tensor
from kneematch.paper.pose import (
    MAX_ROTATION,
    SCALE_MIN,
    SCALE_RANGE,
    pose_from_points,
    pose_matrix,
)
from kneematch.paper.split import HALF_ASPECT, SIDES, split
from kneematch.sampling import View, compose, rectangle_to_film, resize, sample, transform

Window = tuple[EllipsisType, slice, slice]

SMALLEST_WINDOW: Final = 4  # pixels of the half; smaller windows correlate with anything
SMALLEST_CONTRAST: Final = 1e-4  # share of the film's range; below it there is only rounding
EDGE_SLACK: Final = 0.01  # how far, in [-1, 1], a box may lie past the edge of the half
REACH: Final = 12 / 500  # deviation of the Gaussian neighbourhood, as a share of the half's width
# Local deviations below this share of the half's own count as noise, which is not amplified.
NOISE: Final = 0.2
TINY: Final = 1e-20  # so that a black half gives zeros and not NaN


@dataclass(frozen=True, slots=True, eq=False)
class Template:
    """An image, its two windows, and the landmarks that every detection gets."""

    image: Tensor  # (H, W)
    local_contrast: Tensor  # (H, W), the same patch of the locally normalised half
    red: Window  # patches (..., H, W)[template.red] are their pixels in the red window
    green: Window
    landmarks: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # in [-1, 1]^2

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) in pixels."""
        height, width = self.image.shape
        return height, width

    @property
    def aspect(self) -> float:
        """Height over width."""
        return self.size[0] / self.size[1]

    def to(self, like: Tensor) -> "Template":
        """Return the template on the device and in the dtype of a tensor."""
        return replace(self, image=self.image.to(like), local_contrast=self.local_contrast.to(like))

    def for_local_contrast(self) -> "Template":
        """Return the template to find in locally normalised halves."""
        return replace(self, image=self.local_contrast)


def cut_template(
    film: Radiograph, annotation: Annotation, box: str = "fine"
) -> tuple[Template, Tensor]:
    """Cut the fine or the coarse template out of the annotated film.

    Returns:
        The template and the pose theta (4,) it has in its own half image.
    """
    return cut_from_view(annotated_half(film, annotation), annotation, box)


def annotated_half(film: Radiograph, annotation: Annotation) -> View:
    """Return the half image (H, W) of a film that an annotation was drawn on."""
    halves, side = split(film_tensor(film)), SIDES.index(annotation.side)
    return View(halves.pixels[side], halves.to_film[side])


def cut_from_view(view: View, annotation: Annotation, box: str = "fine") -> tuple[Template, Tensor]:
    """Cut a template out of an image (H, W) of a knee, at the image's own resolution.

    Boxes are upright on the film; in a view of a knee that was turned upright, they are rotated.
    """
    theta, height_ratio = _pose_of_box(view, getattr(annotation, box))
    _check_pose(annotation, box, theta, height_ratio, 2 * float(view.to_film[:2, 0].norm()))
    scale, (height, width) = float(theta[0]), view.size
    size = max(round(scale * height_ratio * height), 1), round(scale * width)
    matrix = pose_matrix(theta, size[0] / size[1], height / width)
    from_film = torch.linalg.inv(compose(view.to_film, matrix))
    template = Template(
        sample(view.pixels, matrix.to(view.pixels), size),
        sample(normalize_local_contrast(view.pixels), matrix.to(view.pixels), size),
        red=_window(annotation, "red", from_film, size),
        green=_window(annotation, "green", from_film, size),
        landmarks=_landmarks(annotation, from_film),
    )
    for name, window in ((box, ...), ("red", template.red), ("green", template.green)):
        _check_contrast(annotation, name, template.image[window])
    return template, theta


def _pose_of_box(view: View, box: Box) -> tuple[Tensor, float]:
    """Return the pose theta (4,) of a box on the film in an image, and its s2 over its scale."""
    mirrored = bool(torch.linalg.det(view.to_film) < 0)
    matrix = torch.linalg.inv(view.to_film) @ rectangle_to_film(*box, mirrored=mirrored)
    image_aspect = view.size[0] / view.size[1]
    ends = torch.tensor([[-1.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    theta = pose_from_points(transform(matrix, ends), ends, 1.0, image_aspect)
    down = matrix[:2, 1] * torch.tensor([1.0, image_aspect], dtype=torch.float64)
    return theta, float(down.norm() / theta[0]) / image_aspect


def _box_through(matrix: Tensor, box: Box) -> Box:
    """Map a box by an affine map (3, 3) that keeps it axis-aligned, or mirrors it."""
    corners = torch.tensor([[box[0], box[1]], [box[2], box[3]]], dtype=torch.float64)
    (xa, ya), (xb, yb) = transform(matrix, corners).tolist()
    return min(xa, xb), min(ya, yb), max(xa, xb), max(ya, yb)


def _check_pose(
    annotation: Annotation, name: str, theta: Tensor, height_ratio: float, width_px: float
) -> None:
    """Refuse a box that cannot be cut, given its pose (4,) in an image `width_px` film pixels wide.

    Its s2 is `height_ratio` times its scale.
    """
    scale, x, y, rotation = theta.tolist()
    largest = SCALE_MIN + SCALE_RANGE
    if not SCALE_MIN <= scale <= largest:
        raise TemplateError(
            f"{annotation.film}: the {name} box is {scale * width_px:.0f} film pixels wide; "
            f"expected {SCALE_MIN * width_px:.0f} to {largest * width_px:.0f} on this film, "
            f"{SCALE_MIN} to {largest:g} of the {annotation.side} half's width; draw another box "
            "or annotate another film"
        )
    if max(abs(x) + scale, abs(y) + height_ratio * scale) > 1 + EDGE_SLACK:
        raise TemplateError(
            f"{annotation.film}: the {name} box leaves the {annotation.side} half of the film; "
            "expected it inside, as on films of two knees; move the box, annotate such a film, or "
            "correct 'side' in the template's file"
        )
    # The paper's f >= 1: in a taller shape than the half's, large patches would not fit inside.
    if 2 * scale * (height_ratio - 1) > EDGE_SLACK:
        raise TemplateError(
            f"{annotation.film}: the {name} box is taller in shape than the half image; expected "
            f"at most {HALF_ASPECT} times its width; draw it wider or less tall"
        )
    if abs(rotation) > MAX_ROTATION:
        raise TemplateError(
            f"{annotation.film}: the knee is rotated by {math.degrees(abs(rotation)):.0f} degrees; "
            f"expected at most {math.degrees(MAX_ROTATION):.0f}; annotate another film, or choose "
            "another method (detect --method search)"
        )


def _check_contrast(annotation: Annotation, name: str, image: Tensor) -> None:
    """Refuse a single grey, such as clipped air, with which nothing correlates."""
    if image.max() - image.min() < SMALLEST_CONTRAST:
        raise TemplateError(
            f"{annotation.film}: the {name} box shows a single grey; expected a part of the joint; "
            "move it or annotate another film"
        )


def _window(annotation: Annotation, name: str, from_film: Tensor, size: tuple[int, int]) -> Window:
    """Return the rows and columns of a template of size (height, width) that a box covers."""
    x0, y0, x1, y1 = _box_through(from_film, getattr(annotation, name))
    height, width = size
    rows = slice(max(round((y0 + 1) / 2 * height), 0), min(round((y1 + 1) / 2 * height), height))
    columns = slice(max(round((x0 + 1) / 2 * width), 0), min(round((x1 + 1) / 2 * width), width))
    if min(rows.stop - rows.start, columns.stop - columns.start) < SMALLEST_WINDOW:
        left, top, right, bottom = getattr(annotation, name)
        pixels = 2 / width / abs(from_film[0, 0]), 2 / height / abs(from_film[1, 1])
        least = [round((SMALLEST_WINDOW + 1) * float(pixel)) for pixel in pixels]
        raise TemplateError(
            f"{annotation.film}: the {name} box is too small, {right - left:.0f} x "
            f"{bottom - top:.0f} film pixels; expected at least {least[0]} x {least[1]}, a window "
            "on the border of the joint; draw it larger"
        )
    return ..., rows, columns


def _landmarks(annotation: Annotation, from_film: Tensor) -> dict[str, tuple[float, float]]:
    """Return the landmarks in the template's [-1, 1]^2."""
    names = list(annotation.landmarks)
    points = torch.tensor([annotation.landmarks[name] for name in names], dtype=torch.float64)
    mapped = transform(from_film, points.reshape(-1, 2)).tolist()
    return {name: (x, y) for name, (x, y) in zip(names, mapped, strict=True)}


def normalize_local_contrast(halves: Tensor) -> Tensor:
    """Subtract the local mean of halves (..., H, W) and divide by the local deviation.

    Returns (..., H / 2, W / 2), since at full resolution there is little but noise.
    """
    halves = resize(halves, (halves.shape[-2] // 2, halves.shape[-1] // 2))
    rounding = 100 * torch.finfo(halves.dtype).eps * halves.abs().amax((-2, -1), keepdim=True)
    halves = halves - halves.mean((-2, -1), keepdim=True)
    high = halves - _smooth(halves)
    deviation = _smooth(high.square()).clamp(min=0).sqrt()
    overall = halves.square().mean((-2, -1), keepdim=True).sqrt()
    return high / (deviation + NOISE * overall + rounding + TINY)


def _smooth(images: Tensor) -> Tensor:
    """Blur images (..., H, W) with a wide Gaussian, as two matrix products on a reduced copy."""
    height, width = images.shape[-2:]
    sigma = REACH * width
    shrink = max(1, round(sigma / 3))
    small = resize(images, (max(height // shrink, 1), max(width // shrink, 1)))
    rows = _gaussian(small.shape[-2], sigma * small.shape[-2] / height, images)
    columns = _gaussian(small.shape[-1], sigma * small.shape[-1] / width, images).mT.contiguous()
    return resize(rows @ (small @ columns), (height, width))


def _gaussian(length: int, sigma: float, like: Tensor) -> Tensor:
    """Return weights (length, length); row i averages the pixels around i that exist."""
    position = torch.arange(length, device=like.device).to(like.dtype)
    weights = torch.exp(-0.5 * ((position[:, None] - position) / sigma).square())
    return weights / weights.sum(1, keepdim=True)
