"""Tests of `kneematch train`: output, signals, and errors in one line."""

import contextlib
import io
import math
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kneematch import TrainConfig
from kneematch.cli.main import main
from kneematch.knee.detector import Detector
from kneematch.models.model_file import builtin_model, load_model
from kneematch.training.trainer import Epoch, training_settings, write_metrics
from kneephantoms import SynthConfig, synthesize
from servers import eventually
from tables import read_table


def command(folder: Path, out: str, *more: str) -> list[str]:
    words = ["train", *sorted(folder.glob("*.dcm")), "--template", folder / "template.json"]
    words += ["-o", folder / out, "--workers", "0", "--device", "cpu"]
    words += ["--epochs", "1", "--batch-size", "2"]  # the second batch is one film
    return [str(word) for word in (*words, *more)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("train")
    synthesize(path, SynthConfig(3, size=(480, 480), workers=0))
    return path


@pytest.fixture(scope="module")
def trained(folder: Path) -> str:
    """Train in one process; return what it printed."""
    said, out = io.StringIO(), folder / "model.safetensors"
    out.write_text("an older model")
    with contextlib.redirect_stdout(said):
        assert main(command(folder, out.name, "--force")) == 0
    return said.getvalue()


def stopped(arguments: list[str], ready: Callable[[], bool], number: signal.Signals) -> str:
    """Run the real program until a condition holds, then send a signal; return stderr."""
    program = [sys.executable, "-m", "kneematch", *arguments]
    with subprocess.Popen(program, stderr=subprocess.PIPE, text=True) as process:
        try:
            eventually(lambda: ready() or process.poll() is not None, "it is to be stopped")
            process.send_signal(number)
            _, said = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 130
    return said


def test_train_changes_both_networks_and_stores_what_they_depend_on(
    folder: Path, trained: str
) -> None:
    assert "model.safetensors: trained on 3 films\nNext: kneematch detect FILMS --model " in trained
    assert sorted(path.name for path in folder.glob("*model*")) == [
        "model.metrics.csv",
        "model.safetensors",
    ]
    first, second = read_table(folder / "model.metrics.csv")
    assert [*first] == ["phase", "round", "epoch", "loss", "seconds"]
    assert [first["phase"], second["phase"]] == ["coarse", "fine"]
    assert 0 < float(first["seconds"]) < float(second["seconds"])
    before, after = load_model(builtin_model()), load_model(folder / "model.safetensors")
    for name in ("coarse", "fine"):
        start, end = getattr(before, name), getattr(after, name)
        assert not torch.equal(start["regress.0.weight"], end["regress.0.weight"])
        assert all(bool(value.isfinite().all()) for value in end.values())
        assert all(low <= 0 < high for low, high in after.ranges[name].values())
    config = TrainConfig(epochs=1, batch_size=2)
    settings = training_settings(config, folder / "template.json") | {"count": 3}
    assert settings == {name: after.settings[name] for name in settings}


def test_train_makes_a_model_that_finds_the_knees(folder: Path, trained: str) -> None:
    detector = Detector.load(folder / "model.safetensors", device="cpu")
    truth = read_table(folder / "truth.csv")
    films = sorted(folder.glob("*.dcm"))
    knees = [knee for pair in detector.detect(films) for knee in pair]
    for knee, row in zip(knees, truth, strict=True):
        left, right, centre = (
            (float(row[f"{name}_x_px"]), float(row[f"{name}_y_px"]))
            for name in ("plateau_medial", "plateau_lateral", "centre")
        )
        assert math.dist(knee.centre, centre) < 0.12 * math.dist(left, right), row["film"]
        assert set(knee.landmarks) == {"plateau_medial", "plateau_lateral"}


def test_train_resumes_after_sigint_and_sigterm(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = command(folder, "stopped.safetensors")
    words[1] = str(folder / "gone.dcm")  # in place of a film
    checkpoint = folder / "stopped.checkpoint.pt"
    metrics = folder / "stopped.metrics.csv"
    write_metrics([Epoch("coarse", 0, 1, 0.5, 1.0)] * 3, metrics)  # an earlier training
    said = stopped([*words, "--force"], checkpoint.exists, signal.SIGINT)
    assert f"{checkpoint}. Continue with the same command." in said
    assert "gone.dcm: No such file" in said
    assert "Traceback" not in said

    def one_phase_is_over() -> bool:
        rows = read_table(metrics)
        return len(rows) == 1 and rows[0]["loss"] != "0.500000"

    assert "Stopped. What is done is in" in stopped(words, one_phase_is_over, signal.SIGTERM)
    (first,) = read_table(metrics)
    assert not list(folder.glob(".*"))

    assert main(words) == 1  # a film was left out
    told = capsys.readouterr()
    assert "stopped.safetensors: trained on 2 films, 1 left out\n" in told.out
    rows = read_table(metrics)
    assert [(row["phase"], row["epoch"]) for row in rows] == [("coarse", "1"), ("fine", "1")]
    # The epoch is repeated, and takes another time, if its checkpoint was not written yet.
    assert rows[0]["loss"] == first["loss"]
    assert not checkpoint.exists()
    model = load_model(folder / "stopped.safetensors")
    assert all(bool(value.isfinite().all()) for value in model.coarse.values())
