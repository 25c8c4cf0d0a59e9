"""The two training losses: the paper's energy, and the distance from pseudo-labels."""

import torch
from torch import Tensor

from kneematch.geometry.frames import (
    PoseJitter,
    compose_pose,
    frame_from_poses,
    jitter_pose,
    relative_pose,
)
from kneematch.geometry.pose import corner_distance, pose_from_vector
from kneematch.geometry.split import HALF_ASPECT
from kneematch.matching.energy import energy
from kneematch.networks.pose_network import INPUT, crop_views
from kneematch.networks.two_stage import Network
from kneematch.solvers.problem import make_problem as make_problem
from kneematch.training.augmentation import apply_exposures, draw_exposures
from kneematch.training.phase import Loss, PhaseData


def energy_loss(shift: float) -> Loss:
    """Return the paper's loss: the energy f(u, G(u)) of randomly translated views (Sect. 5).

    Args:
        shift: largest translation, as a fraction of the view.
    """

    def loss(
        network: Network, data: PhaseData, rows: Tensor, mine: Tensor, generator: torch.Generator
    ) -> Tensor:
        halves = data.films.halves(rows[mine])
        drawn = torch.rand(len(rows), 2, 2, generator=generator, device=generator.device)
        x, y = (2 * shift * (2 * drawn - 1)).unbind(-1)  # a view is 2 wide
        translations = torch.stack([torch.ones_like(x), x, y, torch.zeros_like(x)], dim=-1)[mine]
        frames = compose_pose(data.frames_of(rows[mine]), translations, data.aspect, HALF_ASPECT)
        problem = make_problem(halves, data.template, paper=data.paper_energy)
        return energy(problem.terms, data.predict(network, halves, frames))

    return loss


def pose_loss(targets: Tensor, spread: PoseJitter) -> Loss:
    """Return the mean distance of the predicted corners from the target's, in template widths.

    Every call draws new views and new exposures; the target is known in any view.

    Args:
        targets: (N, 2, 4), poses of the template in the halves.
        spread: how far the views are varied.
    """

    def loss(
        network: Network, data: PhaseData, rows: Tensor, mine: Tensor, generator: torch.Generator
    ) -> Tensor:
        target = targets[rows.to(targets.device)]
        nominal = relative_pose(data.frames_of(rows), target, data.aspect, HALF_ASPECT)
        wanted = jitter_pose(nominal, data.height_ratio, spread, generator)
        frames = frame_from_poses(target, wanted, data.aspect, HALF_ASPECT)
        exposures = draw_exposures(2 * len(rows), INPUT, generator)
        both_sides = torch.stack([2 * mine, 2 * mine + 1], dim=-1).flatten()
        halves = data.films.halves(rows[mine])
        views = apply_exposures(
            crop_views(halves, frames[mine], data.aspect), exposures[both_sides]
        )
        found = pose_from_vector(network(views), data.height_ratio)
        return corner_distance(found, wanted[mine], data.template.aspect, data.aspect).sum(-1)

    return loss
