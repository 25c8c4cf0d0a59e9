"""The question that every minimiser answers, and its answer."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kneematch.geometry.pose import pose_from_vector
from kneematch.matching.energy import Terms, energy, paper_terms, robust_terms
from kneematch.matching.template import Template


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """min over v of f(u, v), for N radiographs of S sides."""

    terms: Terms

    @property
    def halves(self) -> Tensor:
        """The half images as they are, (N, S, H, W)."""
        return self.terms[0].halves

    @property
    def template(self) -> Template:
        """The template as it was cut."""
        return self.terms[0].template

    @property
    def image_aspect(self) -> float:
        """Height over width of a half."""
        return self.halves.shape[-2] / self.halves.shape[-1]

    @property
    def height_ratio(self) -> float:
        """Template aspect over image aspect, as D wants it."""
        return self.template.aspect / self.image_aspect

    def energy(self, v: Tensor) -> Tensor:
        """f(u, v), (N,), at v (N, S, 4)."""
        return energy(self.terms, pose_from_vector(v, self.height_ratio))


def make_problem(halves: Tensor, template: Template, *, paper: bool = False) -> Problem:
    """Look for a template in halves (N, S, H, W) under the robust energy, or the paper's."""
    template = template.to(halves)
    return Problem((paper_terms if paper else robust_terms)(halves, template))


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """The lowest point met, one per radiograph."""

    v: Tensor  # (N, S, 4)
    energy: Tensor  # (N,)


Solver = Callable[[Problem], Solution]
Refiner = Callable[[Problem, Tensor], Solution]  # from a start (N, S, 4)


def lower_energy(a: Solution, b: Solution) -> Solution:
    """Take, row by row, the solution of lower energy."""
    better = b.energy < a.energy
    return Solution(
        torch.where(better[:, None, None], b.v, a.v), torch.where(better, b.energy, a.energy)
    )
