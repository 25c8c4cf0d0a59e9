"""Poses of a patch in a half image, and the map D that keeps them inside it (paper, Sect. 3).

Poses can also be given relative to a frame, which is the pose of a view cut from the image.
"""

import math
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

SCALE_MIN = 0.15  # alpha_0
SCALE_RANGE = 0.80  # beta_0
MAX_ROTATION = 0.13  # radians

# D^-1 is infinite at the border of D's range; the network itself never leaves |v| <= 3.
MAX_TANH = math.tanh(3)
TINY = 1e-12  # keeps the derivative of a length finite at 0
INSIDE: Final = 0.97  # share of D's range for random poses; at its edge a network saturates


def pose_from_vector(v: Tensor, height_ratio: float) -> Tensor:
    """Map any real vector to a pose inside the half image: theta = D(v).

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


def clamp_pose(theta: Tensor, height_ratio: float, inside: float = 1.0) -> Tensor:
    """Clamp poses (..., 4) to the range of D, or to the given share of it."""
    scale, centre_x, centre_y, rotation = theta.unbind(-1)
    scale = scale.clamp(SCALE_MIN / inside, SCALE_MIN + inside * SCALE_RANGE)
    reach_x, reach_y = inside * (1 - scale), inside * (1 - scale * height_ratio)
    return torch.stack(
        [
            scale,
            centre_x.clamp(-reach_x, reach_x),
            centre_y.clamp(-reach_y, reach_y),
            rotation.clamp(-inside * MAX_ROTATION, inside * MAX_ROTATION),
        ],
        dim=-1,
    )


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


def corner_distance(
    found: Tensor, target: Tensor, template_aspect: float, image_aspect: float
) -> Tensor:
    """Return the mean distance (...) of the corners of two poses (..., 4), in target widths."""
    apart = pose_matrix(found, template_aspect, image_aspect) - pose_matrix(
        target, template_aspect, image_aspect
    )
    across, down, centre = apart.unbind(-1)  # (..., 2) each
    corners = torch.stack([centre + x * across + y * down for x in (-1, 1) for y in (-1, 1)], -1)
    squared = corners[..., 0, :].square() + (image_aspect * corners[..., 1, :]).square()
    return (squared + TINY).sqrt().mean(-1) / (2 * target[..., 0])  # (..., 4) to (...)


@dataclass(frozen=True, slots=True)
class PoseJitter:
    """Half widths of the uniform distributions that changes of a pose are drawn from."""

    scale: float  # of the logarithm of the scale
    shift: float  # of the centre, in the view's [-1, 1]
    rotation: float  # in radians


# A knee may fill its half or a small part of it; the coarse patch is always nearly in place.
WIDE_JITTER: Final = PoseJitter(0.35, 0.4, 0.06)
NARROW_JITTER: Final = PoseJitter(0.15, 0.15, 0.08)


def compose_pose(frame: Tensor, theta: Tensor, frame_aspect: float, image_aspect: float) -> Tensor:
    """Return the pose (..., 4) in the image of a pose that is given in a view of it.

    Args:
        frame: (..., 4), the pose of the view in the image.
        theta: (..., 4), a pose in the view.
        frame_aspect: height over width of the view, in pixels.
        image_aspect: height over width of the image, in pixels.
    """
    matrix = pose_matrix(frame, frame_aspect, image_aspect)
    centre = (matrix[..., :2] @ theta[..., 1:3, None])[..., 0] + matrix[..., 2]
    return torch.cat(
        [frame[..., :1] * theta[..., :1], centre, frame[..., 3:] + theta[..., 3:]], dim=-1
    )


def relative_pose(frame: Tensor, theta: Tensor, frame_aspect: float, image_aspect: float) -> Tensor:
    """Return the pose (..., 4) in a view of a pose that is given in the image.

    The inverse of `compose_pose`, with the same arguments.
    """
    scale, *_, rotation = frame.unbind(-1)
    cos, sin = rotation.cos() / scale, rotation.sin() / scale
    right = theta[..., 1] - frame[..., 1]  # from the frame's centre, in half widths of the image
    down = image_aspect * (theta[..., 2] - frame[..., 2])
    return torch.stack(
        [
            theta[..., 0] / scale,
            cos * right + sin * down,
            (cos * down - sin * right) / frame_aspect,
            theta[..., 3] - rotation,
        ],
        dim=-1,
    )


def enlarge_pose(theta: Tensor, factor: float) -> Tensor:
    """Multiply the scale of poses (..., 4); centre and rotation stay."""
    return torch.cat([factor * theta[..., :1], theta[..., 1:]], dim=-1)


def jitter_pose(
    theta: Tensor, height_ratio: float, jitter: PoseJitter, generator: torch.Generator
) -> Tensor:
    """Return random poses (..., 4) near poses theta (..., 4), inside the range of D."""

    def uniform(reach: float) -> Tensor:
        drawn = torch.rand(theta.shape[:-1], generator=generator, device=theta.device)
        return reach * (2 * drawn - 1)

    scale, centre_x, centre_y, rotation = theta.unbind(-1)
    changed = [
        scale * uniform(jitter.scale).exp(),
        centre_x + uniform(jitter.shift),
        centre_y + uniform(jitter.shift),
        rotation + uniform(jitter.rotation),
    ]
    return clamp_pose(torch.stack(changed, dim=-1), height_ratio, INSIDE)


def frame_from_poses(
    in_image: Tensor, in_view: Tensor, frame_aspect: float, image_aspect: float
) -> Tensor:
    """Return the frame (..., 4) of the view in which a pose of the image becomes another one.

    Args:
        in_image: (..., 4), a pose in the image.
        in_view: (..., 4), the pose that it is to have in the view.
        frame_aspect: height over width of the view, in pixels.
        image_aspect: height over width of the image, in pixels.
    """
    scale = in_image[..., :1] / in_view[..., :1]
    rotation = in_image[..., 3:] - in_view[..., 3:]
    centred = torch.cat([scale, torch.zeros_like(in_image[..., 1:3]), rotation], dim=-1)
    matrix = pose_matrix(centred, frame_aspect, image_aspect)[..., :2]
    centre = in_image[..., 1:3] - (matrix @ in_view[..., 1:3, None])[..., 0]
    return torch.cat([scale, centre, rotation], dim=-1)
