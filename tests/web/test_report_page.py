"""report.html in a browser: what a reader sees at first, on a screen and on a phone."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect

from kneematch import DetectConfig, detect_folder
from kneephantoms import phantom
from tables import read_table

WORDS = ("loss", "energy", "locator", "template", "sha-256")  # of the fold only
WIDE, NARROW = (1280, 800), (390, 844)


@pytest.fixture(params=[WIDE, NARROW])
def page(request: pytest.FixtureRequest, browser: Browser, run_folder: Path) -> Iterator[Page]:
    width, height = request.param
    context = browser.new_context(viewport={"width": width, "height": height})
    page = context.new_page()
    page.goto(f"file://{run_folder / 'report.html'}")
    yield page
    context.close()


def test_report_answers_first_and_keeps_technical_words_in_a_fold(page: Page) -> None:
    expect(page.locator(".lead")).to_have_text("2 of 8 knees to look at (25 %).")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    fold = page.locator(".technical")
    expect(fold.locator(".facts")).to_be_hidden()
    seen = page.locator("body").inner_text().lower()
    assert [word for word in WORDS if word in seen] == []
    fold.locator("summary").click()
    expect(fold).to_contain_text("SHA-256")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_report_links_to_tables_and_enlarges_a_film(page: Page, run_folder: Path) -> None:
    for link in page.locator(".links a").all():
        assert (run_folder / str(link.get_attribute("href"))).exists()
    film = page.locator(".films svg.film").first
    film.scroll_into_view_if_needed()
    before = film.bounding_box()
    film.click()
    after = film.bounding_box()
    assert before is not None
    assert after is not None
    assert after["height"] > 1.2 * before["height"]
    film.click()
    expect(page.locator("figure details[open]")).to_have_count(0)


def test_report_names_the_patients_side(page: Page, run_folder: Path) -> None:
    """The right knee is at the left of a film seen from the front, and is called right."""
    rows = read_table(run_folder / "detections.csv")
    assert {row["image_side"]: row["laterality"] for row in rows} == {"left": "R", "right": "L"}
    labels = page.locator(".films svg.film").first.locator("g")
    expect(labels.locator("text")).to_have_text(["right knee", "left knee"])
    edges = [labels.nth(k).locator("polygon").first.bounding_box() for k in (0, 1)]
    assert None not in edges
    assert [edge["x"] for edge in edges if edge] == sorted(edge["x"] for edge in edges if edge)


def test_pages_call_a_lone_knee_of_unknown_side_a_knee(
    tmp_path: Path, browser: Browser, open_review: Callable[..., Page]
) -> None:
    made = phantom(3, framing="single", size=(600, 500))
    pixels = made.pixels.copy()
    pixels[:150] = 0  # where its marker is
    Image.fromarray((255 * pixels).astype(np.uint8)).save(tmp_path / "knee.png")
    found = detect_folder(tmp_path, tmp_path / "found", DetectConfig(device="cpu", workers=0))
    assert read_table(found.out / "detections.csv")[0]["laterality"] == ""
    page = browser.new_page()
    page.goto(f"file://{found.out / 'report.html'}")
    expect(page.locator(".films svg.film text")).to_have_text(["knee"])
    page.close()
    expect(open_review(found.out).locator(".label")).to_have_text(re.compile("^knee"))
