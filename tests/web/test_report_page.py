"""report.html in a browser: what a reader sees at first, on a screen and on a phone."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

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
