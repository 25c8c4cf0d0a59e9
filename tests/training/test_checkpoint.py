"""A training that is stopped anywhere ends with the weights of one that was not."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from kneematch.errors import SettingsError
from kneematch.solvers.adam import adam
from kneematch.training import phase, session
from kneematch.training.checkpoint import load_checkpoint
from kneematch.training.config import DEFAULT, PAPER, Recipe
from kneematch.training.distributed import Group
from kneematch.training.phase import Learner
from kneematch.training.phase_data import First
from kneematch.training.session import Session, Settings, prepare

FAST = {"epochs": 2, "batch_size": 2, "backbone_rate": 0.01, "head_rate": 0.01}
RECIPES = {
    "paper": replace(PAPER, rounds=2, **FAST),
    "default": replace(DEFAULT, rounds=1, **FAST, mean_template=1),
}
EPOCHS = {"paper": 8, "default": 4}
FILMS = 3
TOLD_OF = ("hash of films", "hash of template")


@dataclass(frozen=True)
class Stopping:
    """Films of which one, at last, cannot be had because someone pressed Ctrl-C."""

    films: Any
    reads: Iterator[int]
    last: int

    def __len__(self) -> int:
        return len(self.films)

    def halves(self, rows: Tensor) -> Tensor:
        if next(self.reads) >= self.last:
            raise KeyboardInterrupt
        return self.films.halves(rows)


@pytest.fixture
def begin(cohort: Any, small: Callable, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Session]:
    """Prepare a session on the tiny cohort with small networks."""
    drawn = cohort.drawn
    refined = replace(drawn, fine=replace(drawn.fine, image=drawn.fine.image.square()))
    monkeypatch.setattr(phase, "adam", partial(adam, steps=4))
    monkeypatch.setattr(session, "draw", lambda annotation, device: (drawn, cohort.half))
    monkeypatch.setattr(
        session, "start_networks", lambda name, seed: (small(seed), small(seed + 1))
    )

    def make(recipe: Recipe, resume: Path | None = None, films: Any = None) -> Session:
        def find(*given: Any) -> tuple[Any, Tensor]:
            assert resume is None, "the checkpoint has them"
            return refined, cohort.truth[:FILMS].clone()

        monkeypatch.setattr(session, "find_targets", find)
        settings = Settings(recipe, start="none")
        return prepare(
            films or First(cohort.films, FILMS), None, settings, TOLD_OF, Group(), resume
        )  # type: ignore[arg-type]

    return make


def weights(model: Any) -> dict[str, Tensor]:
    """All that a model is made of."""
    parts = {"image": model.fine_template.image, "detail": model.fine_template.fine_structure}
    for name in ("coarse", "fine"):
        state = getattr(model, name)
        parts |= {f"{name}.{key}": value.clone() for key, value in state.items()}
    return parts


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def ignore(phase: str, learner: Learner) -> None:
    """Nothing to report."""


@pytest.mark.parametrize("name", ["paper", "default"])
def test_stopped_after_any_epoch_a_training_ends_with_the_same_weights(
    begin: Callable, tmp_path: Path, name: str
) -> None:
    recipe, path = RECIPES[name], tmp_path / "checkpoint"
    losses: list[float] = []
    undisturbed = begin(recipe).run(
        tmp_path / "other", Group(), lambda phase, learner: losses.append(learner.loss)
    )
    wanted = weights(undisturbed)
    assert len(losses) == EPOCHS[name]
    for stop in range(1, EPOCHS[name] + 1):
        told: list[float] = []

        def stopping(phase: str, learner: Learner, told=told, stop=stop) -> None:  # type: ignore[no-untyped-def]
            told.append(learner.loss)
            if len(told) == stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            begin(recipe).run(path, Group(), stopping)
        again = begin(recipe, resume=path)
        model = again.run(
            path, Group(), lambda phase, learner, told=told: told.append(learner.loss)
        )
        assert same(weights(model), wanted), f"stopped after {stop} epochs"
        assert told == losses
        path.unlink()


@pytest.mark.parametrize("name", ["paper", "default"])
def test_stopped_in_the_middle_again_and_again_it_still_ends_with_the_same_weights(
    begin: Callable, cohort: Any, tmp_path: Path, name: str
) -> None:
    recipe, path = RECIPES[name], tmp_path / "checkpoint"
    wanted = weights(begin(recipe).run(tmp_path / "other", Group(), ignore))
    stops = 0
    for patience in range(3, 40, 2):
        films = Stopping(First(cohort.films, FILMS), iter(range(10_000)), patience)
        resume = path if path.exists() else None
        try:
            model = begin(recipe, resume, films).run(path, Group(), ignore)
            break
        except KeyboardInterrupt:
            stops += 1
            load_checkpoint(path, begin(recipe).told, "cpu")  # whole
    assert stops > 1
    assert same(weights(model), wanted)
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".")] == []


def test_a_training_that_goes_on_does_learn(begin: Callable, tmp_path: Path) -> None:
    recipe, path = RECIPES["default"], tmp_path / "checkpoint"

    def stopping(phase: str, learner: Learner) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        begin(recipe).run(path, Group(), stopping)
    before = load_checkpoint(path, begin(recipe).told, "cpu").network("coarse")
    after = begin(recipe, resume=path).run(path, Group(), ignore)
    moved = (after.coarse["regress.weight"] - before["regress.weight"]).abs().max()
    assert float(moved) > 1e-3


@pytest.fixture
def stopped(begin: Callable, tmp_path: Path) -> Path:
    """The checkpoint of a training that was stopped after its first epoch."""

    def stopping(phase: str, learner: Learner) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        begin(RECIPES["default"]).run(tmp_path / "checkpoint", Group(), stopping)
    return tmp_path / "checkpoint"


OURS = Settings(RECIPES["default"], start="none").told(*TOLD_OF)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("seed", 7),
        ("start", "imagenet"),
        ("films", "hash of other films"),
        ("template", "hash of another template"),
        ("recipe", {**OURS["recipe"], "batch_size": 3}),
    ],
)
def test_a_checkpoint_of_another_training_is_refused(
    stopped: Path, name: str, other: object
) -> None:
    load_checkpoint(stopped, OURS, "cpu")
    with pytest.raises(SettingsError, match=rf"checkpoint: was trained with {name} .*expected"):
        load_checkpoint(stopped, {**OURS, name: other}, "cpu")


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999])
def test_a_torn_checkpoint_is_refused(stopped: Path, share: float) -> None:
    content = stopped.read_bytes()
    stopped.write_bytes(content[: int(share * len(content))])
    with pytest.raises(SettingsError, match=r"checkpoint: cannot be read .*delete it and start"):
        load_checkpoint(stopped, OURS, "cpu")


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"no such file.*leave --resume out"):
        load_checkpoint(tmp_path / "none", OURS, "cpu")
    with pytest.raises(SettingsError, match="cannot be read"):
        load_checkpoint(tmp_path, OURS, "cpu")
    other = tmp_path / "other.safetensors"
    save_file(
        {"x": torch.zeros(1)}, other, {"format": "kneematch-model/1", "about": json.dumps({})}
    )
    with pytest.raises(SettingsError, match="not a checkpoint"):
        load_checkpoint(other, OURS, "cpu")
