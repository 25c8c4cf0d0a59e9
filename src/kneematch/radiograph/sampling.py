"""u(theta): patches of half images (paper, Sect. 3); the only place that samples an image."""

import torch.nn.functional as F
from torch import Tensor


def sample(images: Tensor, matrices: Tensor, size: tuple[int, int]) -> Tensor:
    """Sample the patch that each matrix maps into its image; zero outside the image.

    Coordinates are [-1, 1] from edge to edge of an image, not from centre to centre of its first
    and last pixel.

    Args:
        images: (..., H, W).
        matrices: (..., 2, 3), from the patch's [-1, 1]^2 into the image's.
        size: (height, width) of the patches.

    Returns:
        Patches, (..., height, width).
    """
    leading = matrices.shape[:-2]
    flat = images.expand(*leading, *images.shape[-2:]).reshape(-1, 1, *images.shape[-2:])
    grid = F.affine_grid(matrices.reshape(-1, 2, 3), [len(flat), 1, *size], align_corners=False)
    patches = F.grid_sample(flat, grid, mode="bilinear", align_corners=False)
    return patches.reshape(*leading, *size)


def resize(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize images (..., H, W) to (height, width), with anti-aliasing, edges on edges."""
    flat = images.reshape(-1, 1, *images.shape[-2:])
    resized = F.interpolate(flat, size=size, mode="bilinear", align_corners=False, antialias=True)
    return resized.reshape(*images.shape[:-2], *size)
