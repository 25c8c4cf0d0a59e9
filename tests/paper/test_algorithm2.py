"""Algorithm 2 against the paper: T in the images, then T~ in the enlarged patches."""

from collections.abc import Callable
from typing import Any

import torch

from kneematch.paper.algorithm1 import Hyperparameters, PhaseData, PhaseState, energy_loss
from kneematch.paper.algorithm2 import (
    crop,
    enlarged_size,
    fine_phase,
    refine_in_crops,
    train_two_phases,
)
from kneematch.paper.energy import Problem, Solution, paper_problem
from kneematch.paper.network import network_input
from kneematch.paper.pose import compose_pose, pose_from_vector, pose_matrix
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
    films: Any, tiny_network: Callable
) -> None:
    coarse = tiny_network(0)
    data = PhaseData(films.images.__getitem__, 5, films.template)
    fine = fine_phase(data, coarse, films.template, at_once=2)
    with torch.no_grad():
        v = coarse(network_input(films.images))
    patches = pose_from_vector(v, films.template.aspect / 1.6) * torch.tensor([1.2, 1, 1, 1])
    assert enlarged_size(films.template) == (60, 60)
    rows = torch.tensor([4, 1])
    assert torch.allclose(fine.images(rows), crop(films.images, patches, (60, 60))[rows], atol=1e-5)
    assert fine.count == 5


def test_train_two_phases_trains_one_network_at_a_time(films: Any, tiny_network: Callable) -> None:
    networks = tiny_network(0), tiny_network(1)
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


def test_train_two_phases_resumes_where_it_was(films: Any, tiny_network: Callable) -> None:
    data = PhaseData(films.images.__getitem__, 5, films.template)

    def run(resume: Any) -> list[Any]:
        networks = tiny_network(0), tiny_network(1)
        phases = (lambda: data, lambda: fine_phase(data, networks[0], films.template))
        steps = train_two_phases(networks, phases, 2 * (energy_loss(),), FAST, resume=resume)
        return [(phase, state.state_dict(), networks[1].regress.weight) for phase, state in steps]

    whole = run(lambda phase, state: False)
    finished = whole[1][1]

    def resume(phase: str, state: PhaseState) -> bool:
        if phase == "coarse":
            state.load_state_dict({**finished, "round": 1, "epoch": 0})
        return phase == "coarse"

    rest = run(resume)
    assert [phase for phase, *_ in rest] == ["fine", "fine"]
    assert torch.equal(rest[-1][2], whole[-1][2])


def test_refine_in_crops_refines_poses_of_the_patches(films: Any) -> None:
    problem = paper_problem(films.images, films.template)
    crops = torch.tensor([0.7, 0.1, -0.1, 0.05]).expand(5, 2, 4)
    inside = torch.tensor([0.6, 0.0, 0.1, 0.02]).expand(5, 2, 4)
    theta = compose_pose(crops, inside, 1.0, 1.6)
    asked: list[Problem] = []

    def refine(question: Problem, start: torch.Tensor) -> Solution:
        asked.append(question)
        assert torch.allclose(start, inside, atol=1e-5)
        return Solution(start, question.energy(start))

    assert torch.allclose(refine_in_crops(problem, theta, crops, (60, 60), refine), theta)
    assert torch.allclose(asked[0].images, crop(films.images, crops, (60, 60)))
