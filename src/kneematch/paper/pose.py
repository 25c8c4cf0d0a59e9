"""Poses theta of a patch, the map D that keeps them inside the image, and A (paper, Sect. 3).

Algorithm 2 also needs poses relative to a crop, which has a pose in the image itself.
"""

import math
from typing import Final

import torch
from torch import Tensor

SCALE_MIN: Final = 0.15  # alpha_0
SCALE_RANGE: Final = 0.80  # beta_0
MAX_ROTATION: Final = 0.13  # radians

# D^-1 is infinite at the border of D's range; the network itself never leaves |v| <= 3.
MAX_TANH: Final = math.tanh(3)


def pose_from_vector(v: Tensor, height_ratio: float) -> Tensor:
    """Map any real vector to a pose inside the image: theta = D(v).

    Args:
        v: (..., 4) unconstrained.
        height_ratio: template aspect over image aspect, so that scale * height_ratio is s2.

    Returns:
        theta, (..., 4): scale, centre x, centre y, rotation in radians.
    """
    t = v.tanh()
    scale = SCALE_MIN + SCALE_RANGE * (1 + t[..., 0]) / 2
    # The paper's -1 + 2a with a = (1 + tanh v) / 2 is tanh v itself.
    centre_x = (1 - scale) * t[..., 1]
    centre_y = (1 - scale * height_ratio) * t[..., 2]
    return torch.stack([scale, centre_x, centre_y, MAX_ROTATION * t[..., 3]], dim=-1)


def vector_from_pose(theta: Tensor, height_ratio: float) -> Tensor:
    """Map a pose (..., 4) to the vector (..., 4) that D sends there: v = D^-1(theta).

    A pose outside D's range gives the vector of a nearby pose inside it.
    """
    scale, centre_x, centre_y, rotation = theta.unbind(-1)
    scale = scale.clamp(SCALE_MIN, SCALE_MIN + SCALE_RANGE)
    t = torch.stack(
        [
            2 * (scale - SCALE_MIN) / SCALE_RANGE - 1,
            centre_x / (1 - scale),
            centre_y / (1 - scale * height_ratio),
            rotation / MAX_ROTATION,
        ],
        dim=-1,
    )
    return t.clamp(-MAX_TANH, MAX_TANH).atanh()


def admissible_pose(theta: Tensor, height_ratio: float) -> Tensor:
    """Return D(D^-1(theta)), (..., 4): the pose itself, or a nearby one in the range of D."""
    return pose_from_vector(vector_from_pose(theta, height_ratio), height_ratio)


def pose_matrix(theta: Tensor, template_aspect: float, image_aspect: float) -> Tensor:
    """Return the map A(theta), (..., 2, 3), from the patch's [-1, 1]^2 into the half's.

    Both aspects are height over width in pixels. The rotation is rigid in pixels; for a square
    template the matrix is the paper's.
    """
    scale, centre_x, centre_y, rotation = theta.unbind(-1)
    cos, sin = rotation.cos(), rotation.sin()
    across = torch.stack([scale * cos, -scale * template_aspect * sin, centre_x], dim=-1)
    down = torch.stack([scale * sin, scale * template_aspect * cos], dim=-1) / image_aspect
    return torch.stack([across, torch.cat([down, centre_y[..., None]], dim=-1)], dim=-2)


def pose_from_points(
    points: Tensor, landmarks: Tensor, template_aspect: float, image_aspect: float
) -> Tensor:
    """Return the pose (..., 4) that maps a template's landmarks to points of an image.

    Args:
        points: (..., 2, 2), two points (x, y) in the image's [-1, 1]^2.
        landmarks: (2, 2), the same two points in the template's [-1, 1]^2.
        template_aspect: height over width of the template, in pixels.
        image_aspect: height over width of the image, in pixels.
    """
    here = landmarks * landmarks.new_tensor([1, template_aspect])  # both axes in half widths
    there = points * points.new_tensor([1, image_aspect])
    along, onto = here[1] - here[0], there[..., 1, :] - there[..., 0, :]
    scale = onto.norm(dim=-1) / along.norm()
    rotation = torch.atan2(onto[..., 1], onto[..., 0]) - torch.atan2(along[1], along[0])
    unmoved = torch.stack([scale, 0 * scale, 0 * scale, rotation], dim=-1)
    matrix = pose_matrix(unmoved, template_aspect, image_aspect)[..., :2]
    centre = points.mean(-2) - (matrix @ landmarks.mean(0)[:, None])[..., 0]
    return torch.cat([scale[..., None], centre, rotation[..., None]], dim=-1)


def compose_pose(crop: Tensor, theta: Tensor, crop_aspect: float, image_aspect: float) -> Tensor:
    """Return the pose (..., 4) in the image of a pose that is given in a crop of it.

    Args:
        crop: (..., 4), the pose of the crop in the image.
        theta: (..., 4), a pose in the crop.
        crop_aspect: height over width of the crop, in pixels.
        image_aspect: height over width of the image, in pixels.
    """
    matrix = pose_matrix(crop, crop_aspect, image_aspect)
    centre = (matrix[..., :2] @ theta[..., 1:3, None])[..., 0] + matrix[..., 2]
    return torch.cat(
        [crop[..., :1] * theta[..., :1], centre, crop[..., 3:] + theta[..., 3:]], dim=-1
    )


def relative_pose(crop: Tensor, theta: Tensor, crop_aspect: float, image_aspect: float) -> Tensor:
    """Return the pose (..., 4) in a crop of a pose that is given in the image.

    The inverse of `compose_pose`, with the same arguments.
    """
    scale, *_, rotation = crop.unbind(-1)
    cos, sin = rotation.cos() / scale, rotation.sin() / scale
    right = theta[..., 1] - crop[..., 1]  # from the crop's centre, in half widths of the image
    down = image_aspect * (theta[..., 2] - crop[..., 2])
    return torch.stack(
        [
            theta[..., 0] / scale,
            cos * right + sin * down,
            (cos * down - sin * right) / crop_aspect,
            theta[..., 3] - rotation,
        ],
        dim=-1,
    )


def enlarge_pose(theta: Tensor, factor: float) -> Tensor:
    """Multiply the scale of poses (..., 4); centre and rotation stay."""
    return torch.cat([factor * theta[..., :1], theta[..., 1:]], dim=-1)
