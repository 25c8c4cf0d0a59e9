"""Drawing a template in the browser, from the initial annotation to the file that finds knees."""

import json
import math
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi import FastAPI
from playwright.sync_api import Page, expect

from film_mouse import drag, on_screen
from kneematch.films.annotation import annotate, load_annotation
from kneematch.knee.detector import Detector
from kneematch.web.annotate import annotate_app
from kneematch.web.server import Credentials
from kneephantoms.rendering import Knee, phantom

SIZE = (512, 512)
KNEE = phantom(0, size=SIZE).knees[0]  # the one with the lower loss

Serve = Callable[[FastAPI], Credentials]
Open = Callable[..., Page]
Box = tuple[float, float, float, float]


@pytest.fixture
def page(
    serve: Serve, open_page: Open, films: list[Path], template: Path, model_already_run: None
) -> Page:
    """The page with its initial annotation."""
    credentials = serve(annotate_app(films[0], template, films[1:]))
    page = open_page(credentials)
    page.wait_for_selector("body[data-ready]")
    return page


@pytest.fixture
def template(tmp_path: Path) -> Path:
    (tmp_path / "drawn").mkdir()
    return tmp_path / "drawn" / "template.json"


def draw(page: Page, key: str, box: Box) -> None:
    page.keyboard.press(key)
    page.keyboard.press("d")
    drag(page, box[:2], (box[2] - box[0], box[3] - box[1]))


def valid(page: Page) -> None:
    expect(page.locator("#status")).to_have_attribute("data-valid", "yes")


def save(page: Page, *, replace: bool = False) -> None:
    """Press the key, confirm if there is a file, and wait until it is written."""
    with page.expect_response(
        lambda answer: "api/save" in answer.url and answer.status == 200
    ) as response:
        page.keyboard.press("s")
        if replace:
            page.locator("#replace button[value=replace]").click()
    assert response.value.ok
    expect(page.locator("#notice")).to_contain_text("Saved")


def off(found: dict[str, tuple[float, float]], knee: Knee) -> float:
    """Mean distance of both margins, in widths of the plateau."""
    margins = sorted([found["plateau_medial"], found["plateau_lateral"]])
    true = [knee.plateau_left, knee.plateau_right]
    return sum(map(math.dist, margins, true)) / 2 / math.dist(*true)


def test_annotate_app_saves_drawn_boxes_that_find_the_knees(
    page: Page, films: list[Path], template: Path
) -> None:
    wanted = annotate(films[0], "left", KNEE.plateau_left, KNEE.plateau_right)
    for key, box in {"1": wanted.fine, "2": wanted.red, "3": wanted.green}.items():
        draw(page, key, box)
    valid(page)
    page.keyboard.press("t")
    page.wait_for_selector("#preview[data-state=done]")
    assert page.locator("#preview-films figure").count() == len(films) - 1
    losses = [float(text) for text in page.locator("figcaption .good").all_inner_texts()]
    assert len(losses) == 2 * (len(films) - 1)
    assert max(losses) < 0.3
    save(page)
    drawn = load_annotation(template)
    x0, y0, x1, y1 = drawn.fine
    size = f"{round(x1 - x0)} × {round(y1 - y0)} film pixels"
    expect(page.locator("#status")).to_contain_text(size)
    command = f"kneematch detect FILMS --template {template} -o found"
    expect(page.locator("#target")).to_have_text(f"Saved. Next: {command}")
    assert drawn.side == "left"
    for name in ("fine", "red", "green"):
        assert getattr(drawn, name) == pytest.approx(getattr(wanted, name), abs=1.5)
    detector = Detector.load(template=template, method="search", device="cpu")
    for seed, path in zip((1, 10, 4), films[1:], strict=True):
        for found, knee in zip(detector.detect(path), phantom(seed, size=SIZE).knees, strict=True):
            assert found.side == knee.side
            assert off(dict(found.landmarks), knee) < 0.1


def test_annotate_app_starts_with_what_the_model_finds(
    serve: Serve, open_page: Open, films: list[Path], template: Path
) -> None:
    page = open_page(serve(annotate_app(films[0], template, [])))
    page.wait_for_selector("body[data-ready]")
    valid(page)
    expect(page.locator("#run-preview")).to_be_disabled()  # there is nothing to try it on


def test_annotate_app_starts_with_boxes_that_keys_can_adjust(
    page: Page, films: list[Path], template: Path
) -> None:
    valid(page)
    page.keyboard.press("2")
    for key in ("ArrowRight", "Shift+ArrowDown", "Alt+ArrowRight"):
        page.keyboard.press(key)
    valid(page)
    page.keyboard.press("Control+z")
    save(page)
    first = json.loads(template.read_text())
    wanted = annotate(films[0], "left", KNEE.plateau_left, KNEE.plateau_right)
    assert first["boxes"]["fine"] == pytest.approx(wanted.fine, abs=20)
    assert Path(first["film"]).as_posix() == os.path.relpath(films[0], template.parent)
    red = first["boxes"]["red"]
    page.keyboard.press("Control+z")
    page.keyboard.press("Control+z")
    save(page, replace=True)
    before = json.loads(template.read_text())["boxes"]["red"]
    moved = [after - start for after, start in zip(red, before, strict=True)]
    assert moved == pytest.approx([1, 10, 1, 10], abs=1e-6)


def test_annotate_app_confirms_before_it_replaces_a_template(page: Page, template: Path) -> None:
    template.write_text("mine")
    valid(page)
    page.keyboard.press("s")
    page.locator("#replace button[value=keep]").click()
    assert template.read_text() == "mine"
    save(page, replace=True)
    assert load_annotation(template).side in ("left", "right")


def test_annotate_app_marks_an_invalid_box_and_does_not_save_it(page: Page, template: Path) -> None:
    valid(page)
    x0, y0, x1, y1 = 20.0, 20.0, 60.0, 60.0
    draw(page, "2", (x0, y0, x1, y1))
    expect(page.locator("#status")).to_contain_text(
        re.compile(r"red box must lie inside the fine box")
    )
    expect(page.locator("#boxes [data-name=red]")).to_have_class("wrong")
    expect(page.locator("#save")).to_be_disabled()
    page.keyboard.press("s")
    page.keyboard.press("Control+z")
    valid(page)
    assert not template.exists()


def test_box_marks_are_dragged_and_resized_with_the_mouse(page: Page, template: Path) -> None:
    valid(page)
    save(page)
    x0, y0, x1, y1 = load_annotation(template).fine
    middle = ((x0 + x1) / 2, y0 + 0.2 * (y1 - y0))
    drag(page, middle, (-6, -4))
    drag(page, (x1 - 6, y1 - 4), (8, 8))
    valid(page)
    save(page, replace=True)
    assert load_annotation(template).fine == pytest.approx(
        (x0 - 6, y0 - 4, x1 + 2, y1 + 4), abs=1.5
    )


def test_landmark_list_adds_renames_and_removes(page: Page, template: Path) -> None:
    valid(page)
    for _ in range(page.locator("#landmarks div").count()):
        page.locator("#landmarks button").first.click()
    page.keyboard.press("l")
    page.mouse.click(*on_screen(page, 380, 260))
    name = page.locator("#landmarks input")
    name.fill("tip")
    name.press("Enter")
    valid(page)
    assert page.locator("#status .fair").count() == 0
    save(page)
    assert dict(load_annotation(template).landmarks) == {"tip": pytest.approx((380, 260), abs=1)}
    drag(page, (380, 260), (15, -10))
    valid(page)
    save(page, replace=True)
    assert dict(load_annotation(template).landmarks) == {"tip": pytest.approx((395, 250), abs=1)}
    name.fill("left_tip")
    name.press("Enter")
    expect(page.locator("#status .fair")).to_contain_text("medial or lateral")
    valid(page)


def test_film_view_changes_contrast_by_right_drag_and_zooms_by_wheel(page: Page) -> None:
    film = page.locator("#film")
    tone = "document.querySelector('#film canvas').style.filter"
    drag(page, (100, 100), (60, -40), button="right")
    filters = page.evaluate(tone)
    assert "brightness(1)" not in filters
    assert "contrast(1)" not in filters
    page.keyboard.press("i")
    assert "invert(1)" in page.evaluate(tone)
    page.keyboard.press("w")
    assert page.evaluate(tone) == "invert(0) brightness(1) contrast(1)"
    before = film.get_attribute("data-scale") or ""
    page.mouse.move(*on_screen(page, 256, 256))
    page.mouse.wheel(0, -120)
    expect(film).not_to_have_attribute("data-scale", before)
    assert float(film.get_attribute("data-scale") or 0) > 1.1 * float(before)
    page.keyboard.press("0")
    expect(film).to_have_attribute("data-scale", before)


def test_preview_is_stopped_by_a_second_one(page: Page, films: list[Path]) -> None:
    valid(page)
    page.keyboard.press("t")
    page.wait_for_selector("#preview-films figure")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("t")
    page.wait_for_selector("#preview[data-state=done]")
    expect(page.locator("#preview-films figure")).to_have_count(len(films) - 1)
    page.keyboard.press("Escape")
    expect(page.locator("#preview")).to_be_hidden()


def test_annotate_app_starts_with_the_saved_annotation(page: Page, template: Path) -> None:
    valid(page)
    page.keyboard.press("Shift+ArrowUp")
    valid(page)
    save(page)
    before = template.read_bytes()
    page.reload()
    page.wait_for_selector("body[data-ready]")
    valid(page)
    save(page, replace=True)
    assert template.read_bytes() == before


def test_annotate_app_moves_all_boxes_together(page: Page, template: Path) -> None:
    valid(page)
    save(page)
    before = load_annotation(template)
    page.keyboard.press("5")
    page.keyboard.press("Shift+ArrowUp")
    x0, y0, x1, y1 = before.red
    centre = ((x0 + x1) / 2, (y0 + y1) / 2 - 10)
    drag(page, centre, (-6, 4))
    expect(page.locator("#boxes [data-name=all]")).to_have_attribute("aria-pressed", "true")
    valid(page)
    save(page, replace=True)
    after = load_annotation(template)
    for name in ("fine", "red", "green"):
        moved = [b - a for a, b in zip(getattr(before, name), getattr(after, name), strict=True)]
        assert moved == pytest.approx([-6, -6, -6, -6], abs=1.5), name
    assert set(after.landmarks) == set(before.landmarks) != set()
    for name, (x, y) in before.landmarks.items():
        assert after.landmarks[name] == pytest.approx((x - 6, y - 6), abs=1.5)
    page.keyboard.press("Control+z")
    page.keyboard.press("Control+z")
    save(page, replace=True)
    assert load_annotation(template) == before


def test_annotate_app_mirrors_to_the_other_knee(page: Page, template: Path) -> None:
    valid(page)
    save(page)
    before = load_annotation(template)
    page.locator("#mirror").click()
    expect(page.locator("#status")).to_contain_text("Valid: right half")
    save(page, replace=True)
    after = load_annotation(template)
    assert (before.side, after.side) == ("left", "right")
    axis = (before.fine[0] + after.fine[2]) / 2
    for name in ("fine", "red", "green"):
        x0, y0, x1, y1 = getattr(before, name)
        mirrored = (2 * axis - x1, y0, 2 * axis - x0, y1)
        assert getattr(after, name) == pytest.approx(mirrored, abs=0.11)
    page.keyboard.press("m")
    expect(page.locator("#status")).to_contain_text("Valid: left half")
