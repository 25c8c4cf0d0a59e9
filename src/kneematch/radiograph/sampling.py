"""u(theta): patches of half images (paper, Sect. 3); the only place that samples an image."""

import torch
import torch.nn.functional as F
from torch import Tensor


def sample(images: Tensor, matrices: Tensor, size: tuple[int, int]) -> Tensor:
    """Sample the patch that each matrix maps into its image; zero outside the image.

    Coordinates are [-1, 1] from edge to edge of an image, not from centre to centre of its first
    and last pixel. An image that serves many matrices, its axis left out, of length 1 or expanded,
    is not copied for each of them.

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
    # The patches of one image stand on top of each other, as one tall patch.
    grid = grid.reshape(len(flat), -1, size[1], 2)
    patches = F.grid_sample(flat, grid, mode="bilinear", align_corners=False)
    patches = patches.reshape(*[leading[k] for k in [*own, *shared]], *size)
    home = sorted(range(len(leading)), key=[*own, *shared].__getitem__)
    return patches.permute(*home, -2, -1)


def _grid(matrices: Tensor, size: tuple[int, int]) -> Tensor:
    """Where each pixel of the patches of matrices (K, 2, 3) lies in its image: (K, h, w, 2).

    F.affine_grid's values; as a sum of a row and a column it is a third of its work.
    """
    height, width = size
    dtype, device = matrices.dtype, matrices.device
    x = torch.arange(1 - width, width, 2, dtype=dtype, device=device) / width
    y = torch.arange(1 - height, height, 2, dtype=dtype, device=device) / height
    across = matrices[:, None, :, 0] * x[:, None]
    down = matrices[:, None, :, 1] * y[:, None] + matrices[:, None, :, 2]
    return across[:, None] + down[:, :, None]


def sample_at(image: Tensor, places: Tensor) -> Tensor:
    """Sample an image (H, W) at places (h, w, 2) of its [-1, 1]^2; beyond its edge is the edge."""
    flat, grid = image[None, None], places[None]
    return F.grid_sample(flat, grid, padding_mode="border", align_corners=False)[0, 0]


def resize(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize images (..., H, W) to (height, width), with anti-aliasing, edges on edges."""
    flat = images.reshape(-1, 1, *images.shape[-2:])
    resized = F.interpolate(flat, size=size, mode="bilinear", align_corners=False, antialias=True)
    return resized.reshape(*images.shape[:-2], *size)
