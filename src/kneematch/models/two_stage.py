"""The learnt solver: coarse G, enlarge, fine G, and a refinement (paper, Sect. 5).

The networks also find a user's template without training, at a fixed pose relative to their own:
they find theirs on the annotated knee, which gives the relative pose. The consistency check
compares a detection with what the fine network finds in a crop around it. Both, as training does,
show the network crops in which a knee has a chosen or random pose.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from kneematch.devices import call_in_full_batch
from kneematch.errors import TemplateError
from kneematch.paper.algorithm2 import ENLARGE, coarse_crops, refine_in_crops
from kneematch.paper.energy import Problem, Refiner, Solver
from kneematch.paper.network import Network, network_input
from kneematch.paper.pose import (
    admissible_pose,
    compose_pose,
    enlarge_pose,
    pose_from_vector,
    pose_matrix,
    relative_pose,
)
from kneematch.search.gauss_newton import clamp_pose

INSIDE: Final = 0.97  # share of D's range for random poses; at its edge a network saturates
TINY: Final = 1e-12  # keeps the derivative of a length finite at 0
ZOOM: Final = 0.88  # size of the consistency check's crop relative to the enlarged patch
VIEWS: Final = 24  # crops of the annotated knee, over which the networks' poses are averaged
# Deviation of the centres found in the views, in template widths: at most 0.01 on knees, 0.04 and
# more on noise, clouds and black.
LARGEST_SPREAD: Final = 0.02

# From images (N, S, H, W) and poses (N, S, 4) to distances (N, S), see `check_consistency`.
ConsistencyCheck = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class PoseJitter:
    """Half widths of the uniform distributions that changes of a pose are drawn from."""

    scale: float  # change of the scale's logarithm
    shift: float  # change of the centre, in the crop's [-1, 1]
    rotation: float  # change in radians


# A knee may fill its half or a small part of it; the coarse patch is always nearly in place.
WIDE_JITTER: Final = PoseJitter(0.35, 0.4, 0.06)
NARROW_JITTER: Final = PoseJitter(0.15, 0.15, 0.08)
VIEW_JITTER: Final = PoseJitter(0.1, 0.1, 0.06)


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

    scale = theta[..., 0] * uniform(jitter.scale).exp()
    reaches = jitter.shift, jitter.shift, jitter.rotation
    moved = [theta[..., k] + uniform(reach) for k, reach in enumerate(reaches, 1)]
    return clamp_pose(torch.stack([scale, *moved], dim=-1), height_ratio, INSIDE)


def crop_pose_from(
    in_image: Tensor, in_crop: Tensor, crop_aspect: float, image_aspect: float
) -> Tensor:
    """Return the pose (..., 4) of the crop in which a pose (..., 4) of the image has another."""
    scale = in_image[..., :1] / in_crop[..., :1]
    rotation = in_image[..., 3:] - in_crop[..., 3:]
    centred = torch.cat([scale, torch.zeros_like(in_image[..., 1:3]), rotation], dim=-1)
    matrix = pose_matrix(centred, crop_aspect, image_aspect)[..., :2]
    centre = in_image[..., 1:3] - (matrix @ in_crop[..., 1:3, None])[..., 0]
    return torch.cat([scale, centre, rotation], dim=-1)


@dataclass(frozen=True, slots=True, eq=False)
class TwoStageNetworks:
    """Both networks, and the aspects (height over width) of their templates.

    In images of located knees the pose (4,) of the fine network's crop, on its device, takes the
    place of the coarse network. With an offset they find another template than their own.
    """

    coarse: Network | Tensor
    fine: Network
    coarse_aspect: float
    fine_aspect: float
    offset: Tensor | None = None  # (4,), pose of a drawn template in the fine one's frame

    def crop_poses(self, images: Tensor) -> Tensor:
        """Return the enlarged coarse patches of images (N, S, H, W): poses (N, S, 4)."""
        if isinstance(self.coarse, Tensor):
            return self.coarse.expand(*images.shape[:2], 4)
        return coarse_crops(self.coarse, images, self.coarse_aspect)

    def poses(self, images: Tensor, crop_poses: Tensor | None = None) -> Tensor:
        """Return the poses theta (N, S, 4) of the template in images (N, S, H, W).

        `crop_poses` (N, S, 4) are those of the images, if they are known already.
        """
        crops = self.crop_poses(images) if crop_poses is None else crop_poses
        own = self.poses_in_crops(images, crops)
        if self.offset is None:
            return own
        offset = self.offset.to(own).expand_as(own)
        return compose_pose(own, offset, self.fine_aspect, images.shape[-2] / images.shape[-1])

    def poses_in_crops(self, images: Tensor, crop_poses: Tensor) -> Tensor:
        """Return the poses (N, S, 4) of the fine template in images (N, S, H, W), seen in crops.

        The crops have the poses `crop_poses` (N, S, 4) and the coarse template's aspect.
        """
        seen = network_input(images, crop_poses, self.coarse_aspect)
        v = call_in_full_batch(self.fine, seen)
        theta = pose_from_vector(v, self.fine_aspect / self.coarse_aspect)
        image_aspect = images.shape[-2] / images.shape[-1]
        return compose_pose(crop_poses, theta, self.coarse_aspect, image_aspect)


def network_solver(
    networks: TwoStageNetworks,
    refine: Refiner | None = None,
    size: tuple[int, int] | None = None,
) -> Solver:
    """Return a solver that takes the poses of the networks, or starts a refinement at them.

    With a size (height, width), it is refined in the enlarged coarse patches, sampled with so many
    pixels, as the paper's third method does; see `enlarged_size`.
    """

    def solve(problem: Problem) -> Tensor:
        with torch.no_grad():
            crop_poses = networks.crop_poses(problem.images)
            theta = networks.poses(problem.images, crop_poses)
        if refine is not None and size is not None:
            theta = refine_in_crops(problem, theta, crop_poses, size, refine)
        theta = admissible_pose(theta, problem.height_ratio)
        return theta if refine is None or size is not None else refine(problem, theta).theta

    return solve


@torch.no_grad()
def transfer_template(networks: TwoStageNetworks, half: Tensor, theta: Tensor) -> TwoStageNetworks:
    """Return networks that find the template drawn at a pose theta (4,) of a half image (H, W).

    Raises:
        TemplateError: the networks do not find a knee there.
    """
    image, image_aspect = half[None, None], half.shape[-2] / half.shape[-1]
    aspect, ratio = networks.coarse_aspect, networks.fine_aspect / networks.coarse_aspect
    found = networks.poses(image).expand(VIEWS, 1, 4)
    nominal = relative_pose(networks.crop_poses(image), found, aspect, image_aspect)
    generator = torch.Generator(half.device).manual_seed(0)
    wanted = jitter_pose(nominal, ratio, VIEW_JITTER, generator)
    crop_poses = crop_pose_from(found, wanted, aspect, image_aspect)
    own = networks.poses_in_crops(image.expand(VIEWS, -1, -1, -1), crop_poses)[:, 0]  # (VIEWS, 4)
    spread = own[:, 1:3].std(0).max() / (2 * own[:, 0].mean())
    if not spread < LARGEST_SPREAD:
        raise TemplateError(
            "The network sees no frontal knee where one was annotated. Annotate another film, or "
            "use detect --method search."
        )
    offset = relative_pose(own.mean(0).to(theta), theta, networks.fine_aspect, image_aspect)
    return replace(networks, offset=offset.to(half))


@torch.no_grad()
def check_consistency(
    networks: TwoStageNetworks, larger: float, images: Tensor, theta: Tensor
) -> Tensor:
    """Compare poses with what the fine network sees in other crops of the same knees.

    Args:
        networks: the networks.
        larger: width of their coarse template over that of the fine one.
        images: (N, S, H, W).
        theta: (N, S, 4), the poses to check.

    Returns:
        (N, S), the distances of the network's poses from the given ones, in template widths.
    """
    image_aspect, theta = images.shape[-2] / images.shape[-1], theta.to(images)
    if networks.offset is not None:  # to the pose of the networks' own template
        offset = networks.offset.to(theta).expand_as(theta)
        theta = crop_pose_from(theta, offset, networks.fine_aspect, image_aspect)
    crop_poses = enlarge_pose(theta, ZOOM * ENLARGE * larger)
    seen = networks.poses_in_crops(images, crop_poses)
    return corner_distance(seen, theta, networks.fine_aspect, image_aspect)
