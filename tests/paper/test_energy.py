"""The energy: its known answers, its invariances, and a plain NumPy computation of the same."""

import math

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter, map_coordinates
from torch import Tensor

from kneematch.paper.energy import paper_problem
from kneematch.paper.pose import pose_from_vector
from kneematch.paper.template import Template, cut
from kneematch.sampling import View, rectangle_to_film

SIZE = (160, 100)


def clouds(*shape: int, seed: int = 0) -> Tensor:
    """Smooth random pictures in [0, 1], (*shape, H, W)."""
    noise = np.random.default_rng(seed).normal(size=(*shape, *SIZE))
    smooth = gaussian_filter(noise, (0,) * len(shape) + (3, 3))
    return torch.from_numpy((smooth - smooth.min()) / (smooth.max() - smooth.min()))


def cut_out(image: Tensor) -> tuple[Template, Tensor]:
    """A template of 48 x 40 pixels with two windows, and its pose."""
    view = View(image, rectangle_to_film(0, 0, SIZE[1], SIZE[0]))
    return cut(view, (30, 50, 70, 98), (32, 60, 44, 84), (56, 62, 68, 80))[:2]


def poses(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    v = torch.randn(*shape, 4, generator=generator, dtype=torch.float64)
    return pose_from_vector(0.7 * v, 48 / 40 / 1.6)


def plain_energy(halves: np.ndarray, template: Template, theta: np.ndarray) -> float:
    """The paper's energy of one radiograph (S, H, W) at poses (S, 4), from its geometry alone."""

    def patch(half: np.ndarray, scale: float, x: float, y: float, turn: float) -> np.ndarray:
        (high, wide), (tall, broad) = half.shape, template.size
        pitch = scale * wide / broad  # one pixel of the patch in pixels of the half
        down, across = np.mgrid[:tall, :broad] + 0.5
        down, across = pitch * (down - tall / 2), pitch * (across - broad / 2)
        columns = (x + 1) / 2 * wide + math.cos(turn) * across - math.sin(turn) * down
        rows = (y + 1) / 2 * high + math.sin(turn) * across + math.cos(turn) * down
        return map_coordinates(half, [rows - 0.5, columns - 0.5], order=1, mode="grid-constant")

    def cost(a: np.ndarray, b: np.ndarray) -> float:
        a, b = a - a.mean(), b - b.mean()
        return 1 - float(np.vdot(a, b) / np.sqrt(np.vdot(a, a) * np.vdot(b, b)))

    image, (red, green) = template.image.numpy(), (template.red[1:], template.green[1:])

    def loss(found: np.ndarray) -> float:
        return 0.5 * (
            cost(found, image) + max(cost(found[red], image[red]), cost(found[green], image[green]))
        )

    patches = [patch(half, *pose) for half, pose in zip(halves, theta, strict=True)]
    total = sum(min(loss(found), loss(-found)) for found in patches)
    if len(theta) == 2:
        total += (theta[0, 0] - theta[1, 0]) ** 2 + (theta[0, 2] - theta[1, 2]) ** 2
    return float(total)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-7)])
@pytest.mark.parametrize("sides", [1, 2])
def test_energy_equals_a_derivation_in_numpy(
    dtype: torch.dtype, tolerance: float, sides: int
) -> None:
    halves, theta = clouds(20, sides), poses(20, sides)
    template, _ = cut_out(clouds(20, sides)[3, 0] * 0.6 + clouds(seed=1) * 0.4)
    found = paper_problem(halves.to(dtype), template).energy(theta.to(dtype))
    wanted = [
        plain_energy(u, template, t) for u, t in zip(halves.numpy(), theta.numpy(), strict=True)
    ]
    assert found.shape == (20,)
    assert found.tolist() == pytest.approx(wanted, abs=tolerance)


@pytest.mark.parametrize("grey", [0.0, 0.7, 1.0])
def test_energy_of_a_constant_film_is_finite_with_its_gradient(grey: float) -> None:
    halves = torch.full((3, 2, *SIZE), grey)
    template = cut_out(clouds(seed=1))[0].to(halves)
    theta = poses(3, 2).float().requires_grad_()
    found = paper_problem(halves, template).losses(theta)
    found.sum().backward()
    assert bool(found.isfinite().all())
    assert bool(theta.grad.isfinite().all())
    assert found.min() > 0.9  # it matches nothing


def test_losses_of_a_black_part_are_one_without_slope() -> None:
    half = clouds().float()
    template, theta = cut_out(half)
    half[:, 72:] = 0
    inside = torch.tensor([0.2, 0.75, 0.0, 0.05])  # wholly in the black
    there = torch.stack([theta.float(), inside])[:, None].requires_grad_()
    found = paper_problem(half.expand(2, 1, *SIZE), template).losses(there)
    found.sum().backward()
    assert bool(there.grad.isfinite().all())
    assert found[0, 0] < 0.3
    assert found[1, 0] == 1
    assert torch.equal(there.grad[1], torch.zeros(1, 4))


def test_match_returns_the_losses_polarity_and_energy() -> None:
    half = clouds().float()
    template, theta = cut_out(half)
    images = torch.stack([half, 1 - half])[None]
    there = theta.float().expand(1, 2, 4) + torch.tensor([[[0.02, 0, 0, 0], [0, 0, 0, 0]]])
    problem = paper_problem(images, template)
    match = problem.match(there)
    assert match.negative.tolist() == [[False, True]]
    assert torch.allclose(match.loss, problem.losses(there))
    assert torch.allclose(match.energy, problem.energy(there))
