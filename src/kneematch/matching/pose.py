"""Where a patch lies in a half image, and the map D that keeps it inside (paper, Sect. 3)."""

import math

import torch
from torch import Tensor

SCALE_MIN = 0.15  # alpha_0
SCALE_RANGE = 0.80  # beta_0
MAX_ROTATION = 0.13  # radians

# D^-1 is infinite at the border of D's range; the network itself never leaves |v| <= 3.
MAX_TANH = math.tanh(3)


def pose_from_vector(v: Tensor, height_ratio: float) -> Tensor:
    """Map any real vector to a pose inside the half image: theta = D(v).

    Args:
        v: (..., 4) unconstrained.
        height_ratio: template aspect over image aspect, so that scale * height_ratio is s2.

    Returns:
        theta, (..., 4): scale, centre x, centre y, rotation in radians.
    """
    t = v.tanh()
    scale = SCALE_MIN + SCALE_RANGE * (1 + t[..., 0]) / 2
    # The paper's -1 + 2a with a = (1 + tanh v) / 2 is tanh v itself.
    centre_x = (1 - scale) * t[..., 1]
    centre_y = (1 - scale * height_ratio) * t[..., 2]
    return torch.stack([scale, centre_x, centre_y, MAX_ROTATION * t[..., 3]], dim=-1)


def vector_from_pose(theta: Tensor, height_ratio: float) -> Tensor:
    """Map a pose (..., 4) to the vector (..., 4) that D sends there: v = D^-1(theta).

    A pose outside D's range gives the vector of a nearby pose inside it.
    """
    scale, centre_x, centre_y, rotation = theta.unbind(-1)
    scale = scale.clamp(SCALE_MIN, SCALE_MIN + SCALE_RANGE)
    t = torch.stack(
        [
            2 * (scale - SCALE_MIN) / SCALE_RANGE - 1,
            centre_x / (1 - scale),
            centre_y / (1 - scale * height_ratio),
            rotation / MAX_ROTATION,
        ],
        dim=-1,
    )
    return t.clamp(-MAX_TANH, MAX_TANH).atanh()


def pose_matrix(theta: Tensor, template_aspect: float, image_aspect: float) -> Tensor:
    """The map A(theta), (..., 2, 3), from the patch's [-1, 1]^2 into the half's.

    Both aspects are height over width in pixels. The rotation is rigid in pixels; for a square
    template the matrix is the paper's.
    """
    scale, centre_x, centre_y, rotation = theta.unbind(-1)
    cos, sin = rotation.cos(), rotation.sin()
    across = torch.stack([scale * cos, -scale * template_aspect * sin, centre_x], dim=-1)
    down = torch.stack([scale * sin, scale * template_aspect * cos], dim=-1) / image_aspect
    return torch.stack([across, torch.cat([down, centre_y[..., None]], dim=-1)], dim=-2)
