"""The sharpening step: 300 iterations of Adam from a given start (paper, Algorithm 1)."""

from typing import Final

import torch
from torch import Tensor

from kneematch.paper.energy import Problem, Solution, lower_energy
from kneematch.paper.pose import pose_from_vector, vector_from_pose

STEPS: Final = 300
RATE: Final = 1e-2  # not in the paper: 1e-3 does not converge in 300 steps, 1e-1 diverges


def sharpen(problem: Problem, theta: Tensor, *, steps: int = STEPS) -> Solution:
    """Minimise f(u, v) over v from v_0 = D^-1(theta), for starts theta (N, S, 4).

    Returns:
        The best of all steps + 1 recorded values f(u, v_j), the start included.
    """
    ratio = problem.height_ratio
    v = vector_from_pose(theta.detach(), ratio).requires_grad_()
    optimiser = torch.optim.Adam([v], lr=RATE)
    best = Solution(theta.detach(), theta.new_full((len(theta),), torch.inf))
    for _ in range(steps):
        here = pose_from_vector(v, ratio)
        energies = problem.energy(here)
        best = lower_energy(best, Solution(here.detach(), energies.detach()))
        (v.grad,) = torch.autograd.grad(energies.sum(), v)
        optimiser.step()
    with torch.no_grad():
        here = pose_from_vector(v, ratio)
        return lower_energy(best, Solution(here, problem.energy(here)))
