"""The question and its answer: what a problem knows, and which of two solutions is taken."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kneematch.paper.energy import energy, paper_terms
from kneematch.paper.pose import pose_from_vector
from kneematch.paper.problem import Solution, lower_energy, make_problem


def test_problem_has_the_shapes_of_halves_and_template(clouds: Callable, cut: Callable) -> None:
    template, _ = cut(clouds())
    question = make_problem(clouds(3, 2), template)
    assert question.halves.shape == (3, 2, 192, 120)
    assert question.image_aspect == 1.6
    assert question.height_ratio == pytest.approx(1 / 1.6)


def test_make_problem_has_one_term_for_the_paper_and_two_otherwise(
    clouds: Callable, cut: Callable
) -> None:
    template, _ = cut(clouds())
    assert len(make_problem(clouds(1, 2), template, paper=True).terms) == 1
    terms = make_problem(clouds(1, 2), template).terms
    assert len(terms) == 2
    assert sum(term.weight for term in terms) == pytest.approx(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_make_problem_gives_the_template_the_dtype_of_the_halves(
    clouds: Callable, cut: Callable, dtype: torch.dtype
) -> None:
    template, _ = cut(clouds())
    question = make_problem(clouds(1, 2).to(dtype), template)
    assert all(term.template.image.dtype == dtype for term in question.terms)
    assert question.energy(torch.zeros(1, 2, 4, dtype=dtype)).dtype == dtype


def test_problem_energy_of_a_vector_is_that_of_its_pose(clouds: Callable, cut: Callable) -> None:
    halves, (template, _) = clouds(3, 2), cut(clouds(seed=1))
    v = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(0))
    found = make_problem(halves, template, paper=True).energy(v)
    assert torch.equal(found, energy(paper_terms(halves, template), pose_from_vector(v, 1 / 1.6)))


def test_lower_energy_chooses_row_by_row() -> None:
    def solution(*energies: float) -> Solution:
        v: Tensor = torch.tensor(energies)[:, None, None].expand(-1, 2, 4)
        return Solution(v, torch.tensor(energies))

    taken = lower_energy(solution(0.1, 0.5, 0.3), solution(0.2, 0.4, float("nan")))
    assert taken.energy.tolist() == pytest.approx([0.1, 0.4, 0.3])
    assert torch.equal(taken.v[:, 1, 3], taken.energy)
