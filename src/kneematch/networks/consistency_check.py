"""A second opinion on an area that was found: does the network, looking there, see it there?"""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from kneematch.geometry.frames import compose_pose, enlarge_pose, frame_from_poses
from kneematch.geometry.pose import corner_distance, pose_from_vector
from kneematch.networks.pose_network import crop_views
from kneematch.networks.two_stage import ENLARGE, TwoStageNetworks

ZOOM: Final = 0.88  # of the view, so that it is not the one that the area was found in


@dataclass(frozen=True, slots=True, eq=False)
class ConsistencyCheck:
    """The fine network, asked about areas of a template."""

    networks: TwoStageNetworks
    larger: float  # width of the coarse template over that of the fine one
    offset: Tensor | None = None  # (4,), of a template that is carried along

    @torch.no_grad()
    def __call__(self, halves: Tensor, theta: Tensor) -> Tensor:
        """How far from poses theta (N, S, 4) the network sees the knee, in widths: (N, S)."""
        image_aspect = halves.shape[-2] / halves.shape[-1]
        networks, theta = self.networks, theta.to(halves)
        if self.offset is not None:  # where the networks' own template would lie
            offset = self.offset.to(theta).expand_as(theta)
            theta = frame_from_poses(theta, offset, networks.fine_aspect, image_aspect)
        frames = enlarge_pose(theta, ZOOM * ENLARGE * self.larger)
        v = networks.fine(crop_views(halves, frames, networks.coarse_aspect))
        seen = pose_from_vector(v, networks.fine_aspect / networks.coarse_aspect)
        seen = compose_pose(frames, seen, networks.coarse_aspect, image_aspect)
        return corner_distance(seen, theta, networks.fine_aspect, image_aspect)
