"""Whole runs with the built-in model."""

import csv
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from kneematch.batch.artifacts import distinct_names
from kneematch.batch.config import DetectConfig
from kneematch.batch.run import detect_files, detect_folder
from kneematch.detection.detector import Detector, FilmResult
from kneematch.errors import NoFrontalKnee, SettingsError
from kneematch.export.tables import TABLES
from kneematch.io.read import read
from kneematch.io.write import write_png16

CONFIG = DetectConfig(method="neural", device="cpu", workers=0)


@pytest.fixture
def named(films: Path, tmp_path: Path) -> list[str]:
    """Four films, one of them missing, one not a DICOM."""
    named = [str(tmp_path / name) for name in ("a.dcm", "missing.dcm", "b.dcm", "A.png")]
    shutil.copy(films / "phantom-00000.dcm", named[0])
    shutil.copy(films / "phantom-00001.dcm", named[2])
    write_png16(named[3], read(films / "phantom-00002.dcm").pixels)
    return named


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def written(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_detect_folder_writes_everything_that_is_requested(named: list[str], out: Path) -> None:
    sheet = out.with_suffix(".png")
    config = replace(
        CONFIG, overlays=True, crops=True, crop_px=50, export=("coco", "dicom"), sheet=sheet
    )
    result = detect_folder(named, out, config)
    assert (result.films, result.knees, result.failed) == (3, 6, 1)
    assert named[1] in result.reasons[0]
    assert result.unmade == 0  # the PNG is no DICOM to export, which is no failure
    sides, objects = ("left", "right"), ("report", "state", "picture")
    assert written(out) == {
        *TABLES,
        *("failures.csv", "journal.jsonl", "run.json", "report.html", "coco.json", "crops.csv"),
        *(f"overlays/{name}.png" for name in ("a", "b", "A-2")),
        *(f"crops/{name}-{side}.png" for name in ("a", "b", "A-2") for side in sides),
        *(f"dicom-objects/{name}-{kind}.dcm" for name in "ab" for kind in objects),
    }
    with (out / "crops.csv").open(newline="") as file:
        assert [row["file"] for row in csv.DictReader(file)][-1] == "A-2-right.png"
    with Image.open(out / "crops" / "A-2-left.png") as crop:
        assert (crop.size, crop.mode) == ((50, 50), "I;16")  # it has no spacing
    with Image.open(sheet) as drawn:
        assert drawn.width > 3 * 400
    run = json.loads((out / "run.json").read_text())
    with (out / "detections.csv").open(newline="") as file:
        review = sum(row["review"] == "yes" for row in csv.DictReader(file))
    counts = {"films": 3, "knees": 6, "no_knee": 0, "failed": 1, "review": review}
    assert run["counts"] == counts
    assert result.review == review
    assert set(run["sha256"]) == {"model"}
    assert len(json.loads((out / "coco.json").read_text())["images"]) == 3
    assert (out / "report.html").read_text().count("<img ") == 3


def test_detect_folder_finds_what_detect_finds(films: Path, out: Path, detector: Detector) -> None:
    """The command line and Python run the same stages."""
    detect_folder(films, out, CONFIG)
    rows = json.loads((out / "detections.json").read_text())
    paths = sorted(films.glob("*.dcm"))
    found = [knee for knees in detector.detect(paths) for knee in knees]
    assert [row["loss"] for row in rows] == pytest.approx([knee.loss for knee in found], abs=1e-6)
    assert [row["centre_x_px"] for row in rows] == pytest.approx(
        [knee.centre[0] for knee in found], abs=1e-3
    )


def test_detect_files_lists_a_film_without_a_knee(
    named: list[str], out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = Detector.results

    def without_the_first(self: Detector, batch: Sequence[Any]) -> Iterator[FilmResult]:
        for film, result in zip(batch, results(self, batch), strict=True):
            first = getattr(film, "size", None) == size
            yield FilmResult(failure=NoFrontalKnee("no knee here")) if first else result

    write_png16(named[0], np.eye(330, 410, dtype=np.float32))
    size = (330, 410)
    monkeypatch.setattr(Detector, "results", without_the_first)
    config = replace(CONFIG, overlays=True, crops=True, export=("coco", "dicom"))
    result = detect_files(named, out, config)
    assert (result.films, result.knees, result.no_knee, result.failed) == (2, 4, 1, 1)
    assert all(named[0] not in reason for reason in result.reasons)
    with (out / "failures.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["film", "status", "reason"]
    assert rows[1] == [named[0], "no_knee", "no frontal knee found"]
    assert rows[2][:2] == [named[1], "failed"]
    assert json.loads((out / "run.json").read_text())["counts"]["no_knee"] == 1
    page = (out / "report.html").read_text()
    assert "without a knee" in page
    assert "no frontal knee found" in page
    monkeypatch.undo()
    again = detect_files(named, out, replace(config, resume=True))
    assert again == result  # the film is not searched again


def test_detect_files_resumes_only_what_is_missing(
    named: list[str], out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = detect_files(named, out, replace(CONFIG, overlays=True))
    monkeypatch.setattr(Detector, "find", None)  # so that nothing can be searched again
    pictures = out / "overlays"
    (pictures / "b.png").unlink()
    os.utime(pictures / "a.png", ns=(2 * 10**18, 2 * 10**18))
    again = replace(CONFIG, overlays=True, crops=True, resume=True)
    assert detect_files(named, out, again) == first
    assert (pictures / "b.png").exists()
    assert (pictures / "a.png").stat().st_mtime == 2 * 10**9  # untouched
    assert (out / "crops" / "a-left.png").exists()


def test_detect_files_draws_pictures_of_an_earlier_run_again(named: list[str], out: Path) -> None:
    detect_files(named, out, replace(CONFIG, overlays=True))
    picture = out / "overlays" / "a.png"
    picture.write_bytes(b"of other detections")
    hour_ago = time.time() - 3600
    os.utime(picture, (hour_ago, hour_ago))
    detect_files(named, out, replace(CONFIG, overlays=True, force=True))
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_detect_files_touches_no_file_that_is_not_its_own(named: list[str], out: Path) -> None:
    for name in ("overlays/mine.png", "dicom/film.dcm", "notes.txt"):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text("mine")
    detect_files(named, out, CONFIG)
    detect_files(named, out, replace(CONFIG, force=True, overlays=True))
    for name in ("overlays/mine.png", "dicom/film.dcm", "notes.txt"):
        assert (out / name).read_text() == "mine"


def test_detect_files_goes_on_when_a_film_is_gone_before_it_is_drawn(
    named: list[str], out: Path
) -> None:
    detect_files(named, out, CONFIG)
    Path(named[0]).unlink()
    result = detect_files(named, out, replace(CONFIG, overlays=True, resume=True))
    assert (result.films, result.unmade) == (3, 1)
    assert named[0] in result.unmade_reasons[0]
    assert {path.name for path in (out / "overlays").iterdir()} == {"b.png", "A-2.png"}


def test_detect_files_writes_the_same_bytes_with_workers(named: list[str], out: Path) -> None:
    config, elsewhere = replace(CONFIG, overlays=True, crops=True), out.with_name("elsewhere")
    alone = detect_files(named, out, config)
    shared = detect_files(named, elsewhere, replace(config, workers=2, batch_size=5))
    assert replace(shared, out=out) == alone
    assert written(elsewhere) == written(out)
    for name in sorted(written(out)):
        if name not in ("run.json", "report.html", "journal.jsonl"):
            assert (elsewhere / name).read_bytes() == (out / name).read_bytes()


@pytest.mark.parametrize("change", ["films", "template", "paper", "method", "model"])
def test_detect_files_refuses_to_resume_another_run(
    named: list[str], out: Path, template: str, change: str, tmp_path: Path
) -> None:
    config = replace(CONFIG, template=template, method="search")
    detect_files(named, out, config)
    films = named[:-1] if change == "films" else named
    shutil.copytree(Path(template).parent, tmp_path / "copy")
    copy = tmp_path / "copy" / "template.json"
    copy.write_text(Path(template).read_text().replace("\n", "\n\n"))
    changed: dict[str, Any] = {
        "films": {},
        "template": {"template": str(copy)},
        "paper": {"paper": True},
        "method": {"method": "neural"},
        "model": {"model": str(_other_model(tmp_path))},
    }
    with pytest.raises(SettingsError, match=f"{change}[a-z_]* was"):
        detect_files(films, out, replace(config, resume=True, **changed[change]))
    with pytest.raises(SettingsError, match="--resume, start over with --force"):
        detect_files(named, out, config)


def _other_model(folder: Path) -> Path:
    """A model with the built-in one's networks, in a file of other bytes."""
    from kneematch.networks.model_file import load_model, save_model, shipped_model

    model = load_model(shipped_model())
    save_model(folder / "other.safetensors", replace(model, settings={"note": "another file"}))
    return folder / "other.safetensors"


def test_detect_files_refuses_the_folder_of_an_older_version(named: list[str], out: Path) -> None:
    out.mkdir()
    (out / "ledger.jsonl").write_text('{"format": "kneematch-ledger/1"}\n')
    for config in (CONFIG, replace(CONFIG, resume=True)):
        with pytest.raises(SettingsError, match="there is a run in this folder already"):
            detect_files(named, out, config)
    assert written(out) == {"ledger.jsonl"}
    assert detect_files(named, out, replace(CONFIG, force=True)).knees == 6


def test_detect_files_checks_the_size_of_crops_before_films_are_searched(
    named: list[str], out: Path
) -> None:
    with pytest.raises(SettingsError, match="crops of mm"):
        detect_files(named, out, replace(CONFIG, crops=True, crop_mm=-1.0))
    assert not out.exists()


def test_distinct_names_ignore_case_and_are_found_quickly() -> None:
    assert distinct_names(["a/1.dcm", "b/1", "1.png", "1-2.dcm", "X", "x.dcm"]) == [
        "1",
        "1-2",
        "1-3",
        "1-2-2",
        "X",
        "x-2",
    ]
    started = time.monotonic()
    assert len(set(distinct_names([f"{k}/001" for k in range(50_000)]))) == 50_000
    assert time.monotonic() - started < 5


def test_detect_result_lists_no_more_reasons_than_a_terminal_shows(out: Path) -> None:
    result = detect_files([f"missing-{k}.dcm" for k in range(25)], out, CONFIG)
    assert result.failed == 25
    assert len(result.reasons) == 10
