"""Whole runs, with a detector that looks nowhere."""

import csv
import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from kneematch.batch.artifacts import distinct_names
from kneematch.batch.config import Settings
from kneematch.batch.recipe import Recipe
from kneematch.batch.run import Summary, run
from kneematch.detection.detector import Detector
from kneematch.errors import SettingsError
from kneematch.export.tables import TABLES
from kneematch.io.write import write_png16


@pytest.fixture
def cohort(
    films: Path,
    tmp_path: Path,
    make_detector: Callable[..., Detector],
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[Settings, list[str]]:
    """Four films, one of them missing, one not a DICOM, and how they are to be searched."""
    monkeypatch.setattr(Recipe, "build", lambda self: make_detector(self.batch_size))
    named = [str(tmp_path / name) for name in ("a.dcm", "missing.dcm", "b.dcm", "A.png")]
    shutil.copy(films / "phantom-00000.dcm", named[0])
    shutil.copy(films / "phantom-00001.dcm", named[2])
    write_png16(named[3], make_detector().template.image.numpy())
    recipe = Recipe(template=str(films / "template.json"), method="search", batch_size=2)
    return Settings(tmp_path / "out", recipe, workers=0), named


def written(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_run_writes_all_that_is_asked_for(cohort: tuple[Settings, list[str]]) -> None:
    settings, named = cohort
    everything = replace(
        settings,
        overlays=True,
        crops=True,
        crop_px=50,
        export=("coco", "dicom"),
        sheet=settings.out.with_suffix(".png"),
    )
    summary = run(everything, named, command=["kneematch", "detect"])
    assert (summary.films, summary.knees, summary.failed) == (3, 6, 1)
    assert named[1] in summary.reasons[0]
    assert summary.undrawn == 0  # the PNG is no DICOM to export, which is nobody's fault
    sides, objects = ("left", "right"), ("report", "state", "picture")
    assert written(settings.out) == {
        *TABLES,
        *("failures.csv", "ledger.jsonl", "run.json", "report.html", "coco.json", "crops.csv"),
        *(f"overlays/{name}.png" for name in ("a", "b", "A-2")),
        *(f"crops/{name}-{side}.png" for name in ("a", "b", "A-2") for side in sides),
        *(f"dicom-objects/{name}-{kind}.dcm" for name in "ab" for kind in objects),
    }
    with (settings.out / "crops.csv").open(newline="") as file:
        assert [row["file"] for row in csv.DictReader(file)][-1] == "A-2-right.png"
    with Image.open(settings.out / "crops" / "A-2-left.png") as crop:
        assert (crop.size, crop.mode) == ((50, 50), "I;16")  # it has no spacing
    with Image.open(settings.out.with_suffix(".png")) as sheet:
        assert sheet.width > 3 * 400
    told = json.loads((settings.out / "run.json").read_text())
    with (settings.out / "detections.csv").open(newline="") as file:
        review = sum(row["review"] == "yes" for row in csv.DictReader(file))
    assert told["counts"] == {"films": 3, "knees": 6, "failed": 1, "review": review}
    assert told["command"] == ["kneematch", "detect"]
    assert set(told["sha256"]) == {"template", "template_film"}
    assert len(json.loads((settings.out / "coco.json").read_text())["images"]) == 3
    assert (settings.out / "report.html").read_text().count("<img ") == 3


def test_a_run_that_is_resumed_searches_and_draws_only_what_is_missing(
    cohort: tuple[Settings, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, named = cohort
    first = run(replace(settings, overlays=True), named)
    monkeypatch.setattr(Detector, "find", None)  # so that nothing can be searched again
    pictures = settings.out / "overlays"
    (pictures / "b.png").unlink()
    os.utime(pictures / "a.png", ns=(2 * 10**18, 2 * 10**18))
    again = replace(settings, overlays=True, crops=True, resume=True)
    assert run(again, named) == first
    assert (pictures / "b.png").exists()
    assert (pictures / "a.png").stat().st_mtime == 2 * 10**9  # untouched
    assert (settings.out / "crops" / "a-left.png").exists()


def test_pictures_of_an_earlier_run_are_drawn_again(cohort: tuple[Settings, list[str]]) -> None:
    settings, named = cohort
    run(replace(settings, overlays=True), named)
    picture = settings.out / "overlays" / "a.png"
    picture.write_bytes(b"of other detections")
    hour_ago = time.time() - 3600
    os.utime(picture, (hour_ago, hour_ago))
    run(replace(settings, overlays=True, force=True), named)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_starting_over_touches_no_file_that_is_not_ours(
    cohort: tuple[Settings, list[str]],
) -> None:
    settings, named = cohort
    for name in ("overlays/mine.png", "dicom/film.dcm", "notes.txt"):
        (settings.out / name).parent.mkdir(parents=True, exist_ok=True)
        (settings.out / name).write_text("mine")
    run(settings, named)
    run(replace(settings, force=True, overlays=True), named)
    for name in ("overlays/mine.png", "dicom/film.dcm", "notes.txt"):
        assert (settings.out / name).read_text() == "mine"


def test_a_film_that_is_gone_when_it_is_to_be_drawn_stops_nothing(
    cohort: tuple[Settings, list[str]],
) -> None:
    settings, named = cohort
    run(settings, named)
    Path(named[0]).unlink()
    summary = run(replace(settings, overlays=True, resume=True), named)
    assert (summary.films, summary.undrawn) == (3, 1)
    assert named[0] in summary.why_undrawn[0]
    assert {path.name for path in (settings.out / "overlays").iterdir()} == {"b.png", "A-2.png"}


def test_workers_draw_what_the_parent_draws(cohort: tuple[Settings, list[str]]) -> None:
    settings, named = cohort
    everything = replace(settings, overlays=True, crops=True)
    alone = run(everything, named)
    elsewhere = replace(everything, out=settings.out.with_name("elsewhere"), workers=2)
    assert run(elsewhere, named) == alone
    assert written(elsewhere.out) == written(settings.out)
    for name in sorted(written(settings.out)):
        if name not in ("run.json", "report.html", "ledger.jsonl"):
            assert (elsewhere.out / name).read_bytes() == (settings.out / name).read_bytes()


@pytest.mark.parametrize("change", ["films", "batch", "template", "paper"])
def test_another_run_is_not_resumed(
    cohort: tuple[Settings, list[str]], change: str, tmp_path: Path
) -> None:
    settings, named = cohort
    run(settings, named)
    recipe = settings.recipe
    if change == "films":
        named = named[:-1]
    elif change == "batch":
        recipe = replace(recipe, batch_size=3)
    elif change == "paper":
        recipe = replace(recipe, paper=True)
    else:
        assert recipe.template is not None
        shutil.copytree(Path(recipe.template).parent, tmp_path / "copy")
        (tmp_path / "copy" / "template.json").write_text(
            Path(recipe.template).read_text().replace("\n", "\n\n")
        )
        recipe = replace(recipe, template=str(tmp_path / "copy" / "template.json"))
    with pytest.raises(SettingsError, match=f"{change}[a-z_]* was"):
        run(replace(settings, recipe=recipe, resume=True), named)
    with pytest.raises(SettingsError, match="--resume, start over with --force"):
        run(settings, named)


def test_sizes_of_crops_are_checked_before_films_are_searched(
    cohort: tuple[Settings, list[str]],
) -> None:
    settings, named = cohort
    with pytest.raises(SettingsError, match="crops of mm"):
        run(replace(settings, crops=True, crop_mm=-1.0), named)
    assert not settings.out.exists()
    with pytest.raises(SettingsError, match="--crops"):
        replace(settings, crop_mm=100.0)


def test_names_are_distinct_whatever_the_case_and_quick_to_find() -> None:
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


def test_a_summary_holds_no_more_reasons_than_a_terminal_shows(
    cohort: tuple[Settings, list[str]],
) -> None:
    settings, _ = cohort
    summary: Summary = run(settings, [f"missing-{k}.dcm" for k in range(25)])
    assert summary.failed == 25
    assert len(summary.reasons) == 10
