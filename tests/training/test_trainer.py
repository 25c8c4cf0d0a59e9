"""Tests of train(), end to end on small phantoms."""

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from kneematch import TrainConfig
from kneematch.errors import SettingsError, TemplateError
from kneematch.films.annotation import save_annotation
from kneematch.models.model_file import builtin_model, load_model
from kneematch.progress import Advance
from kneematch.training.trainer import (
    TrainResult,
    checkpoint_path,
    train,
    training_settings,
)
from kneephantoms.config import SynthConfig
from kneephantoms.dataset import synthesize
from part_films import part_annotation

FILMS = 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two phantoms and a template."""
    path = tmp_path_factory.mktemp("trainer")
    synthesize(path, SynthConfig(FILMS, size=(480, 480), workers=0))
    return path


@pytest.fixture(scope="module")
def config(folder: Path) -> TrainConfig:
    return TrainConfig(epochs=1, device="cpu", workers=0, seed=3)


def test_train_refuses_a_template_of_another_part(
    folder: Path, config: TrainConfig, tmp_path: Path
) -> None:
    save_annotation(part_annotation(tmp_path, "one"), tmp_path / "part.json")
    with pytest.raises(TemplateError, match="knees only"):
        train(folder, tmp_path / "part.json", tmp_path / "a.safetensors", config)


@pytest.fixture(scope="module")
def trained(folder: Path, config: TrainConfig) -> TrainResult:
    """A training that nothing interrupts."""
    films = sorted(folder.glob("*.dcm"))
    return train(films, folder / "template.json", folder / "a.safetensors", config)


class Recorder:
    """A progress display that records its calls, and interrupts after some epochs."""

    def __init__(self, stop: int = 10) -> None:
        self.opened: list[tuple[str, int, int]] = []
        self.notes: list[str] = []
        self.stop = stop

    @contextmanager
    def __call__(self, label: str, total: int, done: int = 0) -> Iterator[Advance]:
        self.opened.append((label, total, done))

        def advance(note: str) -> None:
            if label == "training":
                self.notes.append(note)
                if len(self.notes) == self.stop:
                    raise KeyboardInterrupt

        yield advance


def rows(metrics: Path) -> list[list[str]]:
    """Return phase, round, epoch and loss of each epoch."""
    return [line.split(",")[:4] for line in metrics.read_text().splitlines()[1:]]


def test_train_writes_a_model_and_files_beside_it(folder: Path, trained: TrainResult) -> None:
    assert trained.model == folder / "a.safetensors"
    assert (trained.films, trained.failures) == (FILMS, ())
    losses = [f"{epoch.loss:.6f}" for epoch in trained.epochs]
    assert rows(folder / "a.metrics.csv") == [
        ["coarse", "0", "1", losses[0]],
        ["fine", "0", "1", losses[1]],
    ]
    assert {path.name for path in folder.glob("a.*")} == {"a.safetensors", "a.metrics.csv"}
    lines = (folder / "a.metrics.csv").read_text().splitlines()
    assert lines[0] == "phase,round,epoch,loss,seconds"


def test_train_changes_both_networks_and_stores_what_they_depend_on(
    folder: Path, config: TrainConfig, trained: TrainResult
) -> None:
    before, after = load_model(builtin_model()), load_model(trained.model)
    for name in ("coarse", "fine"):
        start, end = getattr(before, name), getattr(after, name)
        assert not torch.equal(start["regress.0.weight"], end["regress.0.weight"])
        assert all(bool(value.isfinite().all()) for value in end.values())
        assert all(low <= 0 < high for low, high in after.ranges[name].values())
    expected = training_settings(config, folder / "template.json")
    assert expected == {name: after.settings[name] for name in expected}
    assert after.settings["count"] == FILMS
    other = training_settings(replace(config, seed=4, epochs=2), folder / "template.json")
    assert {name for name in other if other[name] != expected[name]} == {"seed", "epochs"}


def test_train_continues_from_a_checkpoint_to_the_same_weights(
    folder: Path, config: TrainConfig, trained: TrainResult
) -> None:
    out, template = folder / "b.safetensors", folder / "template.json"
    interrupted = Recorder(stop=1)
    with pytest.raises(KeyboardInterrupt):
        train(folder / "*.dcm", template, out, config, progress=interrupted)
    assert not out.exists()
    assert len(rows(folder / "b.metrics.csv")) == 1
    rest = Recorder()
    whole = checkpoint_path(out).read_bytes()
    other = torch.load(checkpoint_path(out), weights_only=True)
    other["states"]["coarse"]["network"].popitem()
    torch.save(other, checkpoint_path(out))
    with pytest.raises(SettingsError, match=r"b\.checkpoint\.pt is damaged\. Start over"):
        train(folder / "*.dcm", template, out, config)
    checkpoint_path(out).write_bytes(whole)
    result = train(str(folder / "*.dcm"), template, out, config, progress=rest)
    assert rest.opened == [("preparing films", FILMS, 0), ("training", 2, 1)]
    assert [note.split()[0] for note in interrupted.notes + rest.notes] == ["coarse", "fine"]
    wanted, found = load_file(trained.model), load_file(out)
    assert wanted.keys() == found.keys()
    assert all(torch.equal(wanted[key], found[key]) for key in wanted)
    assert [row.loss for row in result.epochs] == [row.loss for row in trained.epochs]
    assert not checkpoint_path(out).exists()


def test_train_logs_films_that_cannot_be_used(
    folder: Path, config: TrainConfig, caplog: pytest.LogCaptureFixture
) -> None:
    film = shutil.copy(next(folder.glob("*.dcm")), folder / "copy")
    names = [film, folder / "gone.dcm"]
    with (
        caplog.at_level(logging.INFO, logger="kneematch"),
        pytest.raises(SettingsError, match="1 of 2 films can be used"),
    ):
        train(names, folder / "template.json", folder / "e.safetensors", config)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "gone.dcm: No such file" in caplog.text
