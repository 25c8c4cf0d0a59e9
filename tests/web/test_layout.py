"""Both pages on a small and on a large screen; with KNEEMATCH_DOCS=1, the pictures of the docs."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from kneematch.web.annotate import annotate_app
from kneematch.web.auth import Door, Guard
from kneematch.web.review import open_run, review_app

SMALL, LARGE = (1280, 800), (2560, 1440)
DOCS = Path(__file__).parents[2] / "docs" / "images"

Serve = Callable[[Callable[[Door], Guard]], Door]
Open = Callable[..., Page]


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Where pictures go: to the docs only when asked for."""
    folder = DOCS if os.environ.get("KNEEMATCH_DOCS") else tmp_path / "pictures"
    folder.mkdir(exist_ok=True)
    return folder


def assert_fits(page: Page, size: tuple[int, int]) -> None:
    """Nothing sticks out, and every button in sight can be reached."""
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
    assert page.evaluate("document.documentElement.scrollHeight") <= size[1]
    for button in page.locator("button:visible").all():
        place = button.bounding_box()
        assert place is not None
        assert place["x"] >= 0
        assert place["x"] + place["width"] <= size[0]


def shoot(page: Page, folder: Path, name: str, size: tuple[int, int]) -> None:
    if size == SMALL or folder != DOCS:
        page.screenshot(path=folder / name)


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_annotate_fits(
    size: tuple[int, int],
    serve: Serve,
    open_page: Open,
    films: list[Path],
    tmp_path: Path,
    pictures: Path,
    guessed_before: None,
) -> None:
    template = tmp_path / "template.json"
    tried = films[1:] if size == SMALL else films[1:2]
    page = open_page(serve(lambda door: annotate_app(films[0], template, tried, door)), size)
    page.wait_for_selector("body[data-ready]")
    expect(page.locator("#status")).to_have_attribute("data-valid", "yes")
    page.keyboard.press("t")
    page.wait_for_selector("#trial[data-state=done]")
    page.locator("#target").evaluate("element => { element.textContent = 'to template.json'; }")
    assert_fits(page, size)
    for name in ("#try", "#save"):
        place = page.locator(name).bounding_box()
        assert place is not None
        assert place["y"] + place["height"] <= size[1]
    shoot(page, pictures, "annotate.png", size)


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_review_fits(
    size: tuple[int, int], serve: Serve, open_page: Open, run_folder: Path, pictures: Path
) -> None:
    run = open_run(run_folder, Path())
    page = open_page(serve(lambda door: review_app(run, door)), size)
    page.wait_for_selector("body[data-ready]")
    page.locator("#name").evaluate("element => { element.textContent = 'found'; }")
    for key in "aax":
        with page.expect_response(lambda told: "api/decide" in told.url):
            page.keyboard.press(key)
    expect(page.locator(".badge")).to_have_count(3)
    page.wait_for_load_state("networkidle")
    assert_fits(page, size)
    shoot(page, pictures, "review.png", size)
    page.keyboard.press("Enter")
    page.wait_for_selector("#editor[data-ready]")
    film = page.locator("#knee-film")
    film.evaluate("element => { element.textContent = element.textContent.split('/').pop(); }")
    for key in ("Shift+ArrowRight", "]", "]", "]", "]"):
        page.keyboard.press(key)
    page.wait_for_load_state("networkidle")
    expect(page.locator("#loss-here")).not_to_have_text("–")
    assert_fits(page, size)
    shoot(page, pictures, "review-knee.png", size)
