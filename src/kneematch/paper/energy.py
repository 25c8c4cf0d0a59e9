"""The energy f^T(u, v) that template matching minimises (paper, Sect. 4)."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor, maximum, minimum

from kneematch.paper.pose import pose_matrix
from kneematch.paper.template import Template
from kneematch.sampling import sample

# A patch whose deviation is below this share of its image's own is constant up to rounding.
ROUNDING: Final = 1e-5
TINY: Final = 1e-20  # keeps the derivative of a length finite at 0


def correlation(patch: Tensor, image: Tensor, floor: Tensor | float = 0.0) -> Tensor:
    """Return the normalised cross-correlations (...) of patches (..., H, W) with an image (H, W).

    They are 0 for a patch whose deviation is far below the floor (...).
    """
    patch = patch - patch.mean((-2, -1), keepdim=True)
    image = image - image.mean()
    noise = image.numel() * (floor * floor) + TINY
    length: Tensor = (patch.square().sum((-2, -1)) + noise).sqrt() * image.norm()
    return (patch * image).sum((-2, -1)) / length


def polarity_losses(
    patch: Tensor, template: Template, floor: Tensor | float = 0.0
) -> tuple[Tensor, Tensor]:
    """Return c~(u, T) and c~(-u, T), (...) each, of patches u (..., H, W).

    c~ is the mean of the cost 1 - NCC of the whole template and of the worse of its two windows.
    """
    whole = correlation(patch, template.image, floor)
    red = correlation(patch[template.red], template.image[template.red], floor)
    green = correlation(patch[template.green], template.image[template.green], floor)
    return 1 - (whole + minimum(red, green)) / 2, 1 + (whole + maximum(red, green)) / 2


def one_sided_loss(patch: Tensor, template: Template, floor: Tensor | float = 0.0) -> Tensor:
    """Return L(u, T), (...), of patches u (..., H, W); an image negative matches as well."""
    return minimum(*polarity_losses(patch, template, floor))


def symmetry_penalty(theta: Tensor) -> Tensor:
    """Return L^reg (...), the squared differences of scale and height of two sides (..., 2, 4).

    It is 0 for films of one side, (..., 1, 4).
    """
    if theta.shape[-2] == 1:
        return theta.new_zeros(theta.shape[:-2])
    left, right = theta.unbind(-2)
    return (left - right)[..., 0:3:2].square().sum(-1)


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """Images and the template to find in them; the paper's energy has one term."""

    images: Tensor  # (N, S, H, W), u^left and u^right
    template: Template
    floor: Tensor  # (N, S), the deviation below which a patch counts as constant
    weight: float = 1.0

    def patches(self, theta: Tensor) -> Tensor:
        """Return the patches u(theta), (N, S, h, w), of the template's size at poses (N, S, 4)."""
        height, width = self.images.shape[-2:]
        matrices = pose_matrix(theta, self.template.aspect, height / width)
        return sample(self.images, matrices.to(self.images), self.template.size)


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """How well the template fits N radiographs with S sides at given poses."""

    loss: Tensor  # (N, S), L of each side
    negative: Tensor  # (N, S) bool, the image negative fits better
    energy: Tensor  # (N,), f


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """Minimise f over the poses of N radiographs with S sides."""

    terms: tuple[Term, ...]

    @property
    def images(self) -> Tensor:
        """The images u, (N, S, H, W)."""
        return self.terms[0].images

    @property
    def template(self) -> Template:
        """The template, as it was cut out."""
        return self.terms[0].template

    @property
    def image_aspect(self) -> float:
        """Height over width of an image."""
        return self.images.shape[-2] / self.images.shape[-1]

    @property
    def height_ratio(self) -> float:
        """Template aspect over image aspect, the paper's 1/f, as `pose_from_vector` takes it."""
        return self.template.aspect / self.image_aspect

    def losses(self, theta: Tensor) -> Tensor:
        """Return the loss (N, S) of each side at poses (N, S, 4): L, or its sum over terms."""
        total = theta.new_zeros(theta.shape[:-1])
        for term in self.terms:
            loss = one_sided_loss(term.patches(theta), term.template, term.floor)
            total = total + term.weight * loss
        return total

    def energy(self, theta: Tensor) -> Tensor:
        """Return f (N,) at poses (N, S, 4): the losses of the sides plus L^reg."""
        return self.losses(theta).sum(-1) + symmetry_penalty(theta)

    def match(self, theta: Tensor) -> Match:
        """Return losses, polarity and energy at poses (N, S, 4), by the first term."""
        term = self.terms[0]
        positive, negative = polarity_losses(term.patches(theta), term.template, term.floor)
        loss = minimum(positive, negative)
        total = loss.sum(-1) + symmetry_penalty(theta).to(loss)
        return Match(loss, negative < positive, total)

    def rearrange(self, change: Callable[[Tensor], Tensor]) -> "Problem":
        """Apply a function of the two leading axes to images (N, S, H, W) and floors (N, S)."""
        return Problem(
            tuple(
                replace(term, images=change(term.images), floor=change(term.floor))
                for term in self.terms
            )
        )


MakeProblem = Callable[[Tensor, Template], Problem]  # from images (N, S, H, W)
Solver = Callable[[Problem], Tensor]  # to poses (N, S, 4) of low energy


def paper_problem(images: Tensor, template: Template) -> Problem:
    """Return the paper's problem of finding a template in images (N, S, H, W)."""
    return Problem((Term(images, template.to(images), ROUNDING * deviation(images)),))


def deviation(images: Tensor) -> Tensor:
    """Return the standard deviation (...) of each image (..., H, W)."""
    return (images - images.mean((-2, -1), keepdim=True)).square().mean((-2, -1)).sqrt()


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """The poses of lowest energy that a refinement met, one set per radiograph."""

    theta: Tensor  # (N, S, 4)
    energy: Tensor  # (N,)


Refiner = Callable[[Problem, Tensor], Solution]  # from starts theta (N, S, 4)


def lower_energy(a: Solution, b: Solution) -> Solution:
    """Return, radiograph by radiograph, the solution of lower energy."""
    better = b.energy < a.energy
    return Solution(
        torch.where(better[:, None, None], b.theta, a.theta),
        torch.where(better, b.energy, a.energy),
    )
