"""Random poses near given ones, and the distance of two poses."""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from kneematch.paper.pose import pose_matrix
from kneematch.search.gauss_newton import clamp_pose

INSIDE: Final = 0.97  # share of D's range for random poses; at its edge a network saturates
TINY: Final = 1e-12  # keeps the derivative of a length finite at 0


@dataclass(frozen=True, slots=True)
class PoseJitter:
    """Half widths of the uniform distributions that changes of a pose are drawn from."""

    scale: float  # change of the scale's logarithm
    shift: float  # change of the centre, in the crop's [-1, 1]
    rotation: float  # change in radians


# A knee may fill its half or a small part of it; the coarse patch is always nearly in place.
WIDE_JITTER: Final = PoseJitter(0.35, 0.4, 0.06)
NARROW_JITTER: Final = PoseJitter(0.15, 0.15, 0.08)


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


def crop_pose_from(
    in_image: Tensor, in_crop: Tensor, crop_aspect: float, image_aspect: float
) -> Tensor:
    """Return the pose (..., 4) of the crop in which a pose of the image becomes another one.

    Args:
        in_image: (..., 4), a pose in the image.
        in_crop: (..., 4), the pose that it is to have in the crop.
        crop_aspect: height over width of the crop, in pixels.
        image_aspect: height over width of the image, in pixels.
    """
    scale = in_image[..., :1] / in_crop[..., :1]
    rotation = in_image[..., 3:] - in_crop[..., 3:]
    centred = torch.cat([scale, torch.zeros_like(in_image[..., 1:3]), rotation], dim=-1)
    matrix = pose_matrix(centred, crop_aspect, image_aspect)[..., :2]
    centre = in_image[..., 1:3] - (matrix @ in_crop[..., 1:3, None])[..., 0]
    return torch.cat([scale, centre, rotation], dim=-1)
