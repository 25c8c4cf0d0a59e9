"""Drawing a template in the browser; its boxes, problems and pictures without one."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from playwright.sync_api import Page, expect

from film_mouse import drag, on_screen
from kneematch.films.annotation import annotate, load_annotation
from kneematch.films.read import read
from kneematch.web.annotate import (
    Drawing,
    SplitFilm,
    annotate_app,
    default_coarse,
    find_problems,
    find_warnings,
    initial_annotation,
    to_annotation,
    to_drawing,
)
from kneephantoms import phantom
from pages import Open, Serve
from part_films import part_annotation
from phantom_films import radiograph

SIZE = (512, 512)
PHANTOM = phantom(0, size=SIZE)
KNEE = PHANTOM.knees[0]  # the one with the lower loss

Box = tuple[float, float, float, float]


@pytest.fixture
def page(
    serve: Serve, open_page: Open, films: list[Path], template: Path, model_already_run: None
) -> Page:
    """The page with its initial annotation."""
    return open_page(serve(annotate_app(films[0], template, films[1:])))


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
    with page.expect_response(lambda answer: "api/save" in answer.url and answer.ok):
        page.keyboard.press("s")
        if replace:
            page.locator("#replace button[value=replace]").click()
    expect(page.locator("#notice")).to_contain_text("Saved")


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
    command = f"kneematch detect FILMS --template {template} -o found"
    expect(page.locator("#target")).to_contain_text(command)
    assert drawn.side == "left"
    for name in ("fine", "red", "green"):
        assert getattr(drawn, name) == pytest.approx(getattr(wanted, name), abs=1.5)


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
    draw(page, "2", (20.0, 20.0, 60.0, 60.0))
    expect(page.locator("#boxes [data-name=red]")).to_have_class("wrong")
    expect(page.locator("#save")).to_be_disabled()
    page.keyboard.press("s")
    page.keyboard.press("Control+z")
    valid(page)
    assert not template.exists()


def test_box_marks_are_dragged_and_resized_and_kept(page: Page, template: Path) -> None:
    valid(page)
    save(page)
    x0, y0, x1, y1 = load_annotation(template).fine
    middle = ((x0 + x1) / 2, y0 + 0.2 * (y1 - y0))
    drag(page, middle, (-6, -4))
    drag(page, (x1 - 6, y1 - 4), (8, 8))
    valid(page)
    save(page, replace=True)
    wanted = (x0 - 6, y0 - 4, x1 + 2, y1 + 4)
    assert load_annotation(template).fine == pytest.approx(wanted, abs=1.5)
    before = template.read_bytes()
    page.reload()  # starts with the saved boxes
    page.wait_for_selector("body[data-ready]")
    valid(page)
    save(page, replace=True)
    assert template.read_bytes() == before


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


def test_annotate_app_moves_all_boxes_together_and_mirrors_them(page: Page, template: Path) -> None:
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
    page.locator("#mirror").click()
    expect(page.locator("#status")).to_contain_text("Valid: knee on the image’s right")
    save(page, replace=True)
    after = load_annotation(template)
    assert (before.side, after.side) == ("left", "right")
    axis = (before.fine[0] + after.fine[2]) / 2
    for name in ("fine", "red", "green"):
        x0, y0, x1, y1 = getattr(before, name)
        mirrored = (2 * axis - x1, y0, 2 * axis - x0, y1)
        assert getattr(after, name) == pytest.approx(mirrored, abs=0.11)
    page.locator("#find").select_option("pair")
    expect(page.locator("#status")).to_contain_text("Valid: area on the image’s right")


@pytest.fixture(scope="module")
def film(films: list[Path]) -> SplitFilm:
    return SplitFilm.from_film(films[0], read(films[0]))


def drawn(side: int = 1, **boxes: Box | None) -> Drawing:
    knee = PHANTOM.knees[side]
    wanted = annotate(Path("film"), knee.side, knee.plateau_left, knee.plateau_right)
    return replace(Drawing(wanted.fine, wanted.red, wanted.green), **boxes)


def boxes_with_problems(film: SplitFilm, drawing: Drawing) -> list[str]:
    return [found["box"] for found in find_problems(to_annotation(drawing, film), film)]


def test_to_annotation_takes_the_side_of_a_detected_knee(tmp_path: Path) -> None:
    made = phantom(3, framing="single")  # a left one in the picture's right half
    film = SplitFilm.from_film(tmp_path / "single.dcm", radiograph(made))
    (knee,) = made.knees
    drawn = annotate(film.path, knee.side, knee.plateau_left, knee.plateau_right)
    x0, y0, x1, y1 = drawn.fine
    assert (knee.side, x0 + x1 > 2 * film.axis_px) == ("left", True)
    drawing = Drawing(drawn.fine, drawn.red, drawn.green)
    assert to_annotation(drawing, film).side == "left"
    beside = replace(drawing, fine=(x0 + 300, y0, x1 + 300, y1))
    assert to_annotation(beside, film).side == "right"


def test_to_annotation_keeps_how_far_a_part_is_looked_for(tmp_path: Path) -> None:
    saved = replace(part_annotation(tmp_path, "one"), scale_range=2.5, turn_deg=20.0)
    film = SplitFilm.from_film(saved.film, read(saved.film))
    assert to_annotation(to_drawing(saved, film), film) == saved


def test_find_problems_names_the_box_of_every_problem(film: SplitFilm) -> None:
    outside = (5.0, 5.0, 25.0, 25.0)
    assert boxes_with_problems(film, drawn(red=outside)) == ["red"]
    assert boxes_with_problems(film, drawn(red=outside, green=outside)) == ["red", "green"]
    assert "coarse" in boxes_with_problems(film, drawn(coarse=outside))
    assert "fine" in boxes_with_problems(film, drawn(fine=(9.0, 9.0, 9.0, 9.0)))
    assert boxes_with_problems(film, drawn(fine=(-80.0, -80.0, 700.0, 700.0)))[0] == "fine"
    drawing = replace(drawn(), landmarks={"centre": (1.0, 2.0)})
    assert boxes_with_problems(film, drawing) == ["landmarks"]


def test_find_warnings_are_about_boxes_without_a_joint(film: SplitFilm) -> None:
    annotation = to_annotation(drawn(0), film)
    assert find_warnings(annotation, film) == []
    ramp = torch.linspace(0.1, 0.11, film.halves.pixels[0].numel())
    even = replace(film.halves, pixels=ramp.reshape(1, 800, 500).repeat(2, 1, 1))
    (warning,) = find_warnings(annotation, replace(film, halves=even))
    assert warning.startswith("The fine box is mostly a single grey")
    x0, y0, x1, y1 = annotation.fine
    (warning,) = find_warnings(replace(annotation, fine=(x0, y0, x1, (y0 + y1) / 2)), film)
    assert warning.startswith("The fine box does not hold the middle of a tibial plateau")


@pytest.mark.parametrize("fine", [(300, 200, 400, 300), (412, 412, 512, 512)])
def test_default_coarse_contains_the_fine_box_and_stays_in_the_half(
    film: SplitFilm, fine: Box
) -> None:
    frame = film.frame("right")
    coarse = default_coarse(fine, frame)
    for k in (0, 1):
        assert frame[k] - 0.1 <= coarse[k] <= fine[k] + 0.1
        assert fine[k + 2] - 0.1 <= coarse[k + 2] <= frame[k + 2] + 0.1
    aspects = [(box[3] - box[1]) / (box[2] - box[0]) for box in (fine, coarse)]
    assert aspects[0] == pytest.approx(aspects[1], rel=0.01)


def test_find_warnings_tells_of_a_knee_across_both_halves(tmp_path: Path) -> None:
    film = SplitFilm.from_film(tmp_path / "a.dcm", radiograph(phantom(1, framing="single")))
    drawn, _ = initial_annotation(film, tmp_path / "none.json")
    assert find_problems(drawn, film) == []
    (warning,) = find_warnings(drawn, film)
    assert "need boxes in one half" in warning
