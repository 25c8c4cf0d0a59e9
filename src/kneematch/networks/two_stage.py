"""The learnt minimiser: coarse G, enlarge, fine G (paper, Sect. 5), then the sharpening."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import torch
from torch import Tensor

from kneematch.geometry.frames import compose_pose, enlarge_pose
from kneematch.geometry.pose import pose_from_vector, vector_from_pose
from kneematch.networks.pose_network import crop_views, full_frames
from kneematch.solvers.problem import Problem, Refiner, Solution, Solver

ENLARGE: Final = 1.2  # of the coarse patch, in which the fine one is sought

Network = Callable[[Tensor], Tensor]  # images (N, S, 224, 224) to vectors (N, S, 4)


@dataclass(frozen=True, slots=True, eq=False)
class TwoStageNetworks:
    """Both networks, and the shapes (height over width) of what they look for."""

    coarse: Network
    fine: Network
    coarse_aspect: float
    fine_aspect: float

    def frames(self, halves: Tensor) -> Tensor:
        """The enlarged coarse patches of halves (N, S, H, W): frames (N, S, 4)."""
        image_aspect = halves.shape[-2] / halves.shape[-1]
        v = self.coarse(crop_views(halves, full_frames(halves), image_aspect))
        return enlarge_pose(pose_from_vector(v, self.coarse_aspect / image_aspect), ENLARGE)

    def poses(self, halves: Tensor) -> Tensor:
        """Where the fine patches lie in halves (N, S, H, W): theta (N, S, 4)."""
        frames = self.frames(halves)
        v = self.fine(crop_views(halves, frames, self.coarse_aspect))
        theta = pose_from_vector(v, self.fine_aspect / self.coarse_aspect)
        return compose_pose(frames, theta, self.coarse_aspect, halves.shape[-2] / halves.shape[-1])


class PosePredictor(Protocol):
    """Whoever knows where the template lies in halves (N, S, H, W): theta (N, S, 4)."""

    def poses(self, halves: Tensor) -> Tensor: ...


def network_solver(networks: PosePredictor) -> Solver:
    """The minimiser that asks the networks."""

    @torch.no_grad()
    def find(problem: Problem) -> Solution:
        v = _vector(networks, problem)
        return Solution(v, problem.energy(v))

    return find


def refined_network_solver(networks: PosePredictor, sharpen: Refiner) -> Solver:
    """The minimiser that asks the networks where to start a sharpening."""
    return lambda problem: sharpen(problem, _vector(networks, problem))


@torch.no_grad()
def _vector(networks: PosePredictor, problem: Problem) -> Tensor:
    return vector_from_pose(networks.poses(problem.halves), problem.height_ratio)
