"""Whole runs with the built-in model."""

import json
import math
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pydicom
import pytest
from PIL import Image

from kneematch.errors import SettingsError
from kneematch.films.read import read
from kneematch.knee.detector import Detector
from kneematch.models.model_file import builtin_model, load_model, save_model
from kneematch.run import pipeline, visit
from kneematch.run.config import DetectConfig
from kneematch.run.database import Run
from kneematch.run.outputs.tables import detection_columns, open_table
from kneematch.run.pipeline import DetectResult, detect_folder
from kneephantoms.files import write_png16
from tables import read_table

CONFIG = DetectConfig(device="cpu", workers=0)


@pytest.fixture
def named(films: Path, tmp_path: Path) -> list[str]:
    """Four films, one of them missing, one not a DICOM."""
    named = [str(tmp_path / name) for name in ("a.dcm", "missing.dcm", "b.dcm", "A.png")]
    shutil.copy(films / "phantom-00000.dcm", named[0])
    shutil.copy(films / "phantom-00001.dcm", named[2])
    write_png16(named[3], read(films / "phantom-00002.dcm").pixels)
    return named


def content(folder: Path) -> dict[str, bytes]:
    """All files of a folder, temporary ones included."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def written(folder: Path) -> set[str]:
    return set(content(folder))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    paths: list[str] = []
    read = visit.read_isolated

    def counted(path: str, **how: bool) -> Any:
        paths.append(path)
        return read(path, **how)

    monkeypatch.setattr(visit, "read_isolated", counted)
    return paths


def test_detect_folder_reads_a_film_once(named: list[str], out: Path, reads: list[str]) -> None:
    config = replace(CONFIG, overlays=True, crops=True, measure=True, export=("dicom",))
    for _ in range(2):
        detect_folder(named[0], out, config)
    assert reads == named[:1]


def test_detect_folder_measures_the_knees_of_a_finished_run_without_a_search(
    named: list[str],
    out: Path,
    tmp_path: Path,
    reads: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config, measured = replace(CONFIG, overlays=True), replace(CONFIG, overlays=True, measure=True)
    detect_folder(named[:3], out, config)
    detect_folder(named, tmp_path / "at-once", measured)
    search = Detector.detect_radiographs
    searched: list[int] = []

    def counted(self: Detector, films: Any) -> Any:
        searched.append(len(films))
        return search(self, films)

    monkeypatch.setattr(Detector, "detect_radiographs", counted)
    result = detect_folder(named, out, measured)
    assert searched == [1]  # the new film
    for name in ("measurements.csv", "detections.csv", "overlays/a.jpg", "overlays/b.jpg"):
        assert (out / name).read_bytes() == (tmp_path / "at-once" / name).read_bytes()
    assert len(result.to_dataframe("measurements")) == result.knees == 6
    with pytest.raises(SettingsError, match="Add `measure` again"):
        detect_folder(named, out, config)
    reads.clear()
    detect_folder(named, out, measured)
    assert {*reads} == {named[1]}  # the missing one


def test_to_dataframe_has_names_as_texts_and_numbers(tmp_path: Path) -> None:
    names = ["007", "NA", os.fsdecode(b"\xff.dcm"), "one\rtwo,\n3.png"]
    with open_table(tmp_path / "detections.csv", detection_columns({})) as add:
        for name in names:
            add({"film": name, "loss": 0.5, "energy": math.nan})
    result = DetectResult(tmp_path, 4, 4, 0, 0, 0, (), 0, ())
    table = result.to_dataframe()
    names[2] = "\\xff.dcm"
    assert [*table["film"]] == names
    assert [*table["loss"]] == [0.5] * 4
    assert table["energy"].isna().all()
    with pytest.raises(SettingsError, match="has no table 'measurements'"):
        result.to_dataframe("measurements")


def test_detect_folder_writes_everything_that_is_requested(
    named: list[str], out: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = replace(CONFIG, overlays=True, crops=True, crop_mm=30.0, export=("coco", "dicom"))
    before = os.umask(0)
    try:
        result = detect_folder(named, out, config)
    finally:
        os.umask(before)
    for path in (out, *out.rglob("*")):  # all is for the owner only
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path
    assert (result.films, result.knees, result.failed) == (3, 6, 1)
    assert named[1] in result.reasons[0]
    assert result.missing == 0  # the PNG is no DICOM to export, which is no failure
    assert "Exported 2 of 3 films; the other 1 are not DICOM." in caplog.text
    sides, objects = ("R", "L"), ("report", "picture")
    assert written(out) == {
        *("detections.csv", "failures.csv", "run.json", "report.html", "coco.json", "crops.csv"),
        *("run.sqlite", "thumbnails.sqlite"),
        *(f"overlays/{name}.jpg" for name in ("a", "b", "a-2")),
        *(f"crops/{name}-{side}.png" for name in ("a", "b", "a-2") for side in sides),
        *(f"dicom-objects/{name}-{kind}.dcm" for name in "ab" for kind in objects),
    }
    assert read_table(out / "crops.csv")[-1]["file"] == "a-2-L.png"
    with Image.open(out / "crops" / "a-2-R.png") as crop:
        assert (crop.size, crop.mode) == ((100, 100), "I;16")
    run = json.loads((out / "run.json").read_text())
    review = sum(row["review"] == "yes" for row in read_table(out / "detections.csv"))
    counts = {"films": 3, "knees": 6, "no_knee": 0, "failed": 1, "review": review}
    counts |= {"accepted": 0, "rejected": 0, "corrected": 0}
    assert run["counts"] == counts
    assert result.review == review
    assert set(run["sha256"]) == {"model", "locator"}
    assert len(json.loads((out / "coco.json").read_text())["images"]) == 3
    assert (out / "report.html").read_text().count("<image ") == 3


def test_detect_folder_exports_films_in_colours_and_tries_again_what_it_could_not(
    named: list[str], out: Path
) -> None:
    dataset = pydicom.dcmread(named[0])
    grey = (dataset.pixel_array >> (dataset.BitsStored - 8)).astype(np.uint8)
    dataset.set_pixel_data(np.stack([grey] * 3, axis=-1), "RGB", 8)
    dataset.save_as(named[0])
    dataset = pydicom.dcmread(named[2])
    del dataset.StudyInstanceUID
    dataset.save_as(named[2])
    for _ in range(2):
        result = detect_folder([named[0], named[2]], out, replace(CONFIG, export=("dicom",)))
        assert "b.dcm: The header lacks StudyInstanceUID" in result.missing_reasons[0]
    made = {file.name for file in (out / "dicom-objects").iterdir()}
    assert made == {"a-report.dcm", "a-picture.dcm"}


def test_detect_folder_does_the_new_films_of_an_archive_only(
    named: list[str],
    out: Path,
    films: Path,
    reads: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = replace(CONFIG, overlays=True, crops=True)
    detect_folder(named, out, config)
    before = read_table(out / "detections.csv")
    kept = content(out / "crops")
    new = [str(out.parent / name / "a.dcm") for name in ("c", "d")]
    for path in new:
        Path(path).parent.mkdir()
        shutil.copy(films / "phantom-00003.dcm", path)
    Path(named[2]).unlink()
    shutil.copy(films / "phantom-00004.dcm", named[0])
    reads.clear()
    # Another name of a film, and another order; a film is left out, and another is gone.
    archive = [*new, named[3], os.path.relpath(named[0]), named[1]]
    with caplog.at_level("INFO", logger="kneematch"):
        result = detect_folder(archive, out, config)
    counts = "5 films: 2 done before, 2 new, 1 gone (kept in the table, marked), 1 changed"
    assert f"{counts}, 1 tried again" in caplog.messages
    assert {*reads} == {*named[:2], *new}
    assert (result.films, result.failed, result.gone, result.changed) == (5, 1, 1, 1)
    after = read_table(out / "detections.csv")
    order = [*named[:1], *named[2:], *new]
    assert [row["film"] for row in after] == [film for film in order for _ in range(2)]
    assert [row["status"] for row in after] == ["ok"] * 2 + ["gone"] * 2 + ["ok"] * 6
    assert after[0] != before[0]  # another picture
    assert [row | {"status": "ok"} for row in after[2:6]] == before[2:6]
    crops = content(out / "crops")
    names = [f"{name}-{side}.png" for name in ("a", "b", "a-2") for side in "RL"]
    assert [name for name in names if crops[name] == kept[name]] == names[2:]
    assert {"c_a-R.png", "d_a-R.png"} < set(crops)
    shutil.copy(films / "phantom-00001.dcm", named[2])  # is back, with a new date
    assert detect_folder(named, out, config).gone == 0
    fresh = out.with_name("fresh")
    detect_folder([*named, *new], fresh, config)
    for name in ("detections.csv", "failures.csv"):
        assert (out / name).read_bytes() == (fresh / name).read_bytes()


def test_detect_folder_makes_artifacts_again_that_are_missing_or_of_other_settings(
    named: list[str], out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(CONFIG, crops=True, overlays=True)
    detect_folder(named, out, config)
    first = content(out)
    for path in (out / "crops").iterdir():  # whatever the dates are
        os.utime(path, ns=(4 * 10**18, 4 * 10**18))
    (out / "overlays" / "b.jpg").unlink()
    os.utime(out / "overlays" / "a.jpg", ns=(2 * 10**18, 2 * 10**18))
    monkeypatch.setattr(Detector, "detect_radiographs", None)  # nothing is searched again
    detect_folder(named, out, replace(config, crop_mm=100.0))
    second = content(out)
    assert {*second} == {*first}
    changed = {name for name in second if first[name] != second[name]}
    assert {f"crops/{name}-{side}.png" for name in "ab" for side in "RL"} <= changed
    assert not any(name.startswith("overlays") for name in changed)
    assert (out / "overlays" / "a.jpg").stat().st_mtime == 2 * 10**9  # untouched
    detect_folder(named, out, config)
    third = content(out)
    for name in ("crops.csv", "crops/a-R.png", "overlays/a.jpg"):
        assert third[name] == first[name]


def test_detect_folder_trusts_no_artifact_that_a_killed_run_may_have_replaced(
    named: list[str], out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Crops of other settings are written, but the database is not told; then the first return."""
    config = replace(CONFIG, crops=True)
    detect_folder(named, out, config)
    first = content(out / "crops")
    monkeypatch.setattr(Run, "save", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        detect_folder(named, out, replace(config, crop_mm=100.0))
    monkeypatch.undo()
    assert content(out / "crops") != first
    detect_folder(named, out, config)
    assert content(out / "crops") == first


def test_detect_folder_with_force_removes_what_the_earlier_run_made(
    named: list[str], out: Path
) -> None:
    mine = ("crops/mine.png", "overlays/mine.png", "dicom/film.dcm", "notes.txt")
    for name in mine:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text("mine")
    everything = replace(CONFIG, overlays=True, crops=True, export=("coco", "dicom"))
    detect_folder(named, out, everything)
    for path in out.rglob("*.png"):
        os.utime(path, ns=(4 * 10**18, 4 * 10**18))  # in the future
    detect_folder(named[:1], out, replace(CONFIG, crops=True, force=True))
    files = written(out)
    assert {name for name in files if "/" in name} == {"crops/a-R.png", "crops/a-L.png", *mine[:3]}
    assert all((out / name).read_text() == "mine" for name in mine)
    assert "coco.json" not in files
    assert all(path.stat().st_mtime < 3 * 10**9 for path in (out / "crops").glob("a-*"))


def test_detect_folder_refuses_an_archive_that_is_not_there_any_more(
    named: list[str], out: Path
) -> None:
    """A disk that is not mounted marks no film as gone."""
    detect_folder(named, out, CONFIG)
    before = content(out)
    for film in named:
        Path(film).unlink(missing_ok=True)
    with pytest.raises(SettingsError, match=r"No such file or folder: .* and 3 others"):
        detect_folder(named, out, CONFIG)
    assert content(out) == before


def test_detect_folder_writes_the_same_bytes_with_workers(named: list[str], out: Path) -> None:
    config, elsewhere = replace(CONFIG, overlays=True, crops=True), out.with_name("elsewhere")
    alone = detect_folder(named, out, config)
    shared = detect_folder(named, elsewhere, replace(config, workers=2, batch_size=5))
    assert replace(shared, out=out) == alone
    assert written(elsewhere) == written(out)
    for name in sorted(written(out)):
        if name not in ("run.json", "report.html", "run.sqlite", "thumbnails.sqlite"):
            assert (elsewhere / name).read_bytes() == (out / name).read_bytes()


def test_detect_folder_refuses_to_continue_with_other_settings(
    named: list[str], out: Path, template: str, tmp_path: Path
) -> None:
    config = replace(CONFIG, template=template, method="search")
    detect_folder(named[:1], out, config)
    before = content(out)
    shutil.copytree(Path(template).parent, tmp_path / "copy")
    copy, other = tmp_path / "copy" / "template.json", tmp_path / "other.safetensors"
    copy.write_text(Path(template).read_text().replace("\n", "\n\n"))
    model = load_model(builtin_model())
    save_model(other, replace(model, settings={"note": "another file"}))
    changed: dict[str, Any] = {"template": str(copy), "method": "auto"}
    for name, value in (changed | {"model": str(other), "left_is": "R"}).items():
        with pytest.raises(SettingsError, match=f"another {name}|{name} was \\S+ and is"):
            detect_folder(named, out, replace(config, **{name: value}))
    assert content(out) == before


@pytest.mark.parametrize("name", ["out", "absolute"])
def test_detect_folder_refuses_relative_paths_from_another_working_folder(
    films: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """They would be other films, or the same ones a second time."""
    one, two, new = (tmp_path / each for each in ("one", "two", "new"))
    for number, folder in enumerate((one, two)):
        folder.mkdir()
        shutil.copy(films / f"phantom-0000{number}.dcm", folder / "film.dcm")
    out = tmp_path / "absolute" if name == "absolute" else one / "out"
    monkeypatch.chdir(one)
    detect_folder("film.dcm", out if name == "absolute" else "out", CONFIG)
    before = content(out)
    monkeypatch.chdir(two)
    for film in ("film.dcm", one / "film.dcm"):
        with pytest.raises(SettingsError, match=re.escape(f"have paths relative to {one}.")):
            detect_folder(film, out, CONFIG)
    assert content(out) == before
    monkeypatch.chdir(one)
    assert detect_folder([one / "film.dcm", two / "film.dcm"], out, CONFIG).films == 2
    monkeypatch.undo()
    one.rename(new)  # with the results, if they are in it
    monkeypatch.chdir(new)
    assert detect_folder("film.dcm", new / "out" if name == "out" else out, CONFIG).films == 2


@pytest.mark.parametrize("other_version", [True, False])
def test_detect_folder_replaces_results_without_a_database_or_of_another_version_by_force_only(
    named: list[str], out: Path, other_version: bool
) -> None:
    out.mkdir()
    if other_version:
        with Run(out, create=True) as run:
            run.query("PRAGMA user_version = 99")
    else:
        (out / "detections.csv").write_text("film,side\n")
    before = content(out)
    with pytest.raises(SettingsError, match=r"another version|results without a run\.sqlite"):
        detect_folder(named, out, CONFIG)
    assert content(out) == before
    assert detect_folder(named, out, replace(CONFIG, force=True)).knees == 6


def test_detect_folder_checks_the_size_of_crops_before_films_are_searched(
    named: list[str], out: Path
) -> None:
    with pytest.raises(SettingsError, match="of crops must be more than 0"):
        detect_folder(named, out, replace(CONFIG, crops=True, crop_mm=-1.0))
    assert not out.exists()


def test_detect_folder_leaves_few_films_and_a_run_of_the_cpu_to_the_cpu(
    named: list[str], out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    config = DetectConfig(device="auto", workers=0)
    assert pipeline._choose_device(5, out, config) == "cpu"
    assert pipeline._choose_device(10**6, out, config) == "cuda"
    assert pipeline._choose_device(5, out, replace(config, device="cuda")) == "cuda"
    detect_folder(named, out, config)  # on the CPU, since there are few films
    assert pipeline._choose_device(10**6, out, config) == "cpu"
