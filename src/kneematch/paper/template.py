"""The template T: the image to look for, with its red and green window (paper, Sect. 4)."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import EllipsisType

import torch
from torch import Tensor

from kneematch.paper.pose import pose_from_points, pose_matrix
from kneematch.sampling import View, compose, rectangle_to_film, sample, transform

Window = tuple[EllipsisType, slice, slice]
Box = tuple[float, float, float, float]  # x0, y0, x1, y1 in film pixels


@dataclass(frozen=True, slots=True, eq=False)
class Template:
    """An image and its two windows."""

    image: Tensor  # (H, W)
    red: Window  # patches (..., H, W)[template.red] are their pixels in the red window
    green: Window
    # Not in the paper, and not used in this package: points in [-1, 1]^2 that move with the
    # template, and the same patch of the image with its local contrast normalised.
    landmarks: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    local_contrast: Tensor | None = None  # (H, W)

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
        local = None if self.local_contrast is None else self.local_contrast.to(like)
        return replace(self, image=self.image.to(like), local_contrast=local)


def box_pose(view: View, box: Box) -> tuple[Tensor, float]:
    """Return the pose theta (4,) of a box on the film in an image (H, W), and its s2 over its s1.

    Boxes are upright on the film; in an image of a knee that was turned upright, they are rotated.
    """
    mirrored = bool(torch.linalg.det(view.to_film) < 0)
    matrix = torch.linalg.inv(view.to_film) @ rectangle_to_film(*box, mirrored=mirrored)
    image_aspect = view.size[0] / view.size[1]
    ends = torch.tensor([[-1.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    theta = pose_from_points(transform(matrix, ends), ends, 1.0, image_aspect)
    down = matrix[:2, 1] * torch.tensor([1.0, image_aspect], dtype=torch.float64)
    return theta, float(down.norm() / theta[0]) / image_aspect


def cut(view: View, box: Box, red: Box, green: Box) -> tuple[Template, Tensor, Tensor]:
    """Cut a template and its windows out of an image (H, W), at the image's own resolution.

    Returns:
        The template, its pose theta (4,) in the image, and the map (2, 3) A(theta).
    """
    theta, height_ratio = box_pose(view, box)
    scale, (height, width) = float(theta[0]), view.size
    size = max(round(scale * height_ratio * height), 1), max(round(scale * width), 1)
    matrix = pose_matrix(theta, size[0] / size[1], height / width)
    from_film = torch.linalg.inv(compose(view.to_film, matrix))
    image = sample(view.pixels, matrix.to(view.pixels), size)
    rw, gw = (_window(from_film, window, size) for window in (red, green))
    return Template(image, rw, gw), theta, matrix


def _window(from_film: Tensor, box: Box, size: tuple[int, int]) -> Window:
    """Return the rows and columns of a template of size (height, width) that a box covers."""
    corners = torch.tensor(box, dtype=torch.float64).reshape(2, 2)
    (x0, y0), (x1, y1) = transform(from_film, corners).sort(dim=0).values.tolist()
    height, width = size
    rows = slice(max(round((y0 + 1) / 2 * height), 0), min(round((y1 + 1) / 2 * height), height))
    columns = slice(max(round((x0 + 1) / 2 * width), 0), min(round((x1 + 1) / 2 * width), width))
    return ..., rows, columns
