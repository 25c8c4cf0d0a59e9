"""What a network is to lower: the energy itself, or its distance from known poses."""

from collections.abc import Callable

import torch
from torch import Tensor

from kneematch.geometry.frames import Spread, frames_that_show, moved, seen_from, within
from kneematch.geometry.pose import corner_distance, pose_from_vector
from kneematch.geometry.split import HALF_ASPECT
from kneematch.matching.energy import energy
from kneematch.networks.pose_network import INPUT, look
from kneematch.networks.two_stage import Network
from kneematch.solvers.problem import problem
from kneematch.training.augmentation import draw_exposures, exposed
from kneematch.training.phase_data import Lesson

# From a network, a lesson, the films (B,) of a batch, which of these are asked for (K,), and a
# generator to a loss of each (K,). What is random is drawn for the whole batch, so that it does
# not depend on which process does which film.
Objective = Callable[[Network, Lesson, Tensor, Tensor, torch.Generator], Tensor]


def energy_of(shift: float) -> Objective:
    """The paper's: f(u, G(u)), with a small random translation (a share of the view)."""

    def objective(
        network: Network, lesson: Lesson, rows: Tensor, mine: Tensor, generator: torch.Generator
    ) -> Tensor:
        halves = lesson.films.halves(rows[mine])
        drawn = torch.rand(len(rows), 2, 2, generator=generator, device=generator.device)
        x, y = (2 * shift * (2 * drawn - 1)).unbind(-1)  # a view is 2 wide
        moves = torch.stack([torch.ones_like(x), x, y, torch.zeros_like(x)], dim=-1)[mine]
        frames = lesson.of(lesson.frames, rows[mine])
        frames = within(frames, moves, lesson.aspect, HALF_ASPECT)
        asked = problem(halves, lesson.template, paper=lesson.printed)
        return energy(asked.terms, lesson.answer(network, halves, frames))

    return objective


def distance_from(targets: Tensor, spread: Spread) -> Objective:
    """Ours: how far G(u)'s corners are from those of targets (N, 2, 4), in template widths.

    The view is another one each time, of another exposure; the target is known in any of them.
    """

    def objective(
        network: Network, lesson: Lesson, rows: Tensor, mine: Tensor, generator: torch.Generator
    ) -> Tensor:
        target = lesson.of(targets, rows)
        nominal = seen_from(lesson.of(lesson.frames, rows), target, lesson.aspect, HALF_ASPECT)
        wanted = moved(nominal, lesson.ratio, spread, generator)
        frames = frames_that_show(target, wanted, lesson.aspect, HALF_ASPECT)
        drawn = draw_exposures(2 * len(rows), INPUT, generator)
        both = torch.stack([2 * mine, 2 * mine + 1], dim=-1).flatten()
        halves = lesson.films.halves(rows[mine])
        views = exposed(look(halves, frames[mine], lesson.aspect), drawn[both])
        found = pose_from_vector(network(views), lesson.ratio)
        return corner_distance(found, wanted[mine], lesson.template.aspect, lesson.aspect).sum(-1)

    return objective
