"""Algorithm 2 against the paper: T in the images, then T~ in the enlarged patches."""

from collections.abc import Callable
from typing import Any

import torch

from kneematch.paper.algorithm1 import Hyperparameters, PhaseData, energy_loss
from kneematch.paper.algorithm2 import crop, enlarged_size, fine_phase, train_two_phases
from kneematch.paper.network import network_input
from kneematch.paper.pose import pose_from_vector, pose_matrix
from kneematch.sampling import sample

FAST = Hyperparameters(1, 1, 8, 0.05, 0.05)


def test_crop_shows_the_patch_at_a_pose(films: Any) -> None:
    whole = torch.tensor([1.0, 0, 0, 0]).expand(5, 2, 4)
    assert torch.allclose(crop(films.images, whole, (192, 120)), films.images, atol=1e-5)
    theta = torch.tensor([0.5, 0.1, -0.2, 0.05])
    part = crop(films.images, theta.expand(5, 2, 4), (60, 50))
    wanted = sample(films.images[2, 1], pose_matrix(theta, 60 / 50, 1.6), (60, 50))
    assert torch.allclose(part[2, 1], wanted, atol=1e-5)


def test_fine_phase_gives_the_enlarged_patches_of_the_coarse_network(
    films: Any, small_network: Callable
) -> None:
    coarse = small_network(0)
    data = PhaseData(films.images.__getitem__, 5, films.template)
    fine = fine_phase(data, coarse, films.template)
    with torch.no_grad():
        v = coarse(network_input(films.images))
    patches = pose_from_vector(v, films.template.aspect / 1.6) * torch.tensor([1.2, 1, 1, 1])
    assert enlarged_size(films.template) == (60, 60)
    rows = torch.tensor([4, 1])
    assert torch.allclose(fine.images(rows), crop(films.images, patches, (60, 60))[rows], atol=1e-5)
    assert fine.count == 5


def test_train_two_phases_trains_one_network_at_a_time(films: Any, small_network: Callable) -> None:
    networks = small_network(0), small_network(1)
    data = PhaseData(films.images.__getitem__, 5, films.template)
    begun = []

    def second() -> PhaseData:
        begun.append(networks[0].regress.weight.detach().clone())
        return fine_phase(data, networks[0], films.template)

    steps, weights = [], []
    losses = energy_loss(), energy_loss()
    for phase, state in train_two_phases(networks, (lambda: data, second), losses, FAST):
        steps.append((phase, state.epoch))
        weights.append([net.regress.weight.detach().clone() for net in networks])
    assert steps == [("coarse", 0), ("coarse", 1), ("fine", 0), ("fine", 1)]
    assert not torch.equal(weights[1][0], weights[0][0])
    assert torch.equal(weights[1][1], weights[0][1])
    assert torch.equal(begun[0], weights[1][0])  # the trained coarse network cuts the patches
    assert torch.equal(weights[3][0], weights[1][0])
    assert not torch.equal(weights[3][1], weights[1][1])
