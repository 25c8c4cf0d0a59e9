"""Change the frame of reference of poses; a frame is the pose of a view cut from an image."""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from kneematch.geometry.pose import MAX_ROTATION, SCALE_MIN, SCALE_RANGE, pose_matrix

INSIDE: Final = 0.97  # of D's range; at its edge a network's output saturates


@dataclass(frozen=True, slots=True)
class Spread:
    """Half widths of the uniform distributions that a random framing of a knee is drawn from."""

    scale: float  # of the logarithm of the scale
    shift: float  # of the centre, in the view's [-1, 1]
    rotation: float  # in radians


# A knee may fill its half or a small part of it; the coarse patch is always nearly in place.
WIDE: Final = Spread(0.35, 0.4, 0.06)
NARROW: Final = Spread(0.15, 0.15, 0.08)


def within(frame: Tensor, theta: Tensor, frame_aspect: float, image_aspect: float) -> Tensor:
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


def seen_from(frame: Tensor, theta: Tensor, frame_aspect: float, image_aspect: float) -> Tensor:
    """Return the pose (..., 4) in a view of a pose theta of the image: the inverse of `within`."""
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


def enlarged(theta: Tensor, factor: float) -> Tensor:
    """Return poses (..., 4) of the same centre and rotation and of factor times the scale."""
    return torch.cat([factor * theta[..., :1], theta[..., 1:]], dim=-1)


def moved(theta: Tensor, height_ratio: float, spread: Spread, generator: torch.Generator) -> Tensor:
    """Return random poses near poses theta (..., 4), inside the range of D."""

    def uniform(reach: float) -> Tensor:
        drawn = torch.rand(theta.shape[:-1], generator=generator, device=theta.device)
        return reach * (2 * drawn - 1)

    scale, centre_x, centre_y, rotation = theta.unbind(-1)
    largest = SCALE_MIN + INSIDE * SCALE_RANGE
    scale = (scale * uniform(spread.scale).exp()).clamp(SCALE_MIN / INSIDE, largest)
    reach_x, reach_y = INSIDE * (1 - scale), INSIDE * (1 - scale * height_ratio)
    return torch.stack(
        [
            scale,
            (centre_x + uniform(spread.shift)).clamp(-reach_x, reach_x),
            (centre_y + uniform(spread.shift)).clamp(-reach_y, reach_y),
            (rotation + uniform(spread.rotation)).clamp(
                -INSIDE * MAX_ROTATION, INSIDE * MAX_ROTATION
            ),
        ],
        dim=-1,
    )


def frames_that_show(
    target: Tensor, wanted: Tensor, frame_aspect: float, image_aspect: float
) -> Tensor:
    """Return the frames (..., 4) in which poses `target` of an image become poses `wanted`."""
    scale = target[..., :1] / wanted[..., :1]
    rotation = target[..., 3:] - wanted[..., 3:]
    turned = torch.cat([scale, torch.zeros_like(target[..., 1:3]), rotation], dim=-1)
    matrix = pose_matrix(turned, frame_aspect, image_aspect)[..., :2]
    centre = target[..., 1:3] - (matrix @ wanted[..., 1:3, None])[..., 0]
    return torch.cat([scale, centre, rotation], dim=-1)
