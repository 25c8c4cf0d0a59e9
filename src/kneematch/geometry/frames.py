"""Poses relative to a frame, which is the pose of a view that is cut from an image."""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from kneematch.geometry.pose import clamp_pose, pose_matrix

INSIDE: Final = 0.97  # share of D's range for random poses; at its edge a network saturates


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
