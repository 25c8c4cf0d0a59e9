"""The learnt solver: coarse G, enlarge, fine G, and a refinement (paper, Sect. 5).

The consistency check compares a detection with what the fine network finds in a view around it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from kneematch.paper.network import crop_views, full_frames
from kneematch.paper.pose import (
    compose_pose,
    corner_distance,
    enlarge_pose,
    frame_from_poses,
    pose_from_vector,
    vector_from_pose,
)
from kneematch.paper.problem import Problem, Refiner, Solver

ENLARGE: Final = 1.2  # factor of the coarse patch, in which the fine network looks
ZOOM: Final = 0.88  # of the consistency check's view relative to that one, so that they differ

Network = Callable[[Tensor], Tensor]  # images (N, S, 224, 224) to vectors (N, S, 4)


@dataclass(frozen=True, slots=True, eq=False)
class TwoStageNetworks:
    """Both networks, and the aspects (height over width) of their templates.

    In views of located knees the pose (4,) of the fine network's view, on its device, takes the
    place of the coarse network. With an offset they find another template than their own.
    """

    coarse: Network | Tensor
    fine: Network
    coarse_aspect: float
    fine_aspect: float
    offset: Tensor | None = None  # (4,), pose of a drawn template in the fine one's frame

    def frames(self, halves: Tensor) -> Tensor:
        """Return the enlarged coarse patches of halves (N, S, H, W): poses (N, S, 4)."""
        if isinstance(self.coarse, Tensor):
            return self.coarse.expand(*halves.shape[:2], 4)
        image_aspect = halves.shape[-2] / halves.shape[-1]
        v = self.coarse(crop_views(halves, full_frames(halves), image_aspect))
        return enlarge_pose(pose_from_vector(v, self.coarse_aspect / image_aspect), ENLARGE)

    def poses(self, halves: Tensor) -> Tensor:
        """Return the poses theta (N, S, 4) of the template in halves (N, S, H, W)."""
        own = self.poses_in_views(halves, self.frames(halves))
        if self.offset is None:
            return own
        offset = self.offset.to(own).expand_as(own)
        return compose_pose(own, offset, self.fine_aspect, halves.shape[-2] / halves.shape[-1])

    def poses_in_views(self, halves: Tensor, frames: Tensor) -> Tensor:
        """Return the poses (N, S, 4) of the fine template in halves (N, S, H, W), seen in views.

        The views have the poses `frames` (N, S, 4) and the coarse template's aspect.
        """
        v = self.fine(crop_views(halves, frames, self.coarse_aspect))
        theta = pose_from_vector(v, self.fine_aspect / self.coarse_aspect)
        return compose_pose(frames, theta, self.coarse_aspect, halves.shape[-2] / halves.shape[-1])


def network_solver(networks: TwoStageNetworks, refine: Refiner | None = None) -> Solver:
    """Return a solver that takes the pose of the networks, or starts a refinement at it."""

    def solve(problem: Problem) -> Tensor:
        with torch.no_grad():
            v = vector_from_pose(networks.poses(problem.halves), problem.height_ratio)
        return v if refine is None else refine(problem, v).v

    return solve


@dataclass(frozen=True, slots=True, eq=False)
class ConsistencyCheck:
    """Compare poses with what the fine network sees in other views of the same knees."""

    networks: TwoStageNetworks
    larger: float  # width of the coarse template over that of the fine one

    @torch.no_grad()
    def __call__(self, halves: Tensor, theta: Tensor) -> Tensor:
        """Return the distances (N, S) of the network's poses from given ones, in template widths.

        Args:
            halves: (N, S, H, W).
            theta: (N, S, 4), the poses to check.
        """
        image_aspect = halves.shape[-2] / halves.shape[-1]
        networks, theta = self.networks, theta.to(halves)
        if networks.offset is not None:  # to the pose of the networks' own template
            offset = networks.offset.to(theta).expand_as(theta)
            theta = frame_from_poses(theta, offset, networks.fine_aspect, image_aspect)
        frames = enlarge_pose(theta, ZOOM * ENLARGE * self.larger)
        seen = networks.poses_in_views(halves, frames)
        return corner_distance(seen, theta, networks.fine_aspect, image_aspect)
