"""The paper's refinement: 300 steps of Adam from a given start (paper, Algorithm 1)."""

import torch
from torch import Tensor

from kneematch.paper.problem import Problem, Solution, lower_energy
from kneematch.search.settings import RATE, STEPS


def adam(problem: Problem, start: Tensor, *, steps: int = STEPS, rate: float = RATE) -> Solution:
    """Descend from start (N, S, 4); return the best of all steps + 1 values, the start included."""
    v = start.detach().clone().requires_grad_()
    optimiser = torch.optim.Adam([v], lr=rate)
    best = Solution(start.detach(), start.new_full((len(start),), torch.inf))
    for _ in range(steps):
        energies = problem.energy(v)
        best = lower_energy(best, Solution(v.detach().clone(), energies.detach()))
        (v.grad,) = torch.autograd.grad(energies.sum(), v)
        optimiser.step()
    with torch.no_grad():
        return lower_energy(best, Solution(v.detach(), problem.energy(v)))
