"""Tests of train(), end to end on small phantoms."""

import errno
import json
import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

import kneematch
from kneematch import TrainConfig
from kneematch.errors import SettingsError
from kneematch.models.model_file import builtin_model, load_model
from kneematch.progress import Advance
from kneematch.training.report import read_metrics
from kneematch.training.trainer import TrainResult, checkpoint_path, train, training_settings
from kneephantoms.config import SynthConfig
from kneephantoms.dataset import synthesize

FILMS = 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two phantoms, a template, and the cache of prepared films."""
    path = tmp_path_factory.mktemp("trainer")
    synthesize(path, SynthConfig(FILMS, size=(480, 480), workers=0))
    return path


@pytest.fixture(scope="module")
def config(folder: Path) -> TrainConfig:
    return TrainConfig(epochs=1, device="cpu", workers=0, cache=folder / "cache", seed=3)


@pytest.fixture(scope="module")
def trained(folder: Path, config: TrainConfig) -> TrainResult:
    """A training that nothing interrupts."""
    return train(
        sorted(folder.glob("*.dcm")), folder / "template.json", folder / "a.safetensors", config
    )


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


def weights(path: Path) -> dict[str, Tensor]:
    return load_file(path)


def test_train_is_exported() -> None:
    assert kneematch.train is train


def test_train_writes_a_model_and_files_beside_it(folder: Path, trained: TrainResult) -> None:
    assert trained.model == folder / "a.safetensors"
    assert (trained.films, trained.failures) == (FILMS, ())
    assert [(row.phase, row.round, row.epoch) for row in trained.epochs] == [
        ("coarse", 0, 1),
        ("fine", 0, 1),
    ]
    rows = read_metrics(folder / "a.metrics.csv")
    assert [row.loss for row in rows] == pytest.approx(
        [row.loss for row in trained.epochs], abs=1e-6
    )
    with Image.open(folder / "a.preview.png") as preview:
        assert preview.size == (4 * 250 + 3 * 6, 400)  # both halves of two films
    assert {path.name for path in folder.glob("a.*")} == {
        "a.safetensors",
        "a.metrics.csv",
        "a.curves.png",
        "a.preview.png",
    }


def test_train_changes_both_networks(folder: Path, trained: TrainResult) -> None:
    before, after = load_model(builtin_model()), load_model(trained.model)
    for name in ("coarse", "fine"):
        start, end = getattr(before, name), getattr(after, name)
        assert not torch.equal(start["regress.0.weight"], end["regress.0.weight"])
        assert all(bool(value.isfinite().all()) for value in end.values())


def test_train_stores_the_ranges_of_activations(trained: TrainResult) -> None:
    ranges = load_model(trained.model).ranges
    assert ranges.keys() == {"coarse", "fine"}
    assert all(low <= 0 < high for each in ranges.values() for low, high in each.values())


def test_train_stores_what_the_weights_depend_on(
    folder: Path, config: TrainConfig, trained: TrainResult
) -> None:
    settings = load_model(trained.model).settings
    assert settings["count"] == FILMS
    assert settings["recipe"]["name"] == "default"
    expected = training_settings(config, folder / "template.json")
    assert expected == {name: settings[name] for name in expected}
    other = training_settings(replace(config, seed=4, epochs=2), folder / "template.json")
    assert {name for name in other if other[name] != expected[name]} == {"seed", "recipe"}


@pytest.mark.parametrize("stop", [1, 2])
def test_train_continues_from_a_checkpoint_to_the_same_weights(
    folder: Path, config: TrainConfig, trained: TrainResult, stop: int
) -> None:
    out, template = folder / f"b{stop}.safetensors", folder / "template.json"
    interrupted = Recorder(stop)
    with pytest.raises(KeyboardInterrupt):
        train(folder / "*.dcm", template, out, config, progress=interrupted)
    assert not out.exists()
    assert len(read_metrics(folder / f"b{stop}.metrics.csv")) == stop
    rest = Recorder()
    result = train(
        str(folder / "*.dcm"), template, out, replace(config, resume=True), progress=rest
    )
    assert rest.opened == [("preparing films", FILMS, 0), ("training", 2, stop)]
    assert [note.split()[0] for note in interrupted.notes + rest.notes] == ["coarse", "fine"]
    wanted, found = weights(trained.model), weights(out)
    assert wanted.keys() == found.keys()
    assert all(torch.equal(wanted[key], found[key]) for key in wanted)
    # Rows of the interrupted part were rounded when they were written.
    losses = [row.loss for row in trained.epochs]
    assert [row.loss for row in result.epochs] == pytest.approx(losses, abs=1e-6)
    assert not checkpoint_path(out).exists()


def test_train_refuses_to_overwrite_a_checkpoint(folder: Path, config: TrainConfig) -> None:
    out = folder / "c.safetensors"
    checkpoint_path(out).touch()
    with pytest.raises(SettingsError, match=r"an interrupted training already; .* with --resume"):
        train(folder, folder / "template.json", out, config)


def test_train_refuses_a_checkpoint_with_malformed_pseudo_labels(
    folder: Path, config: TrainConfig
) -> None:
    out = folder / "d.safetensors"
    with pytest.raises(KeyboardInterrupt):
        train(folder, folder / "template.json", out, config, progress=Recorder(1))
    path = checkpoint_path(out)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    assert json.loads(metadata["about"])["position"] == {"round": 0, "epoch": 1}
    tensors = load_file(path)
    save_file({**tensors, "targets": torch.zeros(3)}, path, metadata)
    with pytest.raises(SettingsError, match=r"malformed \(targets of shape \(3,\)"):
        train(folder, folder / "template.json", out, replace(config, resume=True))
    path.unlink()


def test_train_logs_films_that_cannot_be_used(
    folder: Path, config: TrainConfig, caplog: pytest.LogCaptureFixture
) -> None:
    film = shutil.copy(next(folder.glob("*.dcm")), folder / "copy")
    names = [film, folder / "gone.dcm"]
    with (
        caplog.at_level(logging.INFO, logger="kneematch"),
        pytest.raises(SettingsError, match="1 of 2 films can be used; expected 2 at least"),
    ):
        train(names, folder / "template.json", folder / "e.safetensors", config)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "gone.dcm: No such file" in caplog.text


def test_train_resumed_has_the_metrics_of_an_epoch_whose_writing_failed(
    folder: Path, config: TrainConfig, trained: TrainResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    films, out = sorted(folder.glob("*.dcm")), folder / "full.safetensors"
    with monkeypatch.context() as patched:
        patched.setattr("kneematch.training.trainer.write_metrics", full_disk)
        with pytest.raises(SettingsError, match="No space left"):
            train(films, folder / "template.json", out, config)
    train(films, folder / "template.json", out, replace(config, resume=True))
    found = read_metrics(folder / "full.metrics.csv")
    expected = read_metrics(folder / "a.metrics.csv")
    assert [(row.phase, row.epoch) for row in found] == [(row.phase, row.epoch) for row in expected]
