"""Find a user's template without training, at a fixed pose relative to the networks' own template.

The networks find their own template on the annotated knee, which gives the relative pose.
"""

from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from kneematch.errors import TemplateError
from kneematch.models.pose_jitter import PoseJitter, crop_pose_from, jitter_pose
from kneematch.models.two_stage import TwoStageNetworks
from kneematch.paper.pose import relative_pose

VIEWS: Final = 24  # crops of the annotated knee, over which the networks' poses are averaged
JITTER: Final = PoseJitter(0.1, 0.1, 0.06)
# Deviation of the centres found in the views, in template widths: at most 0.01 on knees, 0.04 and
# more on noise, clouds and black.
LARGEST_SPREAD: Final = 0.02


@torch.no_grad()
def transfer_template(networks: TwoStageNetworks, half: Tensor, theta: Tensor) -> TwoStageNetworks:
    """Return networks that find the template which was drawn at a pose of a half image.

    Args:
        networks: they find their own template.
        half: (H, W), the annotated half image.
        theta: (4,), the pose of the drawn template in it.

    Raises:
        TemplateError: the networks do not find a knee there.
    """
    image_aspect = half.shape[-2] / half.shape[-1]
    own = _jittered_poses(networks, half[None, None])  # (VIEWS, 4)
    spread = own[:, 1:3].std(0).max() / (2 * own[:, 0].mean())
    if not spread < LARGEST_SPREAD:
        raise TemplateError(
            "The network sees no frontal knee in the annotated half of the film. Annotate another "
            "film, or use detect --method search or train --start none."
        )
    offset = relative_pose(own.mean(0).to(theta), theta, networks.fine_aspect, image_aspect)
    return replace(networks, offset=offset.to(half))


def _jittered_poses(networks: TwoStageNetworks, image: Tensor) -> Tensor:
    """Return the poses (VIEWS, 4) found in randomly jittered crops of an image (1, 1, H, W)."""
    image_aspect = image.shape[-2] / image.shape[-1]
    aspect, ratio = networks.coarse_aspect, networks.fine_aspect / networks.coarse_aspect
    theta = networks.poses(image).expand(VIEWS, 1, 4)
    nominal = relative_pose(networks.crop_poses(image), theta, aspect, image_aspect)
    generator = torch.Generator(image.device).manual_seed(0)
    wanted = jitter_pose(nominal, ratio, JITTER, generator)
    crop_poses = crop_pose_from(theta, wanted, aspect, image_aspect)
    return networks.poses_in_crops(image.expand(VIEWS, -1, -1, -1), crop_poses)[:, 0]
