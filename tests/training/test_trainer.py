"""train() on small phantoms; what it writes is tested with `kneematch train`."""

import logging
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from kneematch import TrainConfig
from kneematch.errors import SettingsError
from kneematch.training.trainer import train, training_settings
from kneephantoms import SynthConfig, synthesize

CONFIG = TrainConfig(epochs=1, device="cpu", workers=0, seed=3)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A template beside its film."""
    folder = tmp_path_factory.mktemp("trainer")
    made = synthesize(folder, SynthConfig(1, size=(480, 480), workers=0))
    assert made.template is not None
    return made.template


def test_training_settings_are_what_the_weights_depend_on(template: Path) -> None:
    settings = training_settings(CONFIG, template)
    other = training_settings(replace(CONFIG, seed=4, epochs=2, workers=1), template)
    assert {name for name in other if other[name] != settings[name]} == {"seed", "epochs"}


def test_train_logs_films_that_cannot_be_used(
    template: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    film = shutil.copy(next(template.parent.glob("*.dcm")), tmp_path / "copy")
    with (
        caplog.at_level(logging.INFO, logger="kneematch"),
        pytest.raises(SettingsError, match="1 of 2 films can be used"),
    ):
        train([film, tmp_path / "gone.dcm"], template, tmp_path / "e.safetensors", CONFIG)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "gone.dcm: No such file" in caplog.text
