"""Both pages on a small and a large screen; with KNEEMATCH_DOCS=1, the pictures of the docs."""

import os
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from kneematch.web.annotate import annotate_app
from pages import Open, Serve
from review_page import edit, press

PHONE, SMALL = (390, 844), (1280, 800)
DOCS = Path(__file__).parents[2] / "docs" / "images"

SMALLEST_TEXT = """Math.min(...[...document.querySelectorAll("body *")]
  .filter((element) => element.checkVisibility() && element.innerText?.trim())
  .map((element) => parseFloat(getComputedStyle(element).fontSize)))"""
WIDE_PANELS = """[...document.querySelectorAll("aside")]
  .filter((panel) => panel.scrollWidth > panel.clientWidth).length"""
BROKEN_PICTURES = """[...document.images]
  .filter((image) => image.checkVisibility() && image.complete && !image.naturalWidth)
  .map((image) => image.alt)"""


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = DOCS if os.environ.get("KNEEMATCH_DOCS") else tmp_path / "pictures"
    folder.mkdir(exist_ok=True)
    return folder


def assert_fits(page: Page, size: tuple[int, int]) -> None:
    """Nothing is wider than the screen or its panel, no text is tiny, no picture is broken."""
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
    assert page.evaluate(WIDE_PANELS) == 0
    if size != PHONE:  # there, the page scrolls
        assert page.evaluate("document.documentElement.scrollHeight") <= size[1]
    for button in page.locator("button:visible").all():
        place = button.bounding_box()
        assert place is not None
        assert place["x"] >= 0
        assert place["x"] + place["width"] <= size[0]
    assert page.evaluate(SMALLEST_TEXT) >= 11
    assert page.evaluate(BROKEN_PICTURES) == []


def shoot(page: Page, folder: Path, name: str, size: tuple[int, int]) -> None:
    if size == SMALL or folder != DOCS:
        page.screenshot(path=folder / name)


@pytest.mark.parametrize("size", [PHONE, SMALL])
def test_annotate_page_fits_the_screen(
    size: tuple[int, int],
    serve: Serve,
    open_page: Open,
    films: list[Path],
    tmp_path: Path,
    pictures: Path,
    model_already_run: None,
) -> None:
    page = open_page(serve(annotate_app(films[0], tmp_path / "template.json", films[1:])), size)
    expect(page.locator("#status")).to_have_attribute("data-valid", "yes")
    page.keyboard.press("t")
    page.wait_for_selector("#preview[data-state=done]")
    page.locator("#target").evaluate(
        "element => { element.textContent = 'Saves to template.json'; }"
    )
    assert_fits(page, size)
    shoot(page, pictures, "annotate.png", size)


@pytest.mark.parametrize("size", [PHONE, SMALL])
def test_review_page_fits_the_screen(
    size: tuple[int, int], open_review: Open, run_folder: Path, pictures: Path
) -> None:
    page = open_review(run_folder, size=size)
    page.locator("#name").evaluate("element => { element.textContent = 'found'; }")
    for key in "aax":
        press(page, key)
    expect(page.locator(".badge")).to_have_count(3)
    page.wait_for_function("() => [...document.images].every((image) => image.complete)")
    assert_fits(page, size)
    shoot(page, pictures, "review.png", size)
    edit(page)
    film = page.locator("#knee-film")
    film.evaluate("element => { element.textContent = element.textContent.split('/').pop(); }")
    for key in ("Shift+ArrowRight", "]", "]", "]", "]"):
        page.keyboard.press(key)
    assert_fits(page, size)
    shoot(page, pictures, "review-knee.png", size)
