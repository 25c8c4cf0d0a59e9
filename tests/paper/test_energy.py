"""The energy: its known answers, its invariances, and a plain NumPy computation of the same."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter, map_coordinates
from torch import Tensor

from kneematch.films.annotation import Annotation
from kneematch.knee.knee_images import film_tensor
from kneematch.paper.energy import (
    correlation,
    energy,
    losses,
    one_sided_loss,
    paper_terms,
    robust_terms,
    symmetry_penalty,
)
from kneematch.paper.pose import pose_from_vector
from kneematch.paper.split import split
from kneematch.paper.template import Template, cut_from_view
from kneematch.sampling import View, rectangle_to_film, transform
from kneephantoms.rendering import Knee, phantom
from phantom_films import radiograph

SIZE = (160, 100)
PHANTOMS = 40
ENERGIES = [pytest.param(paper_terms, id="printed"), pytest.param(robust_terms, id="robust")]


def clouds(*shape: int, seed: int = 0) -> Tensor:
    """Smooth random pictures in [0, 1], (*shape, H, W)."""
    noise = np.random.default_rng(seed).normal(size=(*shape, *SIZE))
    smooth = gaussian_filter(noise, (0,) * len(shape) + (3, 3))
    return torch.from_numpy((smooth - smooth.min()) / (smooth.max() - smooth.min()))


def cut(half: Tensor) -> tuple[Template, Tensor]:
    """A template of 48 x 40 pixels with two windows, and its pose."""
    view = View(half, rectangle_to_film(0, 0, SIZE[1], SIZE[0]))
    boxes = (30, 50, 70, 98), (20, 40, 80, 110), (32, 60, 44, 84), (56, 62, 68, 80)
    return cut_from_view(view, Annotation("film.png", "right", *boxes))


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


def box_around(knee: Knee, half: View, wide: float, tall: float) -> tuple[float, ...]:
    """A box at a knee, in plateau widths, that is cut off at the edge of its half."""
    plateau = math.dist(knee.plateau_left, knee.plateau_right)
    edges = transform(half.to_film, torch.tensor([[-1, -1], [1, 1]])).sort(dim=0).values.tolist()
    (x0, y0), (x1, y1) = edges
    (x, y), across, down = knee.centre, wide * plateau / 2, tall * plateau / 2
    return max(x - across, x0), max(y - down, y0), min(x + across, x1), min(y + down, y1)


def cut_from_phantom(seed: int, side: int) -> tuple[Tensor, Template, Tensor]:
    """The half of a phantom, the template at its knee and the template's pose there."""
    made = phantom(seed, size=(400, 500))
    halves = split(film_tensor(radiograph(made)))
    half = View(halves.pixels[side], halves.to_film[side])
    knee = made.knees[side]
    fine = box_around(knee, half, 1.3, 1.2)
    y, width = knee.centre[1], fine[2] - fine[0]
    windows = [
        (max(at - 0.12 * width, fine[0]), y - 0.2 * width, min(at + 0.12 * width, fine[2]), y)
        for at in (knee.plateau_left[0], knee.plateau_right[0])
    ]
    annotation = Annotation("phantom", knee.side, fine, fine, *windows)
    return half.pixels, *cut_from_view(half, annotation)


def test_energy_is_zero_where_the_template_was_cut_out() -> None:
    half = clouds()
    template, theta = cut(half)
    found = energy(paper_terms(half.expand(1, 2, *SIZE), template), theta.expand(1, 2, 4))
    assert float(found) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("f", ENERGIES)
def test_energy_is_higher_everywhere_else(f: Any) -> None:
    half = clouds()
    template, theta = cut(half)
    everywhere = torch.cat([theta.expand(1, 2, 4), poses(50, 2)])
    found = energy(f(half.expand(51, 2, *SIZE), template), everywhere)
    assert found[1:].min() > found[0] + 0.3


@pytest.mark.parametrize("f", ENERGIES)
@pytest.mark.parametrize(("gain", "offset"), [(0.1, 0.0), (7.0, 0.0), (1.0, -0.4), (-1.0, 1.0)])
def test_energy_does_not_depend_on_gain_offset_and_negation(
    f: Any, gain: float, offset: float
) -> None:
    halves, theta = clouds(6, 2), poses(6, 2)
    template, _ = cut(clouds(seed=1))
    usual = energy(f(halves, template), theta)
    changed = energy(f(gain * halves + offset, template), theta)
    assert torch.allclose(usual, changed, rtol=0, atol=1e-8)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-7)])
@pytest.mark.parametrize("sides", [1, 2])
def test_energy_equals_a_derivation_in_numpy(
    dtype: torch.dtype, tolerance: float, sides: int
) -> None:
    halves, theta = clouds(20, sides), poses(20, sides)
    template, _ = cut(clouds(20, sides)[3, 0] * 0.6 + clouds(seed=1) * 0.4)
    found = energy(paper_terms(halves.to(dtype), template.to(halves.to(dtype))), theta.to(dtype))
    wanted = [
        plain_energy(u, template, t) for u, t in zip(halves.numpy(), theta.numpy(), strict=True)
    ]
    assert found.shape == (20,)
    assert found.tolist() == pytest.approx(wanted, abs=tolerance)


@pytest.mark.parametrize("f", ENERGIES)
def test_energy_has_the_gradient_of_finite_differences(f: Any) -> None:
    problem = f(clouds(2, 2), cut(clouds(seed=1))[0])
    theta = poses(2, 2).requires_grad_()
    # So small a step that no sampling point comes across a pixel's centre, where slopes change.
    assert torch.autograd.gradcheck(lambda t: energy(problem, t), theta, eps=1e-7)


def test_energy_has_the_gradient_of_finite_differences_in_the_vector() -> None:
    problem = paper_terms(clouds(2, 1), cut(clouds(seed=1))[0])
    v = torch.randn(2, 1, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda x: energy(problem, pose_from_vector(x, 0.75)), (0.5 * v).requires_grad_(), eps=1e-7
    )


@pytest.mark.parametrize("f", ENERGIES)
def test_energy_of_one_side_has_no_penalty(f: Any) -> None:
    problem, theta = f(clouds(5, 1), cut(clouds(seed=1))[0]), poses(5, 1)
    assert torch.equal(energy(problem, theta), losses(problem, theta)[:, 0])
    assert torch.equal(symmetry_penalty(theta), torch.zeros(5, dtype=torch.float64))


def test_symmetry_penalty_is_the_squared_difference_of_scale_and_height() -> None:
    theta = torch.tensor([[[0.5, 0.1, 0.2, 0.0], [0.3, -0.4, -0.1, 0.1]]], dtype=torch.float64)
    assert float(symmetry_penalty(theta)) == pytest.approx(0.2**2 + 0.3**2)
    assert torch.equal(symmetry_penalty(theta), symmetry_penalty(theta.flip(1)))


def test_one_sided_loss_counts_the_worse_of_two_windows() -> None:
    template, _ = cut(clouds())
    patch = template.image.clone()
    patch[template.red] = patch[template.red].flip(0)
    whole = correlation(patch, template.image)
    red = correlation(patch[template.red], template.image[template.red])
    assert red < 0.9
    assert float(one_sided_loss(patch, template)) == pytest.approx(1 - float(whole + red) / 2)


def test_one_sided_loss_of_a_negative_is_that_of_the_film() -> None:
    template, _ = cut(clouds())
    assert float(one_sided_loss(1 - template.image, template)) == pytest.approx(0, abs=1e-6)


def test_correlation_has_its_known_answers() -> None:
    image = torch.tensor([[1.0, 2.0], [3.0, 6.0]], dtype=torch.float64)
    assert float(correlation(image, image)) == pytest.approx(1)
    assert float(correlation(-2 * image + 5, image)) == pytest.approx(-1)
    other = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64)
    assert float(correlation(other, image)) == pytest.approx(2 / (2 * math.sqrt(14)))


@pytest.mark.parametrize("grey", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_correlation_of_a_constant_patch_is_zero(grey: float, dtype: torch.dtype) -> None:
    image = clouds().to(dtype)
    patch = torch.full(SIZE, grey, dtype=dtype).requires_grad_()
    found = correlation(patch, image, 1e-6)
    found.backward()
    assert found.detach().abs() < 1e-5
    assert bool(patch.grad.isfinite().all())


@pytest.mark.parametrize("f", ENERGIES)
@pytest.mark.parametrize("grey", [0.0, 0.7, 1.0])
def test_energy_of_a_constant_film_is_finite_with_its_gradient(f: Any, grey: float) -> None:
    halves = torch.full((3, 2, *SIZE), grey)
    template = cut(clouds(seed=1))[0].to(halves)
    theta = poses(3, 2).float().requires_grad_()
    found = losses(f(halves, template), theta)
    found.sum().backward()
    assert bool(found.isfinite().all())
    assert bool(theta.grad.isfinite().all())
    assert found.min() > 0.9  # it matches nothing


@pytest.mark.parametrize("f", ENERGIES)
def test_losses_of_a_black_part_are_one_without_slope(f: Any) -> None:
    half = clouds().float()
    template, theta = cut(half)
    half[:, 72:] = 0
    inside = torch.tensor([0.2, 0.75, 0.0, 0.05])  # wholly in the black
    there = torch.stack([theta.float(), inside])[:, None].requires_grad_()
    found = losses(f(half.expand(2, 1, *SIZE), template), there)
    found.sum().backward()
    assert bool(there.grad.isfinite().all())
    assert found[0, 0] < 0.3
    assert found[1, 0] > 0.9
    if f is paper_terms:
        assert found[1, 0] == 1
        assert torch.equal(there.grad[1], torch.zeros(1, 4))


def test_energy_does_not_depend_on_the_batch() -> None:
    halves, theta = clouds(3, 2), poses(3, 2)
    template, _ = cut(clouds(seed=1))
    together = losses(paper_terms(halves, template), theta)
    alone = losses(paper_terms(halves[2:, 1:], template), theta[2:, 1:])
    assert float(together[2, 1]) == pytest.approx(float(alone), abs=1e-12)


@pytest.mark.parametrize("seed", range(PHANTOMS))
def test_energy_of_a_phantom_is_lowest_at_the_true_pose(seed: int) -> None:
    half, template, theta = cut_from_phantom(seed, side=seed % 2)
    steps = torch.tensor([0.02, 0.02, 0.02, 0.03], dtype=torch.float64)
    one = torch.eye(4, dtype=torch.int64)
    signs = torch.cat([0 * one[:1], one, -one, torch.cartesian_prod(*[torch.tensor([-1, 1])] * 4)])
    around = (theta + signs * steps).float()[:, None]
    found = energy(paper_terms(half.expand(len(around), 1, *half.shape), template), around)
    assert float(found[0]) == pytest.approx(0, abs=1e-4)
    assert found[1:].min() > 0.001
