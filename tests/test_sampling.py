"""Sampling: edge-to-edge coordinates, zero outside, anti-aliased resizing."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kneematch.sampling import resize, resize_part, sample

IDENTITY = torch.tensor([[1.0, 0, 0], [0, 1, 0]])


def picture(*size: int) -> Tensor:
    return torch.rand(*size, generator=torch.Generator().manual_seed(0))


def test_resize_makes_a_fine_checkerboard_grey() -> None:
    rows, columns = torch.meshgrid(torch.arange(200), torch.arange(300), indexing="ij")
    board = ((rows + columns) % 2).float()
    small = resize(board, (30, 47))
    assert (small - 0.5).abs().max() < 0.03


def test_resize_keeps_edges_on_edges() -> None:
    ramp = (torch.arange(100) + 0.5).expand(40, 100)
    small = resize(ramp, (10, 25))
    wanted = (torch.arange(25) + 0.5) * 4
    assert torch.allclose(small[:, 2:-2], wanted[2:-2].expand(10, 21), atol=1e-4)


def test_resize_keeps_the_leading_axes_and_the_same_size() -> None:
    images = picture(2, 3, 20, 30)
    assert torch.allclose(resize(images, (20, 30)), images, atol=1e-6)
    small = resize(images, (5, 6))
    assert small.shape == (2, 3, 5, 6)
    assert torch.allclose(small[1, 2], resize(images[1, 2], (5, 6)))


@pytest.mark.parametrize("lengths", [(1, 1, 1), (1, 1, 2), (2, 1, 1), (1, 3, 1), (2, 3, 2)])
def test_sample_of_expanded_images_equals_that_of_copies(lengths: tuple[int, ...]) -> None:
    shape = 2, 3, 2
    images = picture(*lengths, 12, 8).double().expand(*shape, 12, 8)
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(*shape, 2, 3, generator=generator, dtype=torch.float64)
    matrices = (0.5 * IDENTITY + 0.2 * noise).requires_grad_()
    weights = torch.randn(*shape, 5, 7, generator=generator, dtype=torch.float64)
    expanded = sample(images, matrices, (5, 7))
    copied = sample(images.clone(memory_format=torch.contiguous_format), matrices, (5, 7))
    assert torch.equal(expanded, copied)
    one, other = (
        torch.autograd.grad((found * weights).sum(), matrices)[0] for found in (expanded, copied)
    )
    assert torch.allclose(one, other, atol=1e-12)


def test_sample_does_not_copy_a_shared_image() -> None:
    image = picture(1, 2, 160, 100)
    matrices = (0.1 * IDENTITY).expand(1000, 2, 2, 3)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        sample(image.expand(1000, 2, 160, 100), matrices, (4, 4))
    largest = max(event.cpu_memory_usage for event in profile.events())
    assert largest < 4 * image.numel() * 10  # bytes; copies would take 4 * image.numel() * 1000


def test_sample_grid_equals_affine_grid() -> None:
    image, matrices = picture(12, 8), IDENTITY + 0.1 * picture(4, 2, 3)
    grid = F.affine_grid(matrices, [4, 1, 5, 7], align_corners=False)
    wanted = F.grid_sample(image.expand(4, 1, 12, 8), grid, align_corners=False)[:, 0]
    assert torch.allclose(sample(image, matrices, (5, 7)), wanted, atol=1e-5)


@pytest.mark.parametrize("size", [(100, 47), (290, 411), (329, 30), (400, 800)])
def test_resize_part_equals_resize_of_a_padded_image(size: tuple[int, int]) -> None:
    image = picture(300, 400)
    wanted = resize(F.pad(image, (5, 6, 21, 8)), size)
    found = resize_part(image, (-21, 308), (-5, 406), size)
    assert torch.allclose(found, wanted, atol=1e-4)


def test_resize_part_repeats_the_outermost_column_as_far_as_it_is_told() -> None:
    image = picture(5, 80)
    wide = F.pad(image[None], (12, 0), mode="replicate")[0]
    wanted = resize(F.pad(wide[:, :60], (4, 0)), (5, 25))
    found = resize_part(image, (0, 5), (-16, 48), (5, 25), replicate=(-12, 80))
    assert torch.allclose(found, wanted, atol=1e-4)
