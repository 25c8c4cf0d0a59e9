"""Compare a detection with what the fine network finds in a view around it."""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from kneematch.geometry.frames import compose_pose, enlarge_pose, frame_from_poses
from kneematch.geometry.pose import corner_distance, pose_from_vector
from kneematch.networks.pose_network import crop_views
from kneematch.networks.two_stage import ENLARGE, TwoStageNetworks

ZOOM: Final = 0.88  # relative to the view of `TwoStageNetworks`, so that the two views differ


@dataclass(frozen=True, slots=True, eq=False)
class ConsistencyCheck:
    """The fine network, and how a template relates to its own."""

    networks: TwoStageNetworks
    larger: float  # width of the coarse template over that of the fine one
    offset: Tensor | None = None  # (4,), pose of a transferred template in the networks' own

    @torch.no_grad()
    def __call__(self, halves: Tensor, theta: Tensor) -> Tensor:
        """Return the distances (N, S) of the network's poses from given ones, in template widths.

        Args:
            halves: (N, S, H, W).
            theta: (N, S, 4), the poses to check.
        """
        image_aspect = halves.shape[-2] / halves.shape[-1]
        networks, theta = self.networks, theta.to(halves)
        if self.offset is not None:  # to the pose of the networks' own template
            offset = self.offset.to(theta).expand_as(theta)
            theta = frame_from_poses(theta, offset, networks.fine_aspect, image_aspect)
        frames = enlarge_pose(theta, ZOOM * ENLARGE * self.larger)
        v = networks.fine(crop_views(halves, frames, networks.coarse_aspect))
        seen = pose_from_vector(v, networks.fine_aspect / networks.coarse_aspect)
        seen = compose_pose(frames, seen, networks.coarse_aspect, image_aspect)
        return corner_distance(seen, theta, networks.fine_aspect, image_aspect)
