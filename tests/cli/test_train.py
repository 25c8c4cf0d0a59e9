"""Tests of `kneematch train`: output, signals, and errors in one line."""

import contextlib
import io
import math
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from kneematch.cli.main import main
from kneematch.knee.detector import Detector
from kneematch.models.model_file import load_model
from kneematch.training.trainer import Epoch, write_metrics
from kneephantoms import SynthConfig, synthesize
from tables import read_table

FILMS = 3
DEFAULT = ["--epochs", "1", "--batch-size", "2"]  # the second batch is one film
LONGEST_S = 120  # that a process may take for an epoch, on a busy machine


@dataclass(frozen=True)
class Folder:
    """Films, and where everything else goes."""

    path: Path

    def command(self, out: str, *more: str) -> list[str]:
        films = [str(film) for film in sorted(self.path.glob("*.dcm"))]
        return [
            *["train", *films, "--template", str(self.path / "template.json")],
            *["-o", str(self.path / out), "--workers", "0", "--device", "cpu", *more],
        ]

    def written(self, stem: str) -> set[str]:
        return {entry.name.removeprefix(f"{stem}.") for entry in self.path.glob(f"{stem}.*")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    path = tmp_path_factory.mktemp("train")
    synthesize(path, SynthConfig(FILMS, size=(480, 480), workers=0))
    return Folder(path)


@pytest.fixture(scope="module")
def trained(folder: Folder) -> str:
    """Train in one process; return what it printed."""
    said, out = io.StringIO(), folder.path / "model.safetensors"
    out.write_text("an older model")
    with contextlib.redirect_stdout(said):
        assert main(folder.command(out.name, *DEFAULT, "--force")) == 0
    return said.getvalue()


def stopped(arguments: list[str], ready: Callable[[], bool], number: signal.Signals) -> str:
    """Run the real program until a condition holds, then send a signal; return stderr."""
    command = [sys.executable, "-m", "kneematch", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            latest = time.monotonic() + LONGEST_S
            while not ready():
                assert process.poll() is None
                assert time.monotonic() < latest
                time.sleep(0.02)
            process.send_signal(number)
            _, said = process.communicate(timeout=LONGEST_S)
        finally:
            process.kill()
    assert process.returncode == 130
    return said


def test_train_prints_the_number_of_films_and_leaves_no_temporary_file(
    folder: Folder, trained: str
) -> None:
    assert "model.safetensors: trained on 3 films\nNext: kneematch detect FILMS --model " in trained
    assert folder.written("model") == {"safetensors", "metrics.csv"}
    rows = read_table(folder.path / "model.metrics.csv")
    assert 0 < float(rows[0]["seconds"]) < float(rows[1]["seconds"])
    assert not list(folder.path.glob(".*"))


def test_train_makes_a_model_that_finds_the_knees(folder: Folder, trained: str) -> None:
    detector = Detector.load(folder.path / "model.safetensors", device="cpu")
    truth = read_table(folder.path / "truth.csv")
    films = sorted(folder.path.glob("*.dcm"))
    knees = [knee for pair in detector.detect(films) for knee in pair]
    for knee, row in zip(knees, truth, strict=True):
        left, right, centre = (
            (float(row[f"{name}_x_px"]), float(row[f"{name}_y_px"]))
            for name in ("plateau_medial", "plateau_lateral", "centre")
        )
        assert math.dist(knee.centre, centre) < 0.12 * math.dist(left, right), row["film"]
        assert set(knee.landmarks) == {"plateau_medial", "plateau_lateral"}


def test_train_resumes_after_sigint_and_sigterm(
    folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    command = folder.command("stopped.safetensors", *DEFAULT)
    command[1] = str(folder.path / "gone.dcm")  # in place of a film
    checkpoint = folder.path / "stopped.checkpoint.pt"
    metrics = folder.path / "stopped.metrics.csv"
    write_metrics([Epoch("coarse", 0, 1, 0.5, 1.0)] * 3, metrics)  # an earlier training
    said = stopped([*command, "--force"], checkpoint.exists, signal.SIGINT)
    assert f"{checkpoint}. Continue with the same command." in said
    assert "gone.dcm: No such file" in said
    assert "Traceback" not in said

    def one_phase_is_over() -> bool:
        rows = read_table(metrics)
        return len(rows) == 1 and rows[0]["loss"] != "0.500000"

    assert "Stopped. What is done is in" in stopped(command, one_phase_is_over, signal.SIGTERM)
    (first,) = read_table(metrics)
    assert not list(folder.path.glob(".*"))

    assert main(command) == 1  # a film was left out
    told = capsys.readouterr()
    assert "stopped.safetensors: trained on 2 films, 1 left out\n" in told.out
    rows = read_table(metrics)
    assert [(row["phase"], row["epoch"]) for row in rows] == [("coarse", "1"), ("fine", "1")]
    # The epoch is repeated, and takes another time, if its checkpoint was not written yet.
    assert rows[0]["loss"] == first["loss"]
    assert "checkpoint.pt" not in folder.written("stopped")
    model = load_model(folder.path / "stopped.safetensors")
    assert all(bool(value.isfinite().all()) for value in model.coarse.values())


@pytest.mark.parametrize(
    ("out", "message"),
    [("model.pt", "model.pt: "), ("template.json/x.safetensors", "cannot be written")],
)
def test_train_reports_errors_in_one_line(
    folder: Folder, capsys: pytest.CaptureFixture[str], out: str, message: str
) -> None:
    assert main(folder.command(out)) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert not folder.written("x")
