"""The minimisation problem, at one or several resolutions, and its solution."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kneematch.paper.energy import Terms, energy, paper_terms, robust_terms
from kneematch.paper.pose import pose_from_vector
from kneematch.paper.template import Template, Window
from kneematch.sampling import resize


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """Minimise f(u, v) over v, for N radiographs of S sides."""

    terms: Terms

    @property
    def halves(self) -> Tensor:
        """The half images, (N, S, H, W)."""
        return self.terms[0].halves

    @property
    def template(self) -> Template:
        """The template, as it was cut out."""
        return self.terms[0].template

    @property
    def image_aspect(self) -> float:
        """Height over width of a half image."""
        return self.halves.shape[-2] / self.halves.shape[-1]

    @property
    def height_ratio(self) -> float:
        """Template aspect over image aspect, as `pose_from_vector` takes it."""
        return self.template.aspect / self.image_aspect

    def energy(self, v: Tensor) -> Tensor:
        """Return the energies f(u, v), (N,), at vectors v (N, S, 4)."""
        return energy(self.terms, pose_from_vector(v, self.height_ratio))

    def rearrange(self, change: Callable[[Tensor], Tensor]) -> "Problem":
        """Apply a function of the two leading axes to the halves (N, S, H, W) and floors (N, S)."""
        return Problem(
            tuple(
                replace(term, halves=change(term.halves), floor=change(term.floor))
                for term in self.terms
            )
        )


def make_problem(halves: Tensor, template: Template, *, paper: bool = False) -> Problem:
    """Return the problem of finding a template, moved to the device of the halves (N, S, H, W)."""
    template = template.to(halves)
    return Problem((paper_terms if paper else robust_terms)(halves, template))


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """The vectors of lowest energy that a refinement met, one per radiograph."""

    v: Tensor  # (N, S, 4)
    energy: Tensor  # (N,)


Solver = Callable[[Problem], Tensor]  # vectors v (N, S, 4) of low energy
Refiner = Callable[[Problem, Tensor], Solution]  # from a start (N, S, 4)


def lower_energy(a: Solution, b: Solution) -> Solution:
    """Return, radiograph by radiograph, the solution of lower energy."""
    better = b.energy < a.energy
    return Solution(
        torch.where(better[:, None, None], b.v, a.v), torch.where(better, b.energy, a.energy)
    )


def pyramid(problem: Problem, factors: tuple[int, ...]) -> dict[int, Problem]:
    """Return the problem on halves and templates that are each factor times smaller, by factor."""
    height, width = problem.halves.shape[-2:]
    levels, terms = {}, problem.terms
    for factor in sorted(set(factors)):
        size = height // factor, width // factor
        rows, columns = (max(round(side / factor), 1) for side in problem.template.size)
        # Each image is made from the next larger one, so that its anti-aliasing filter is small.
        terms = tuple(
            replace(
                larger,
                halves=larger.halves
                if larger.halves.shape[-2] <= size[0]
                else resize(larger.halves, size),
                template=resize_template(term.template, (rows, columns)),
            )
            for term, larger in zip(problem.terms, terms, strict=True)
        )
        levels[factor] = Problem(terms)
    return levels


def resize_template(template: Template, size: tuple[int, int]) -> Template:
    """Resize a template to (height, width); its windows are rounded to pixels."""

    def resized(window: Window) -> Window:
        spans = []
        for span, before, after in zip(window[1:], template.size, size, strict=True):
            start = min(round(span.start * after / before), after - 2)
            spans.append(slice(start, max(round(span.stop * after / before), start + 2)))
        rows, columns = spans
        return ..., rows, columns

    return replace(
        template,
        image=resize(template.image, size),
        local_contrast=resize(template.local_contrast, size),
        red=resized(template.red),
        green=resized(template.green),
    )
