"""Tests of train(), end to end on small phantoms."""

import logging
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kneematch import TrainConfig
from kneematch.errors import SettingsError, TemplateError
from kneematch.films.annotation import save_annotation
from kneematch.models.model_file import builtin_model, load_model
from kneematch.training.trainer import TrainResult, train, training_settings
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


def rows(metrics: Path) -> list[list[str]]:
    """Return phase, round, epoch and loss of each epoch."""
    return [line.split(",")[:4] for line in metrics.read_text().splitlines()[1:]]


def test_train_changes_both_networks_and_stores_what_they_depend_on(
    folder: Path, config: TrainConfig, trained: TrainResult
) -> None:
    assert (trained.films, trained.failures) == (FILMS, ())
    phase, number, epoch, loss = rows(folder / "a.metrics.csv")[1]
    assert (phase, number, epoch) == ("fine", "0", "1")
    assert loss == f"{trained.epochs[1].loss:.6f}"
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
