"""One walk through a run: detect, review in the browser, apply; every file against the rows.

The archive then grows, changes and shrinks.
"""

import json
import shutil
from collections.abc import Callable
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
from kneephantoms import phantom
from kneephantoms.files import write_dicom
from tables import read_table

Open = Callable[..., Page]
Row = dict[str, str]
Knee = tuple[str, str]  # name of the film, half of the picture

EXPORTS = ("coco", "dicom")
KINDS = (
    *("--overlays", "--crops"),
    *(word for name in EXPORTS for word in ("--export", name)),
)
ACCEPTED, REJECTED = ("film-0.dcm", "left"), ("film-0.dcm", "right")
MOVED, MARKED, SIDED = ("film-1.dcm", "left"), ("film-1.dcm", "right"), ("film-10.dcm", "left")
LANDMARK = "plateau_medial"


def by_knee(path: Path) -> dict[Knee, Row]:
    return {(Path(row["film"]).name, row["image_side"]): row for row in read_table(path)}


def point(row: Row, name: str) -> tuple[float, float]:
    return float(row[f"{name}_x_px"]), float(row[f"{name}_y_px"])


def stamps(out: Path) -> dict[str, int]:
    """The files made of films, and when they were written."""
    folders = ("overlays", "crops", "dicom-objects")
    files = (file for name in folders for file in (out / name).iterdir())
    return {file.relative_to(out).as_posix(): file.stat().st_mtime_ns for file in files}


class Walk:
    """A browser that reviews the knees of a run, named by film and side."""

    def __init__(self, page: Page, out: Path) -> None:
        self.page, self.rows = page, by_knee(out / "detections.csv")
        with Run(out, exclusive=False) as run:
            knees = run.query("SELECT film, side, id FROM knees")
            names = {film: Path(path).name for film, path in run.paths()}
        self.keys = {(names[film], side): key for film, side, key in knees}
        self.page.locator("[name=sort]").select_option("film")
        expect(page.locator("#gallery")).to_have_attribute("aria-busy", "false")

    def open(self, knee: Knee) -> None:
        """Open a knee on its film."""
        number = list(self.rows).index(knee)
        self.page.locator("#gallery").focus()
        for key in ("Home", *["ArrowRight"] * number, "Enter"):
            self.page.keyboard.press(key)
        self.page.wait_for_selector(f"#editor[data-ready='{self.keys[knee]}']")

    def decide(self, button: str) -> None:
        """Press a button of the editor, wait for the answer, and close the editor."""
        with self.page.expect_response(lambda answer: "api/decide" in answer.url and answer.ok):
            self.page.locator(button).click()
        self.page.keyboard.press("Escape")
        expect(self.page.locator("#editor")).to_be_hidden()


def review(walk: Walk) -> None:
    """Accept, reject and correct; move a landmark, set a side, and add a knee that was removed."""
    walk.open(ACCEPTED)
    walk.decide("#accept")
    walk.open(REJECTED)
    walk.decide("#reject")
    walk.open(MOVED)
    drag(walk.page, point(walk.rows[MOVED], "centre"), (9, -6))
    walk.decide("#save-area")
    walk.open(MARKED)
    drag(walk.page, point(walk.rows[MARKED], LANDMARK), (-5, 4))
    walk.decide("#save-area")
    walk.open(SIDED)
    walk.page.locator("#laterality button[value=L]").click()
    walk.decide("#save-area")


@pytest.fixture
def archive(films: list[Path], tmp_path: Path) -> Path:
    folder = tmp_path / "archive"
    folder.mkdir()
    for film in films[:3]:
        shutil.copy(film, folder)
    return folder


@pytest.fixture
def command(archive: Path, finished_run: Path, tmp_path: Path) -> list[str]:
    template = str(finished_run.parent / "template.json")
    search = ["--template", template, "--method", "search", "--device", "cpu", "--workers", "0"]
    return ["detect", str(archive), "-o", str(tmp_path / "out"), *search, *KINDS]


def test_a_review_reaches_every_file(
    archive: Path, command: list[str], tmp_path: Path, open_review: Open
) -> None:
    out = tmp_path / "out"
    assert main(command) == 0
    found, before = by_knee(out / "detections.csv"), stamps(out)
    shutil.copy(out / "detections.csv", tmp_path / "found.csv")
    page = open_review(out)
    review(Walk(page, out))
    with page.expect_response(lambda answer: "api/apply" in answer.url and answer.ok):
        page.locator("#apply").click()
    expect(page.locator("#notice")).to_contain_text("1 accepted, 1 rejected, 3 corrected")

    assert (out / "detections.original.csv").read_bytes() == (tmp_path / "found.csv").read_bytes()
    rows = by_knee(out / "detections.csv")
    assert_rows(rows, found)
    assert_files(out, rows)
    assert_only_changed_files_are_new(before, stamps(out))

    after = stamps(out)
    assert main(["apply", str(out), "--quiet"]) == 0
    assert stamps(out) == after
    assert by_knee(out / "detections.csv") == rows
    change(archive)
    assert main(command) == 0
    grown = by_knee(out / "detections.csv")
    assert_kept_where_nothing_changed(grown, rows)
    assert_files(out, grown)


def assert_rows(rows: dict[Knee, Row], found: dict[Knee, Row]) -> None:
    """Only what was decided is different."""
    assert list(rows) == list(found)
    decisions = {ACCEPTED: "accepted", REJECTED: "rejected"}
    decisions |= dict.fromkeys((MOVED, MARKED, SIDED), "corrected")
    for knee, row in rows.items():
        assert row["decision"] == decisions.get(knee, "")
        if knee in decisions:
            assert (row["review"], row["reason"]) == ("", "")
        if knee not in (MOVED, MARKED, SIDED):
            changed = {name for name in row if row[name] != found[knee][name]}
            assert changed <= {"decision", "review", "reason"}, knee
    moved, was = rows[MOVED], found[MOVED]
    for name in ("centre", LANDMARK):
        x, y = point(was, name)
        assert point(moved, name) == pytest.approx((x + 9, y - 6), abs=1.5)
    assert (moved["method"], moved["energy"], moved["loss"]) == ("review", "", "")
    marked, was = rows[MARKED], found[MARKED]
    x, y = point(was, LANDMARK)
    assert point(marked, LANDMARK) == pytest.approx((x - 5, y + 4), abs=1.5)
    assert (marked["centre_x_px"], marked["loss"]) == (was["centre_x_px"], was["loss"])
    sided = rows[SIDED]
    assert (sided["laterality"], sided["laterality_source"]) == ("L", "user")
    assert sided["centre_x_px"] == found[SIDED]["centre_x_px"]


def detections(out: Path) -> dict[str, list[Detection]]:
    """The knees of each film that were not rejected."""
    with Run(out, exclusive=False) as run:
        return {film.path: list(film.kept) for film in run.records()}


def assert_files(out: Path, rows: dict[Knee, Row]) -> None:
    """Tables, pictures and exports hold the rows, and nothing of rejected knees."""
    crops = {
        (Path(row["film"]).name, row["image_side"]): row for row in read_table(out / "crops.csv")
    }
    kept = [knee for knee, row in rows.items() if row["decision"] != "rejected"]
    assert sorted(crops) == sorted(kept)
    assert len(list((out / "crops").iterdir())) == len(kept)
    coco = json.loads((out / "coco.json").read_text())["annotations"]
    assert len(coco) == len(kept)
    annotations = iter(coco)
    for film, knees in detections(out).items():
        content = [next(annotations) for _ in knees]
        if not Path(film).exists():  # gone from the archive; its files are kept
            continue
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
            crop = crops[Path(film).name, knee.side]
            cropped = np.asarray(Image.open(out / "crops" / crop["file"])) / 65535
            assert np.abs(cropped - cut(pixels, place(knee, CropSize()))).max() < 0.01
            assert crop["laterality"] == knee.laterality
            outline = annotation["segmentation"]
            np.testing.assert_allclose(outline, [knee.corners.ravel()], atol=2e-3)
            assert annotation["attributes"]["decision"] == knee.decision
    assert "knees reviewed" in (out / "report.html").read_text()


def assert_only_changed_files_are_new(before: dict[str, int], after: dict[str, int]) -> None:
    """Files that show what was decided are new; the others are the old ones."""
    gone, added = set(before) - set(after), set(after) - set(before)
    # The crops of the rejected knee, and of two that are both L now.
    assert {Path(name).name.split(".")[0] for name in gone} == {
        "film-0-L",
        "film-10-R",
        "film-10-L",
    }
    renamed = {"film-10-image-left", "film-10-image-right"}
    assert {Path(name).name.split(".")[0] for name in added} == renamed
    fresh = {name for name in after if after[name] != before.get(name)}
    assert {name.split("/")[0] for name in fresh} >= {"overlays", "crops", "dicom-objects"}


def change(archive: Path) -> None:
    """Add a film, put another picture into one, and remove one."""
    for name, seed in (("new.dcm", 4), ("film-0.dcm", 2)):
        pixels = phantom(seed, size=(512, 512)).pixels
        write_dicom(archive / name, pixels, mm_per_px=0.5, laterality="B")
    (archive / "film-10.dcm").unlink()


def assert_kept_where_nothing_changed(grown: dict[Knee, Row], rows: dict[Knee, Row]) -> None:
    """A changed film is searched again and to be decided anew; all other rows are the old ones."""
    assert {name for name, _ in grown} == {"film-0.dcm", "film-1.dcm", "film-10.dcm", "new.dcm"}
    for knee, row in rows.items():
        if knee[0] == "film-0.dcm":
            assert grown[knee]["decision"] == ""
            assert grown[knee]["centre_x_px"] != row["centre_x_px"]
        else:
            status = "gone" if knee[0] == "film-10.dcm" else "ok"
            assert grown[knee] == row | {"status": status}


def test_an_added_knee_reaches_the_files(
    command: list[str], tmp_path: Path, open_review: Open
) -> None:
    out = tmp_path / "out"
    assert main(command) == 0
    with Run(out) as run:  # as if one film had one knee, and another none
        first, second, _ = run.records()
        kept = first.found[:1]
        run.save([replace(first, found=kept, knees=kept)])
        reason = "no frontal knee found"
        run.save([replace(second, found=(), knees=(), status="no_knee", reason=reason)])
    assert main(["apply", str(out), "--quiet"]) == 0
    assert len(by_knee(out / "detections.csv")) == 3
    page = open_review(out)
    walk = Walk(page, out)
    walk.open(("film-0.dcm", "left"))
    page.locator("#add-right").click()
    expect(page.locator("#knee-facts")).to_contain_text("new knee on the image’s right")
    page.locator("#laterality button[value=L]").click()
    walk.decide("#save-area")
    expect(page.locator("#shown")).to_have_text("4 knees")
    page.locator("[name=shown]").select_option("no_knee")
    expect(page.locator("#shown")).to_have_text("1 film")
    page.locator(".card").click()
    page.wait_for_selector("#editor[data-ready]")
    page.keyboard.press("k")
    expect(page.locator("#knee-facts")).to_contain_text("new knee on the image’s left")
    walk.decide("#save-area")
    assert main(["apply", str(out), "--quiet"]) == 0
    rows = by_knee(out / "detections.csv")
    assert len(rows) == 5
    added = rows["film-0.dcm", "right"]
    assert (added["decision"], added["method"], added["laterality"]) == ("corrected", "review", "L")
    left, right = (point(rows["film-0.dcm", side], "centre") for side in ("left", "right"))
    assert right == pytest.approx((512 - left[0], left[1]), abs=0.01)
    points = [point(rows["film-0.dcm", side], LANDMARK) for side in ("left", "right")]
    assert points[1] == pytest.approx((512 - points[0][0], points[0][1]), abs=0.2)
    assert read_table(out / "failures.csv") == []
    assert_files(out, rows)
