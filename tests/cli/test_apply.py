"""`kneematch apply`, and its errors."""

import shutil
from dataclasses import replace
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
    moved = replace(area(right), centre_x_px=area(right).centre_x_px + 5)
    with Run(run) as database:
        database.decide(1, "left", Decision("rejected", area(left)))
        database.decide(1, "right", Decision("corrected", moved))
    before = {path.name: path.read_bytes() for path in (run / "crops").iterdir()}
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    assert main(["apply", str(run), "--root", str(archive), "--workers", "0"]) == 0
    printed = capsys.readouterr()
    assert "detections.csv: 0 accepted, 1 rejected, 1 corrected, 0 to review" in printed.out
    assert "Exported 0 of 1 films; the other 1 are not DICOM." in printed.err
    (crop,) = (run / "crops").iterdir()
    assert crop.name.endswith(f"-{right['laterality'] or 'image-right'}.png")
    assert crop.read_bytes() != before[crop.name]
    first, second = read_table(run / "detections.csv")
    assert (first["decision"], second["decision"]) == ("rejected", "corrected")
    shutil.copy(run / "review.csv", tmp_path / "review.csv")
    with Run(run) as database:
        assert database.revoke() is not None
        assert database.revoke() is not None
    assert main(["apply", str(run), "--root", str(archive), "--quiet"]) == 0
    assert {path.name: path.read_bytes() for path in (run / "crops").iterdir()} == before
    assert not (run / "detections.original.csv").exists()
    assert read_table(run / "detections.csv") == [left, right]
    again = ["--decisions", str(tmp_path / "review.csv"), "--root", str(archive), "--quiet"]
    assert main(["apply", str(run), *again]) == 0
    assert read_table(run / "detections.csv") == [first, second]


def test_apply_reports_a_film_that_is_gone(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Run(run) as database:
        database.decide(1, "right", Decision("corrected", Area(200, 200, 150, 0)))
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    assert main(["apply", str(run), "--root", ".", "--quiet", "--workers", "0"]) == 1
    assert "film.jpg: " in capsys.readouterr().err
    assert read_table(run / "detections.csv")[1]["decision"] == "corrected"
