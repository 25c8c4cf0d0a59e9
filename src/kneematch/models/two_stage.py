"""The learnt solver: coarse G, enlarge, fine G, and a refinement (paper, Sect. 5).

The consistency check compares a detection with what the fine network finds in a crop around it.
"""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from kneematch.models.pose_jitter import corner_distance, crop_pose_from
from kneematch.paper.algorithm2 import ENLARGE, coarse_crops, refine_in_crops
from kneematch.paper.energy import Problem, Refiner, Solver
from kneematch.paper.network import Network, network_input
from kneematch.paper.pose import admissible_pose, compose_pose, enlarge_pose, pose_from_vector
from kneematch.paper.sharpening import sharpen

ZOOM: Final = 0.88  # size of the consistency check's crop relative to the enlarged patch


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
        v = self.fine(network_input(images, crop_poses, self.coarse_aspect))
        theta = pose_from_vector(v, self.fine_aspect / self.coarse_aspect)
        image_aspect = images.shape[-2] / images.shape[-1]
        return compose_pose(crop_poses, theta, self.coarse_aspect, image_aspect)


def network_solver(networks: TwoStageNetworks, refine: Refiner | None = None) -> Solver:
    """Return a solver that takes the poses of the networks, or starts a refinement at them."""

    def solve(problem: Problem) -> Tensor:
        with torch.no_grad():
            theta = admissible_pose(networks.poses(problem.images), problem.height_ratio)
        return theta if refine is None else refine(problem, theta).theta

    return solve


def paper_solver(
    networks: TwoStageNetworks, size: tuple[int, int], refine: Refiner = sharpen
) -> Solver:
    """Return the paper's third method: the networks, then sharpening in the enlarged patches.

    `size` is (height, width) of these patches in pixels; see `enlarged_size`.
    """

    def solve(problem: Problem) -> Tensor:
        with torch.no_grad():
            crop_poses = networks.crop_poses(problem.images)
            theta = networks.poses(problem.images, crop_poses)
        found = refine_in_crops(problem, theta, crop_poses, size, refine)
        return admissible_pose(found, problem.height_ratio)

    return solve


@dataclass(frozen=True, slots=True, eq=False)
class ConsistencyCheck:
    """Compare poses with what the fine network sees in other crops of the same knees."""

    networks: TwoStageNetworks
    larger: float  # width of the coarse template over that of the fine one

    @torch.no_grad()
    def __call__(self, images: Tensor, theta: Tensor) -> Tensor:
        """Return the distances (N, S) of the network's poses from given ones, in template widths.

        Args:
            images: (N, S, H, W).
            theta: (N, S, 4), the poses to check.
        """
        image_aspect = images.shape[-2] / images.shape[-1]
        networks, theta = self.networks, theta.to(images)
        if networks.offset is not None:  # to the pose of the networks' own template
            offset = networks.offset.to(theta).expand_as(theta)
            theta = crop_pose_from(theta, offset, networks.fine_aspect, image_aspect)
        crop_poses = enlarge_pose(theta, ZOOM * ENLARGE * self.larger)
        seen = networks.poses_in_crops(images, crop_poses)
        return corner_distance(seen, theta, networks.fine_aspect, image_aspect)
