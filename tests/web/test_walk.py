"""One walk through a run: detect, review in the browser, apply; every file against the rows."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import highdicom as hd
import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Page, expect

from film_mouse import drag
from kneematch.cli.main import main
from kneematch.films.pictures import save_picture
from kneematch.films.read import read
from kneematch.knee.crop import CropSize, cut, place
from kneematch.knee.detection import Detection
from kneematch.knee.overlay import draw_detections
from kneematch.run.database import Run
from pages import Open
from review_page import click, open_knee
from tables import read_table

Row = dict[str, str]

KINDS = ("--overlays", "--crops", "--export", "coco", "--export", "dicom")
ACCEPTED, REJECTED, MOVED, MARKED, SIDED, _ = range(6)  # rows of the table, two per film
LANDMARK = "plateau_medial"


def point(row: Row, name: str) -> tuple[float, float]:
    return float(row[f"{name}_x_px"]), float(row[f"{name}_y_px"])


def decide(page: Page, button: str) -> None:
    """Press a button of the editor, and close it."""
    click(page, button)
    page.keyboard.press("Escape")
    expect(page.locator("#editor")).to_be_hidden()


def review(page: Page, rows: list[Row]) -> None:
    """Accept, reject and correct; move a landmark, and set a side."""
    open_knee(page, ACCEPTED + 1)
    decide(page, "#accept")
    open_knee(page, REJECTED + 1)
    decide(page, "#reject")
    open_knee(page, MOVED + 1)
    drag(page, point(rows[MOVED], "centre"), (9, -6))
    decide(page, "#save-area")
    open_knee(page, MARKED + 1)
    drag(page, point(rows[MARKED], LANDMARK), (-5, 4))
    decide(page, "#save-area")
    open_knee(page, SIDED + 1)
    page.locator("#laterality button[value=L]").click()
    decide(page, "#save-area")


@pytest.fixture
def command(films: list[Path], finished_run: Path, tmp_path: Path) -> list[str]:
    template = str(finished_run.parent / "template.json")
    search = ["--template", template, "--method", "search", "--device", "cpu", "--workers", "0"]
    return ["detect", *map(str, films[:3]), "-o", str(tmp_path / "out"), *search, *KINDS]


def test_a_review_reaches_every_file(command: list[str], tmp_path: Path, open_review: Open) -> None:
    out = tmp_path / "out"
    assert main(command) == 0
    found = read_table(out / "detections.csv")
    shutil.copy(out / "detections.csv", tmp_path / "found.csv")
    page = open_review(out)
    review(page, found)
    click(page, "#apply", "api/apply")
    expect(page.locator("#notice")).to_contain_text("1 accepted, 1 rejected, 3 corrected")
    assert (out / "detections.original.csv").read_bytes() == (tmp_path / "found.csv").read_bytes()
    rows = read_table(out / "detections.csv")
    assert_rows(rows, found)
    assert_files(out, rows)
    assert main(["apply", str(out), "--quiet"]) == 0
    assert read_table(out / "detections.csv") == rows
    assert main(command) == 0  # keeps the decisions
    assert read_table(out / "detections.csv") == rows


def assert_rows(rows: list[Row], found: list[Row]) -> None:
    corrected = (MOVED, MARKED, SIDED)
    assert [row["decision"] for row in rows] == ["accepted", "rejected", *["corrected"] * 3, ""]
    for number, (row, was) in enumerate(zip(rows, found, strict=True)):
        if row["decision"]:
            assert (row["review"], row["reason"]) == ("", "")
        if number not in corrected:
            changed = {name for name in row if row[name] != was[name]}
            assert changed <= {"decision", "review", "reason"}, number
    for name in ("centre", LANDMARK):
        x, y = point(found[MOVED], name)
        assert point(rows[MOVED], name) == pytest.approx((x + 9, y - 6), abs=1.5)
    assert [rows[MOVED][name] for name in ("method", "energy", "loss")] == ["review", "", ""]
    x, y = point(found[MARKED], LANDMARK)
    assert point(rows[MARKED], LANDMARK) == pytest.approx((x - 5, y + 4), abs=1.5)
    for name in ("centre_x_px", "loss"):
        assert rows[MARKED][name] == found[MARKED][name]
    sided = rows[SIDED]
    assert (sided["laterality"], sided["laterality_source"]) == ("L", "user")
    assert sided["centre_x_px"] == found[SIDED]["centre_x_px"]


def detections(out: Path) -> dict[str, list[Detection]]:
    """The knees of each film that were not rejected."""
    with Run(out, exclusive=False) as run:
        return {film.path: list(film.kept) for film in run.records()}


def assert_files(out: Path, rows: list[Row]) -> None:
    """Tables, pictures and exports hold the rows, and nothing of rejected knees."""
    crops = {(row["film"], row["image_side"]): row for row in read_table(out / "crops.csv")}
    kept = {(row["film"], row["image_side"]) for row in rows if row["decision"] != "rejected"}
    assert {*crops} == kept
    assert len(list((out / "crops").iterdir())) == len(kept)
    coco = json.loads((out / "coco.json").read_text())["annotations"]
    assert len(coco) == len(kept)
    annotations = iter(coco)
    for film, knees in detections(out).items():
        content = [next(annotations) for _ in knees]
        pixels = read(film)
        stem = Path(film).stem
        drawn = np.asarray(Image.open(out / "overlays" / f"{stem}.jpg").convert("RGB"), int)
        save_picture(draw_detections(pixels, knees), out.with_name("wanted.jpg"))
        wanted = np.asarray(Image.open(out.with_name("wanted.jpg")).convert("RGB"), int)
        assert (np.abs(drawn - wanted) > 24).mean() < 1e-4  # the table's numbers are rounded
        report = out / "dicom-objects" / f"{stem}-report.dcm"
        groups = hd.sr.srread(report).content.get_planar_roi_measurement_groups()
        for group, knee in zip(groups, knees, strict=True):
            np.testing.assert_allclose(group.roi.value[:4], knee.corners, atol=1e-2)
        for knee, annotation in zip(knees, content, strict=True):
            crop = crops[film, knee.side]
            cropped = np.asarray(Image.open(out / "crops" / crop["file"])) / 65535
            assert np.abs(cropped - cut(pixels, place(knee, CropSize()))).max() < 0.01
            assert crop["laterality"] == knee.laterality
            outline = annotation["segmentation"]
            np.testing.assert_allclose(outline, [knee.corners.ravel()], atol=2e-3)
            assert annotation["attributes"]["decision"] == knee.decision
    assert "knees reviewed" in (out / "report.html").read_text()


def test_added_knees_reach_the_files(command: list[str], tmp_path: Path, open_review: Open) -> None:
    out = tmp_path / "out"
    assert main(command) == 0
    with Run(out) as run:  # as if one film had one knee, and another none
        first, second, _ = run.records()
        run.save([replace(first, found=first.found[:1], knees=first.found[:1])])
        run.save([replace(second, found=(), knees=(), status="no_knee")])
    page = open_review(out)
    open_knee(page, 1)
    page.locator("#add-right").click()
    expect(page.locator("#knee-facts")).to_contain_text("new knee on the image’s right")
    page.locator("#laterality button[value=L]").click()
    decide(page, "#save-area")
    page.locator("[name=shown]").select_option("no_knee")
    expect(page.locator("#shown")).to_have_text("1 film")
    page.locator(".card").click()
    page.wait_for_selector("#editor[data-ready]")
    page.keyboard.press("k")
    expect(page.locator("#knee-facts")).to_contain_text("new knee on the image’s left")
    decide(page, "#save-area")
    click(page, "#apply", "api/apply")
    first, added, *_ = rows = read_table(out / "detections.csv")
    assert len(rows) == 5
    assert (added["decision"], added["method"], added["laterality"]) == ("corrected", "review", "L")
    for name, within in (("centre", 0.01), (LANDMARK, 0.2)):
        x, y = point(first, name)
        assert point(added, name) == pytest.approx((512 - x, y), abs=within)
    assert read_table(out / "failures.csv") == []
    assert_files(out, rows)
