"""`kneematch apply`, and its errors."""

import os
from pathlib import Path

import pytest
from PIL import Image

from kneematch.cli.main import main
from kneematch.films.read import read
from kneematch.knee.decision import Area, Decision
from kneematch.run.database import Run
from tables import read_table


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A phantom as JPEG, and the template of its family."""
    folder = tmp_path_factory.mktemp("archive")
    assert main(["synth", "-n", "1", "-o", str(folder / "films"), "--size", "512x512"]) == 0
    grey = (read(folder / "films" / "phantom-00000.dcm").pixels * 255).astype("uint8")
    Image.fromarray(grey).save(folder / "film.jpg", quality=95)
    return folder


@pytest.fixture
def run(archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run whose film has a relative path."""
    monkeypatch.chdir(archive)
    template = ["--template", "films/template.json", "--method", "search", "--device", "cpu"]
    out = tmp_path / "out"
    assert main(["detect", "film.jpg", *template, "--crops", "-o", str(out), "--quiet"]) == 0
    monkeypatch.chdir(tmp_path)
    return out


def test_apply_finds_relative_films_in_root_and_removes_what_was_rejected(
    run: Path, archive: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left, right = read_table(run / "detections.csv")
    names = ("centre_x_px", "centre_y_px", "width_px", "rotation_deg")
    x, y, width, angle = (float(right[name]) for name in names)
    before = {path.name: path.read_bytes() for path in (run / "crops").iterdir()}
    with Run(run) as database:
        rejected = Area(*(float(left[name]) for name in names))
        database.decide(1, "left", Decision("rejected", rejected))
        database.decide(1, "right", Decision("corrected", Area(x + 5, y, width, angle)))
    capsys.readouterr()
    assert main(["apply", str(run), "--quiet", "--workers", "0"]) == 1  # without its film
    assert "film.jpg: " in capsys.readouterr().err
    assert main(["apply", str(run), "--root", str(archive), "--workers", "0"]) == 0
    words = "detections.csv: 0 accepted, 1 rejected, 1 corrected, 0 to review"
    assert words in capsys.readouterr().out
    (crop,) = (run / "crops").iterdir()
    assert crop.read_bytes() != before[crop.name]
    decided = [row["decision"] for row in read_table(run / "detections.csv")]
    assert decided == ["rejected", "corrected"]
    with Run(run) as database:
        assert database.revoke()
        assert database.revoke()
    assert main(["apply", str(run), "--root", str(archive), "--quiet"]) == 0
    assert {path.name: path.read_bytes() for path in (run / "crops").iterdir()} == before
    assert read_table(run / "detections.csv") == [left, right]


@pytest.mark.parametrize("folder", ["missing", ".", "empty"])
def test_apply_reports_errors_in_one_line(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    assert main(["apply", folder]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("kneematch: ")
    assert printed.err.count("\n") == 1
    assert os.listdir(tmp_path) == ["empty"]  # noqa: PTH208
