"""`kneematch apply`, and its errors."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from kneematch.cli.main import main
from kneematch.films.read import read
from kneematch.run.decisions import Area, Decision, ReviewLog
from tables import read_table


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A phantom as JPEG, and its run, whose film has a relative path."""
    folder = tmp_path_factory.mktemp("archive")
    assert main(["synth", "-n", "1", "-o", str(folder / "films"), "--size", "512x512"]) == 0
    grey = (read(folder / "films" / "phantom-00000.dcm").pixels * 255).astype("uint8")
    Image.fromarray(grey).save(folder / "film.jpg", quality=95)
    return folder


@pytest.fixture
def run(archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(archive)
    template = ["--template", "films/template.json", "--method", "search", "--device", "cpu"]
    kinds = ["--crops", "--export", "dicom"]
    out = tmp_path / "out"
    assert main(["detect", "film.jpg", *template, *kinds, "-o", str(out), "--quiet"]) == 0
    return out


def area(row: dict[str, str]) -> Area:
    names = ("centre_x_px", "centre_y_px", "width_px", "rotation_deg")
    return Area(*(float(row[name]) for name in names))


def test_apply_finds_relative_films_in_root_and_removes_what_was_rejected(
    run: Path,
    archive: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    left, right = read_table(run / "detections.csv")
    log = ReviewLog(run / "review.csv")
    log.add(Decision("film.jpg", "left", "rejected", area(left)))
    moved = replace(area(right), centre_x_px=area(right).centre_x_px + 5)
    log.add(Decision("film.jpg", "right", "corrected", moved))
    log.close()
    before = {path.name: path.read_bytes() for path in (run / "crops").iterdir()}
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    assert main(["apply", str(run), "--root", str(archive), "--workers", "0"]) == 0
    printed = capsys.readouterr()
    assert "detections.csv: 0 accepted, 1 rejected, 1 corrected, 0 to review" in printed.out
    assert "1 of 1 films with knees are not DICOM" in printed.err
    (crop,) = (run / "crops").iterdir()
    assert crop.name.endswith("-right.png")
    assert crop.read_bytes() != before[crop.name]
    first, second = read_table(run / "detections.csv")
    assert (first["decision"], second["decision"]) == ("rejected", "corrected")
    log = ReviewLog(run / "review.csv")
    assert log.undo() is not None
    assert log.undo() is not None
    log.close()
    assert main(["apply", str(run), "--root", str(archive), "--quiet"]) == 0
    assert {path.name: path.read_bytes() for path in (run / "crops").iterdir()} == before
    assert not (run / "detections.original.csv").exists()
    assert read_table(run / "detections.csv") == [left, right]


def test_apply_reports_a_film_that_is_gone(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = ReviewLog(run / "review.csv")
    log.add(Decision("film.jpg", "right", "corrected", Area(200, 200, 150, 0)))
    log.close()
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    assert main(["apply", str(run), "--quiet", "--workers", "0"]) == 1
    assert "film.jpg: " in capsys.readouterr().err
    assert read_table(run / "detections.csv")[1]["decision"] == "corrected"


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
