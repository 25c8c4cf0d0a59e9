"""What is lowered: the same for a film in any company, and nothing at the answer."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from kneematch.geometry.frames import NARROW, Spread, seen_from
from kneematch.geometry.pose import vector_from_pose
from kneematch.networks.pose_network import look, whole
from kneematch.solvers.problem import problem
from kneematch.training import losses as objectives
from kneematch.training.losses import Objective, distance_from, energy_of
from kneematch.training.phase_data import Lesson
from kneematch.training.two_phases import around

ROWS = torch.tensor([3, 0, 4, 2])


@pytest.fixture
def halves_lesson(cohort: Any) -> Lesson:
    frames = whole(cohort.films.pixels)
    return Lesson(cohort.films, cohort.drawn.coarse, 1.6, frames, printed=True)


@pytest.fixture
def patches_lesson(cohort: Any) -> Lesson:
    """Turned and off the middle."""
    frames = around(cohort.truth, cohort.drawn) + torch.tensor([0.1, 0.03, -0.02, 0.3])
    drawn = cohort.drawn
    return Lesson(cohort.films, drawn.fine, drawn.coarse.aspect, frames, printed=True)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def each(cohort: Any) -> dict[str, Objective]:
    return {"energy": energy_of(0.1), "distance": distance_from(cohort.truth, NARROW)}


@pytest.mark.parametrize("name", ["energy", "distance"])
def test_a_films_loss_is_the_same_alone_and_in_the_whole_batch(
    cohort: Any, small: Callable, patches_lesson: Lesson, name: str
) -> None:
    network, objective = small(0), each(cohort)[name]
    with torch.no_grad():
        together = objective(network, patches_lesson, ROWS, torch.arange(4), generator())
        after = generator()
        for k in range(4):
            mine = torch.tensor([k])
            alone = objective(network, patches_lesson, ROWS, mine, after := generator())
            assert torch.allclose(alone, together[k : k + 1], rtol=1e-4)
        shared = objective(network, patches_lesson, ROWS, torch.tensor([1, 3]), generator())
    assert torch.allclose(shared, together[1::2], rtol=1e-4)
    assert together.shape == (4,)
    assert len(set(together.tolist())) == 4
    # And so is what will be drawn next.
    whole_batch = generator()
    with torch.no_grad():
        objective(network, patches_lesson, ROWS, torch.arange(4), whole_batch)
    assert torch.equal(after.get_state(), whole_batch.get_state())


def test_the_papers_objective_is_the_energy_of_the_networks_answer(
    cohort: Any, small: Callable, halves_lesson: Lesson
) -> None:
    network, halves = small(0), cohort.films.pixels[ROWS]
    with torch.no_grad():
        found = energy_of(0.0)(network, halves_lesson, ROWS, torch.arange(4), generator())
        v = network(look(halves, whole(halves), 1.6))
        wanted = problem(halves, halves_lesson.template, paper=True).energy(v)
    assert torch.allclose(found, wanted, rtol=1e-5)


def test_a_view_is_moved_by_up_to_a_share_of_itself_and_not_turned(
    small: Callable, patches_lesson: Lesson, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Tensor] = []
    monkeypatch.setattr(
        Lesson, "answer", lambda self, network, halves, frames: seen.append(frames) or frames
    )
    drawn = generator()
    for _ in range(50):
        energy_of(0.1)(small(0), patches_lesson, ROWS, torch.arange(4), drawn)
    frames = patches_lesson.frames[ROWS]
    moves = torch.stack([seen_from(frames, now, patches_lesson.aspect, 1.6) for now in seen])
    assert torch.allclose(moves[..., 0], torch.ones(()), atol=1e-5)
    assert torch.allclose(moves[..., 3], torch.zeros(()), atol=1e-5)
    largest = (moves[..., 1:3] / 2).abs().flatten(0, 2).amax(0)  # of a view, which is 2 wide
    assert bool((largest <= 0.1 + 1e-6).all())
    assert bool((largest > 0.095).all())


def test_a_network_that_knows_the_answer_is_at_no_distance(
    cohort: Any, patches_lesson: Lesson, monkeypatch: pytest.MonkeyPatch
) -> None:
    def knows(views: Tensor) -> Tensor:
        return vector_from_pose(wanted[-1], ratio)

    wanted: list[Tensor] = []
    moved, ratio = objectives.moved, patches_lesson.ratio
    monkeypatch.setattr(
        objectives, "moved", lambda *given: wanted.append(moved(*given)) or wanted[-1]
    )
    objective = distance_from(cohort.truth, NARROW)
    loss = objective(knows, patches_lesson, ROWS, torch.arange(4), generator())
    assert float(loss.max()) < 1e-4


def test_the_distance_is_in_widths_of_the_template(cohort: Any, patches_lesson: Lesson) -> None:
    still, drawn = Spread(0.0, 0.0, 0.0), cohort.drawn
    lesson = Lesson(
        cohort.films,
        drawn.fine,
        drawn.coarse.aspect,
        around(cohort.truth, drawn) * torch.tensor([1.2, 1, 1, 1]),
        printed=False,
    )
    nominal = seen_from(lesson.frames, cohort.truth, lesson.aspect, 1.6)[ROWS]

    def a_tenth_aside(views: Tensor) -> Tensor:
        step = torch.zeros_like(nominal)
        step[:, 0, 1] = 0.1 * 2 * nominal[:, 0, 0]  # the left sides alone
        return vector_from_pose(nominal + step, lesson.ratio)

    loss = distance_from(cohort.truth, still)(
        a_tenth_aside, lesson, ROWS, torch.arange(4), generator()
    )
    assert torch.allclose(loss, torch.tensor(0.1), atol=1e-3)
