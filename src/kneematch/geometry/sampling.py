"""Sample patches u(theta) of images (paper, Sect. 3), and resize images with anti-aliasing."""

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from scipy.sparse import csr_array


def sample(images: Tensor, matrices: Tensor, size: tuple[int, int]) -> Tensor:
    """Sample the patch that each matrix maps into its image; zero outside the image.

    Coordinates are [-1, 1] from edge to edge of an image, not from centre to centre of its first
    and last pixel. An image that is shared by several matrices (its axis is missing, of length 1
    or expanded) is not copied for each of them.

    Args:
        images: (..., H, W).
        matrices: (..., 2, 3), from the patch's [-1, 1]^2 into the image's.
        size: (height, width) of the patches.

    Returns:
        Patches, (..., height, width).
    """
    leading = matrices.shape[:-2]
    images = images.expand(*leading, *images.shape[-2:])
    shared = [k for k, stride in enumerate(images.stride()[:-2]) if stride == 0 and leading[k] > 1]
    own = [k for k in range(len(leading)) if k not in shared]
    flat = images.permute(*shared, *own, -2, -1)[(0,) * len(shared)]
    flat = flat.reshape(-1, 1, *images.shape[-2:])
    grid = _grid(matrices.permute(*own, *shared, -2, -1).reshape(-1, 2, 3), size)
    # The patches of one image are stacked vertically, as one tall patch.
    grid = grid.reshape(len(flat), -1, size[1], 2)
    patches = F.grid_sample(flat, grid, mode="bilinear", align_corners=False)
    patches = patches.reshape(*[leading[k] for k in [*own, *shared]], *size)
    home = sorted(range(len(leading)), key=[*own, *shared].__getitem__)
    return patches.permute(*home, -2, -1)


def _grid(matrices: Tensor, size: tuple[int, int]) -> Tensor:
    """Return where the pixels of the patches of matrices (K, 2, 3) lie in the image: (K, h, w, 2).

    The same as F.affine_grid in a tenth of its time: the sum of a row and a column of points,
    which are added as complex numbers.
    """
    height, width = size
    dtype, device = matrices.dtype, matrices.device
    x = torch.arange(1 - width, width, 2, dtype=dtype, device=device) / width
    y = torch.arange(1 - height, height, 2, dtype=dtype, device=device) / height
    across = matrices[:, None, :, 0] * x[:, None]
    down = matrices[:, None, :, 1] * y[:, None] + matrices[:, None, :, 2]
    row, column = (torch.view_as_complex(points.contiguous()) for points in (across, down))
    return torch.view_as_real(row[:, None] + column[:, :, None])


def resize(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize images (..., H, W) to (height, width), with anti-aliasing, edges on edges."""
    flat = images.reshape(-1, 1, *images.shape[-2:])
    smaller = size[0] < images.shape[-2] or size[1] < images.shape[-1]
    if smaller and not images.is_cuda:  # rows first: two thirds of the time on a CPU
        rows = size[0], images.shape[-1]
        flat = F.interpolate(flat, rows, mode="bilinear", align_corners=False, antialias=True)
    resized = F.interpolate(flat, size, mode="bilinear", align_corners=False, antialias=smaller)
    return resized.reshape(*images.shape[:-2], *size)


def stretch(
    image: Tensor,
    axis: int,
    span: tuple[int, int],
    count: int,
    lit: tuple[int, int] | None = None,
) -> Tensor:
    """Resize rows (axis 0) or columns (axis 1) of an image (H, W) to `count`, as `resize` does.

    The rows or columns may lie outside the image, so that a film need not be copied to be padded.

    Args:
        image: (H, W), on a CPU.
        axis: the axis to resize.
        span: the first row or column to resize and the one after the last; may lie outside.
        count: the number of rows or columns of the result.
        lit: from and to where the image's outermost row or column is repeated; others are black.
    """
    length = image.shape[axis]
    weights = _tent_weights(span, count, lit or (0, length), length)
    lines = image.numpy() if axis == 0 else image.numpy().T
    made = torch.from_numpy(weights @ np.ascontiguousarray(lines))
    return made if axis == 0 else made.mT


def _tent_weights(
    span: tuple[int, int], count: int, lit: tuple[int, int], length: int
) -> "csr_array":
    """Return the weights (count, length) of a tent filter, the anti-aliasing one of `resize`."""
    from scipy.sparse import csr_array  # takes 0.2 s

    scale = (span[1] - span[0]) / count
    reach = max(scale, 1.0)
    centres = scale * (np.arange(count)[:, None] + 0.5)
    taps = np.floor(centres - reach + 0.5).astype(int) + np.arange(math.ceil(2 * reach) + 1)
    weights = (1 - np.abs(taps + 0.5 - centres) / reach).clip(min=0)
    weights[(taps < 0) | (taps >= span[1] - span[0])] = 0
    weights /= weights.sum(1, keepdims=True)
    places = taps + span[0]
    weights[(places < lit[0]) | (places >= lit[1])] = 0
    starts = np.arange(0, taps.size + 1, taps.shape[1])
    columns = places.clip(0, length - 1).ravel()
    return csr_array((weights.astype(np.float32).ravel(), columns, starts), (count, length))
