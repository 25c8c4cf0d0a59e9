"""Readers of a run: their names, grades and notes, and that they do not see each other."""

from collections.abc import Callable
from pathlib import Path

from fastapi import FastAPI
from playwright.sync_api import Page, expect

from kneematch.run.decisions import read_decisions
from kneematch.web.review import ReviewSession, review_app
from kneematch.web.server import Credentials
from review_page import edit, press, shown

Open = Callable[..., Page]


def test_review_app_keeps_reader_grade_and_note_with_a_decision(
    run_folder: Path, serve: Callable[[FastAPI], Credentials], open_page: Open
) -> None:
    session = ReviewSession(run_folder, Path(), "A. Reader")
    page = open_page(serve(review_app(session)))
    page.wait_for_selector("body[data-ready]")
    expect(page.locator("#reader")).to_have_text("Reader: A. Reader")
    expect(page.locator("#facts")).to_contain_text("2 left to review")
    page.locator("[name=shown]").select_option("to_review")
    expect(page.locator("#shown")).to_have_text("2 knees")
    edit(page)
    row = page.locator("#editor").get_attribute("data-ready")
    page.keyboard.press("3")
    expect(page.locator("#grade")).to_have_value("3")
    page.locator("#note").fill("=osteophytes, 0")  # digits are typed here
    page.once("dialog", lambda dialog: dialog.dismiss())  # leaving would lose them
    page.locator("#next").click()
    expect(page.locator("#note")).to_have_value("=osteophytes, 0")
    with page.expect_response(lambda answer: "api/decide" in answer.url and answer.ok):
        page.locator("#accept").click()
    page.keyboard.press("Escape")
    expect(page.locator("#facts")).to_contain_text("1 left to review")
    expect(page.locator(f".card[data-row='{row}'] .line")).to_contain_text("grade 3")
    with page.expect_response(lambda answer: "api/apply" in answer.url and answer.ok):
        page.locator("#apply").click()
    ((_, _, _, decision, _),) = read_decisions(run_folder / "review.csv")
    told = decision.state, decision.reader, decision.grade, decision.note
    assert told == ("accepted", "A. Reader", "3", "=osteophytes, 0")


def test_review_app_lets_a_second_reader_see_nothing_of_the_first(
    run_folder: Path, serve: Callable[[FastAPI], Credentials], open_page: Open
) -> None:
    """Two readers decide by themselves; the report compares them, and a third settles it."""

    def read_as(reader: str) -> Page:
        page = open_page(serve(review_app(ReviewSession(run_folder, Path(), reader))))
        page.wait_for_selector("body[data-ready]")
        return page

    first = read_as("A. Reader")
    order = shown(first)
    for key in ("a", "x", "a"):
        press(first, key)
    second = read_as("B. Reader")
    assert shown(second) == order
    expect(second.locator("#facts")).to_contain_text("0 of 8 decided")
    expect(second.locator(".badge")).to_have_count(0)
    expect(second.locator("option[value=differ]")).to_be_hidden()
    second.keyboard.press("u")
    expect(second.locator("#notice")).to_have_text("There is no decision to revoke")
    for key in ("a", "x", "x"):
        press(second, key)
    expect(second.locator("#facts")).to_contain_text("3 of 8 decided")
    with second.expect_response(lambda answer: "api/apply" in answer.url and answer.ok):
        second.locator("#apply").click()
    expect(second.locator("#notice")).to_have_text(f"{run_folder}: all files are up to date")
    third = read_as("")
    third.locator("[name=shown]").select_option("differ")
    expect(third.locator("#shown")).to_have_text("1 knee")
    edit(third)
    expect(third.locator("#knee-facts")).to_contain_text("A. Reader: accepted; B. Reader: rejected")
    third.goto(f"file://{run_folder / 'report.html'}")
    agreement = third.locator("section", has_text="Agreement of the readers")
    expect(agreement.locator("h3")).to_have_text("A. Reader and B. Reader")
    expect(agreement.locator("td span")).to_have_text("the same on 67 % of 3 knees; kappa 0.40")
