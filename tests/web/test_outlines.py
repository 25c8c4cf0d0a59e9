"""Outlines on the review page: shown, dragged, measured, saved and applied."""

import json
import math
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import expect

from film_mouse import drag
from kneematch.errors import SettingsError
from kneematch.knee.decision import Area
from kneematch.run.config import DetectConfig
from kneematch.run.database import Run
from kneematch.run.decisions import AREA_COLUMNS
from kneematch.run.pipeline import detect_folder
from kneematch.web.review import MAX_POINTS, DecisionRequest, ReviewSession
from kneephantoms import SynthConfig, synthesize
from pages import Open
from review_page import assert_refused, click, open_knee, press
from tables import read_table

FOR_DOCS = bool(os.environ.get("KNEEMATCH_DOCS"))  # the picture of the docs
DOCS = Path(__file__).parents[2] / "docs" / "images"
LINE = [[10.0, 10.0], [90.0, 10.0]]
BORDERS = {"femur": LINE, "tibia": LINE}

# The measured widths that are drawn on the film.
WIDTHS = """() => {
    const labels = Konva.stages[0].find(".width");
    const points = (label) => label.parent.children[label.index - 1].points();
    return labels.map((label) => ({ text: label.getText().text(), points: points(label) }));
}"""


@pytest.fixture(scope="session")
def measured_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with measures of one film, which tests must not change."""
    folder = tmp_path_factory.mktemp("measured")
    synthesize(folder / "films", SynthConfig(1, size=(900, 1000), workers=0))
    config = DetectConfig(device="cpu", measure=True, overlays=True, workers=0)
    detect_folder(folder / "films", folder / "out", config)
    return folder / "out"


@pytest.fixture
def out(measured_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(measured_run, tmp_path / "out"))


def outlines(out: Path) -> list[dict[str, object]]:
    knees: list[dict[str, object]] = json.loads((out / "outlines.json").read_text())["knees"]
    return knees


def test_review_page_drags_an_outline_and_measures_follow(out: Path, open_review: Open) -> None:
    before, measures = outlines(out)[0], read_table(out / "measurements.csv")
    left, right = read_table(out / "detections.csv")
    (overlay,) = (out / "overlays").iterdir()
    picture = overlay.read_bytes()
    page = open_review(out)
    open_knee(page, 1)
    cell = page.locator("#measures tbody tr").nth(1).locator("td").nth(0)
    expect(cell).to_contain_text(" ± ")
    found = cell.inner_text()
    expect(page.locator("#save-area")).to_be_disabled()
    page.locator("#gallery").focus()
    page.keyboard.press("o")
    if FOR_DOCS:
        film = page.locator("#knee-film")
        film.evaluate("element => { element.textContent = element.textContent.split('/').pop(); }")
        page.screenshot(path=DOCS / "review-outlines.png")
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#save-area")).to_be_disabled()
    femur = np.array(before["femur"])
    medial_handle = femur[75]  # the medial side of the left knee is on its right
    drag(page, tuple(medial_handle), (0, -8))
    expect(cell).not_to_have_text(found)
    expect(cell).not_to_contain_text("±")
    assert float(cell.inner_text().split()[0]) > float(found.split()[0])
    page.keyboard.press("Control+z")
    expect(cell).to_have_text(found)
    expect(page.locator("#save-area")).to_be_disabled()
    drag(page, tuple(medial_handle), (3, -8))
    expect(cell).not_to_have_text(found)
    wider = cell.inner_text()
    press(page, "Enter")
    page.wait_for_selector("#editor[data-ready='2']")
    page.keyboard.press("PageUp")
    page.wait_for_selector("#editor[data-ready='1']")
    expect(page.locator("#knee-facts")).to_contain_text("corrected")
    expect(cell).to_have_text(wider)
    expect(page.locator("#edit-outlines")).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("ArrowLeft")  # would move the area, which is hidden
    page.keyboard.press("o")
    expect(page.locator("#save-area")).to_be_disabled()
    page.keyboard.press("r")
    expect(cell).to_have_text(found)
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#measures-hint")).to_contain_text("measured anew")
    page.once("dialog", lambda dialog: dialog.accept())  # discard that move
    page.keyboard.press("Escape")
    click(page, "#apply", "api/apply")
    knee, untouched = outlines(out)
    assert (knee["corrected"], "corrected" in untouched) == (True, False)
    assert knee["femur_sides"] == before["femur_sides"]
    drawn = np.array(knee["femur"])
    shift = drawn - femur
    assert shift[75] == pytest.approx((0, -8), abs=0.5)  # across the plateau only
    assert abs(shift[[0, 40, 100]]).max() < 0.05
    assert np.diff(drawn[:, 0]).min() > 0
    row, other = read_table(out / "measurements.csv")
    assert other == measures[1]
    assert f"{float(row['jsw_x250_mm']):.2f}" == wider
    assert (measures[0]["jsw_x250_pct_sd"] != "", row["jsw_x250_pct_sd"]) == (True, "")
    assert overlay.read_bytes() != picture
    assert read_table(out / "detections.csv") == [left | {"decision": "corrected"}, right]


def test_review_page_draws_the_smallest_widths_on_the_film(out: Path, open_review: Open) -> None:
    row, _ = read_table(out / "measurements.csv")
    page = open_review(out)
    open_knee(page, 1)
    expect(page.locator("#measures tbody tr")).to_have_count(2)
    widths = page.evaluate(WIDTHS)
    texts = [f"{float(row[f'jsw_{part}_minimum_mm']):.1f} mm" for part in ("medial", "lateral")]
    assert [width["text"] for width in widths] == texts
    found = outlines(out)[0]
    for width in widths:
        ends = np.array(width["points"]).reshape(2, 2)
        for end, bone in zip(ends, ("femur", "tibia"), strict=True):
            assert np.linalg.norm(np.array(found[bone]) - end, axis=1).min() < 3
        px = float(width["text"].split()[0]) / float(row["mm_per_px"])
        assert math.dist(*ends) == pytest.approx(px, abs=0.05 / float(row["mm_per_px"]) + 0.1)
    page.keyboard.press("ArrowLeft")  # the knee is no longer where it was measured
    assert page.evaluate(WIDTHS) == []


def test_review_page_adds_the_knee_that_the_detector_recognises(
    out: Path, open_review: Open
) -> None:
    with Run(out) as run:  # as if the right knee, or all, had not been found
        film = run.record(1)
        (left, right) = film.found
        run.save([replace(film, found=(left,), knees=(left,))])
    page = open_review(out)
    asked: list[str] = []
    page.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
    page.keyboard.press("Enter")
    page.wait_for_selector("#editor[data-ready]")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("k")
    assert asked == ["Discard the changes of this knee? They are not saved."]
    expect(page.locator("#save-area")).to_be_enabled()
    page.keyboard.press("r")
    page.keyboard.press("k")
    expect(page.locator("#notice")).to_contain_text("A knee was recognised here")
    expect(page.locator("#laterality [aria-pressed=true]")).to_have_text(right.laterality)
    press(page, "Enter")
    with Run(out, exclusive=False) as run:
        ((_, _, side, decision, _),) = run.decisions()
    assert side == "right"
    assert decision.landmarks is not None
    for name, place in right.landmarks.items():
        assert math.dist(decision.landmarks[name], place) < 3, name


def test_session_recognises_no_knee_where_there_is_none(out: Path, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (900, 1000), np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    with Run(out) as run:
        film = run.record(1)
        run.save([replace(film, found=(), knees=(), status="no_knee")])
        run.sql.execute("UPDATE films SET path = ?", (str(tmp_path / "noise.png"),))
    session = ReviewSession(out)
    assert session.recognise(session.row(-1), "left") is None
    session.close()


def test_session_outlines_a_placed_knee_as_the_run_would_and_by_its_network_only(out: Path) -> None:
    session = ReviewSession(out, Path())
    for key in (1, 2):
        row = session.row(key)
        assert row.found is not None
        found = Area.from_detection(row.found)
        area = replace(found, centre_x_px=found.centre_x_px + 1)
        landmarks = dict(row.found.landmarks)  # where they were
        session.decide(DecisionRequest(key, "corrected", area=area, landmarks=landmarks))
        placed = session.outlined(session.row(key)).outlines
        expected = np.array(outlines(out)[key - 1]["tibia"])
        np.testing.assert_allclose(placed.tibia, expected, atol=0.05)
    session.close()
    with Run(out) as run:
        run.store(fingerprint={**run.setting("fingerprint"), "outlines": "0" * 64})
    session = ReviewSession(out, Path())
    with pytest.raises(SettingsError, match="is not the network that measured"):
        session.outlined(session.row(1))
    session.close()


WRONG: list[object] = [
    {"femur": LINE, "tibia": LINE[:1]},
    {"femur": LINE, "tibia": [[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]},
    {"femur": LINE, "tibia": LINE[:1] * 2},
    {"femur": LINE, "tibia": [[0.0, 0.0], [math.nan, 0.0]]},
    {"femur": LINE, "tibia": LINE * MAX_POINTS},
    {"femur": "x", "tibia": "y"},
]


def test_review_app_refuses_outlines_that_do_not_fit(out: Path, open_review: Open) -> None:
    page = open_review(out)
    knee = page.context.request.get(f"{page.url}api/areas/1").json()["knee"]
    area = {name: knee[name] for name in AREA_COLUMNS}
    bodies = [("measures/1", wrong) for wrong in WRONG]
    for state, drawn in (*(("corrected", wrong) for wrong in WRONG), ("accepted", BORDERS)):
        decision = {"row": 1, "state": state, "outlines": drawn}
        bodies.append(("decide", decision | ({"area": area} if state == "corrected" else {})))
    for path, body in bodies:
        assert_refused(page, "POST", f"api/{path}", body)
    with Run(out) as run:
        assert list(run.decisions()) == []
