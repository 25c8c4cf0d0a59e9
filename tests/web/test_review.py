"""Reviewing a run in the browser: the files hold exactly what is decided there."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page, Route, expect

from film_mouse import drag, on_screen
from kneematch import DetectConfig, detect_folder
from kneematch.films.annotation import save_annotation
from kneematch.knee.decision import Decision
from kneematch.knee.quality import ATYPICAL
from kneematch.run.database import Run
from kneematch.run.decisions import read_decisions
from kneematch.web.review import ReviewSession, review_app
from kneephantoms.files import write_dicom
from pages import Open, Serve
from part_films import part_annotation, part_film, save_film
from review_page import assert_refused, by_film, click, edit, open_knee, press, shown
from tables import read_table

Row = dict[str, str]
MOST_WAITS = 6000  # 10 ms each, for a request

PLAIN = "invert(0) brightness(1) contrast(1)"
# The greys of two places of the picture of the film, before the browser changes its tone.
GREYS = """() => {
    const shown = Konva.stages[0].findOne("Image").image();
    const canvas = new OffscreenCanvas(512, 512).getContext("2d");
    canvas.drawImage(shown, 0, 0, 512, 512);
    return [225, 275].map((x) => canvas.getImageData(x, 250, 1, 1).data[0]);
}"""

MISFITS: list[tuple[str, str, object]] = [
    ("GET", "api/rows?numbers=" + ",".join(["1"] * 401), None),
    ("GET", "api/rows?numbers=../../etc/passwd", None),
    ("GET", "api/order?sort=magic", None),
    ("GET", "film/1?low=nan", None),
    ("GET", "film/detections.csv", None),
    ("POST", "api/decide", {"row": 9, "state": "accepted"}),
    ("POST", "api/decide", {"row": 1, "state": "corrected"}),
    ("POST", "api/decide", {"row": 1, "state": "x" * 70_000}),
]
PICTURES = """count => document.images.length === count
  && [...document.images].every((image) => image.complete && image.naturalWidth)"""
# First and third corner of the outline as they are seen on the thumbnail, in film pixels.
SEEN_CORNERS = """marks => {
  const picture = marks.parentElement.querySelector("img").getBoundingClientRect();
  const area = marks.querySelector(".area");
  return [0, 2].flatMap((k) => {
    const { x, y } = area.points[k].matrixTransform(area.getScreenCTM());
    return [(512 * (x - picture.x)) / picture.width, (512 * (y - picture.y)) / picture.height];
  });
}"""
FILM_SHOWN = "Konva.stages[0].find('Image')[0].image().src"


@pytest.fixture
def page(run_folder: Path, open_review: Open) -> Page:
    return open_review(run_folder)


def decisions(folder: Path) -> list[tuple[str, str, str]]:
    """Film, side and state of each decision, in the order made."""
    return [
        (Path(film).name, side, "undone" if revoked else decision.state)
        for film, side, decision, revoked in all_decisions(folder)
    ]


def all_decisions(folder: Path) -> list[tuple[str, str, Decision, bool]]:
    with Run(folder, exclusive=False) as run:
        return [entry[1:] for entry in run.decisions()]


def found(folder: Path) -> dict[int, Row]:
    return dict(enumerate(read_table(folder / "detections.csv"), start=1))


def named(row: Row) -> tuple[str, str]:
    return Path(row["film"]).name, row["image_side"]


def test_review_app_keeps_exactly_what_was_decided(
    page: Page, run_folder: Path, open_review: Open
) -> None:
    rows, order = found(run_folder), [int(row) for row in shown(page)]
    assert set(order[:2]) == {4, 7}
    press(page, "a")
    press(page, "x")
    expected = [(*named(rows[order[0]]), "accepted"), (*named(rows[order[1]]), "rejected")]
    assert decisions(run_folder) == expected
    page.reload()
    assert_shown(page, order)
    again = open_review(run_folder)
    assert_shown(again, order)
    click(again, "#apply", "api/apply")
    again.reload()
    assert_shown(again, order)
    assert decisions(run_folder) == expected


def assert_shown(page: Page, order: list[int]) -> None:
    """Two cards are marked, and the third is where one goes on."""
    for row, kind in zip(order, ("accepted", "rejected", "at"), strict=False):
        expect(page.locator(f".card.{kind}")).to_have_attribute("data-row", str(row))
    expect(page.locator("#facts")).to_contain_text("2 of 8 decided")


def test_editor_turns_and_resizes_an_area(page: Page, run_folder: Path) -> None:
    before = found(run_folder)[int(shown(page)[0])]
    edit(page)
    xs, ys = ([float(before[f"{axis}{k}_px"]) for k in range(4)] for axis in "xy")
    x, y = max(zip(xs, ys, strict=True), key=lambda corner: sum(corner))
    drag(page, (x, y), (15, 15))
    for key in ("]", "]", "Shift+ArrowLeft"):
        page.keyboard.press(key)
    press(page, "Enter")
    ((_, _, decision, _),) = all_decisions(run_folder)
    turned = decision.area.rotation_deg - float(before["rotation_deg"])
    assert turned == pytest.approx(0.5, abs=1e-3)
    assert 5 < decision.area.width_px - float(before["width_px"]) < 30


def test_editor_hints_at_two_knees_of_the_same_side(page: Page) -> None:
    hint, sides = page.locator("#same-side"), page.locator("#laterality")
    open_knee(page, 1)
    expect(sides.locator("[aria-pressed=true]")).to_have_text("R")
    expect(hint).to_be_empty()
    sides.locator("[value=L]").click()
    expect(hint).to_contain_text("is L, too")
    page.locator("#save-area").click()  # not refused
    page.wait_for_selector("#editor[data-ready='2']")
    expect(hint).to_contain_text("is L, too")
    page.keyboard.press("x")  # a rejected knee has no side
    page.wait_for_selector("#editor[data-ready='3']")
    for row in ("2", "1"):
        page.keyboard.press("PageUp")
        page.wait_for_selector(f"#editor[data-ready='{row}']")
    expect(sides.locator("[aria-pressed=true]")).to_have_text("L")
    expect(hint).to_be_empty()


def test_editor_is_used_with_fingers(page: Page, run_folder: Path) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    touch = page.context.new_cdp_session(page)
    touch.send("Emulation.setTouchEmulationEnabled", {"enabled": True})

    def finger(kind: str, *point: float) -> None:
        points = [{"x": point[0], "y": point[1]}] if point else []
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    row, following, *_ = shown(page)
    before = found(run_folder)[int(row)]
    edit(page)
    centre = float(before["centre_x_px"]), float(before["centre_y_px"])
    finger("touchStart", *on_screen(page, *centre))
    for shift in (6, 12):
        finger("touchMove", *on_screen(page, centre[0] + shift, centre[1]))
    finger("touchEnd")
    click(page, "#save-area")
    ((_, _, decision, _),) = all_decisions(run_folder)
    assert decision.area.centre_x_px == pytest.approx(centre[0] + 12, abs=2)
    page.wait_for_selector(f"#editor[data-ready='{following}']")
    film = page.locator("#film")
    left = float(film.get_attribute("data-x") or 0)
    place = film.bounding_box()
    assert place is not None
    corner = place["x"] + 8, place["y"] + 8  # beside the area
    finger("touchStart", *corner)
    finger("touchMove", corner[0] + 30, corner[1] + 10)
    finger("touchEnd")
    page.wait_for_function(
        "x => Math.abs(document.querySelector('#film').dataset.x - x) < 2", arg=left + 30
    )


def test_editor_undoes_and_redoes_changes_of_its_own_knee_only(
    page: Page, run_folder: Path
) -> None:
    """After a move, Ctrl+Z takes the move back, and no decision about another knee."""
    rows, (first, second, *_) = found(run_folder), [int(row) for row in shown(page)]
    press(page, "a")
    edit(page)
    row = rows[second]
    centre = float(row["centre_x_px"]), float(row["centre_y_px"])
    drag(page, centre, (12, -8))
    page.keyboard.press("ArrowRight")
    page.locator("#laterality button[value='']").click()
    for _ in range(3):
        page.keyboard.press("Control+z")
    expect(page.locator("#save-area")).to_be_disabled()
    page.keyboard.press("Control+z")  # there is nothing more to undo
    expect(page.locator("#notice")).to_have_text("There is no change of this knee to undo")
    page.keyboard.press("u")  # revokes decisions in the list only
    assert decisions(run_folder) == [(*named(rows[first]), "accepted")]
    for key in ("Control+Shift+z", "Control+y", "Control+Shift+Z", "Control+z"):
        page.keyboard.press(key)  # the side is not redone for good
    click(page, "#save-area")
    (_, (_, _, decision, _)) = all_decisions(run_folder)
    moved = decision.area.centre_x_px, decision.area.centre_y_px
    assert moved == pytest.approx((centre[0] + 13, centre[1] - 8), abs=1.5)
    assert decision.laterality == row["laterality"]
    page.keyboard.press("Escape")
    expect(page.locator("#revoke")).to_have_text("Revoke last decision")
    click(page, "#revoke", "api/undo")
    expect(page.locator("#notice")).to_contain_text("Decision revoked: ")
    states = [state for _, _, state in decisions(run_folder)]
    assert states == ["accepted", "corrected", "undone"]


def test_editor_windows_the_film_in_its_own_depth(
    run_folder: Path, tmp_path: Path, open_review: Open
) -> None:
    """Two greys of a film of 16 bits that are one of the 256 of a screen can be told apart."""
    levels = np.linspace(0, 40_000, 512).astype(np.uint16)[None].repeat(512, 0)
    levels[200:300, 200:250], levels[200:300, 250:300] = 20_045, 20_105
    pixels = levels.astype(np.float32) / 65_535
    write_dicom(tmp_path / "deep.dcm", pixels, mm_per_px=0.5, laterality="B", bits=16)
    with Run(run_folder) as run:
        run.sql.execute("UPDATE films SET path = ? WHERE id = 1", (str(tmp_path / "deep.dcm"),))
    page = by_film(open_review(run_folder))
    edit(page)
    assert len(set(page.evaluate(GREYS))) == 1
    page.locator("#tools input").nth(1).fill("2.5")  # contrast
    page.wait_for_selector("#film[data-window]")
    dark, bright = page.evaluate(GREYS)
    assert dark < bright
    assert page.locator("#film canvas").first.evaluate("film => film.style.filter") == PLAIN
    page.keyboard.press("i")  # inverted, too
    page.wait_for_selector("#film[data-window]")
    assert page.evaluate(GREYS)[0] < page.evaluate(GREYS)[1]
    page.keyboard.press("w")
    expect(page.locator("#film[data-window]")).to_have_count(0)
    assert len(set(page.evaluate(GREYS))) == 1


def test_review_app_applies_fast_keys_to_successive_knees_and_undoes_them(
    page: Page, run_folder: Path
) -> None:
    order = [int(row) for row in shown(page)]
    with page.expect_response(
        lambda response: f'"row":{order[4]},' in str(response.request.post_data)
    ):
        page.keyboard.type("axaxa")
    rows = found(run_folder)
    wanted = ["accepted", "rejected", "accepted", "rejected", "accepted"]
    expected = [(*named(rows[row]), state) for row, state in zip(order, wanted, strict=False)]
    assert decisions(run_folder) == expected
    for count in range(1, 6):
        press(page, "u", "api/undo")
        assert [what for _, _, what in decisions(run_folder)].count("undone") == count
    expect(page.locator("#facts")).to_contain_text("0 of 8 decided")
    expect(page.locator(".badge")).to_have_count(0)


def hold(page: Page, address: str) -> Callable[[], None]:
    """Hold the next request to an address; return a function that waits for it and lets it go."""
    held: list[Route] = []
    page.route(lambda url: address in url, lambda route: held.append(route), times=1)

    def release() -> None:
        for _ in range(MOST_WAITS):
            if held:
                held[0].continue_()
                return
            page.wait_for_timeout(10)
        pytest.fail(f"there was no request to {address}")

    return release


def test_review_app_takes_no_keys_before_the_order_that_was_asked_for(
    page: Page, run_folder: Path
) -> None:
    release = hold(page, "api/order")
    page.locator("[name=sort]").select_option("film")
    page.locator("#gallery").focus()
    page.keyboard.type("ax")  # about knees that are about to go away
    release()
    expect(page.locator("#gallery")).to_have_attribute("aria-busy", "false")
    expect(page.locator(".card.at")).to_have_attribute("data-row", "1")
    press(page, "a")
    (decided,) = decisions(run_folder)
    assert decided == (*named(found(run_folder)[1]), "accepted")


def test_editor_stays_at_a_knee_that_was_opened_before_an_answer(page: Page) -> None:
    rows = shown(page)
    release = hold(page, "api/decide")
    edit(page)
    page.keyboard.press("a")
    for key in ("Escape", "End", "Enter"):
        page.keyboard.press(key)
    page.wait_for_selector(f"#editor[data-ready='{rows[7]}']")
    release()
    expect(page.locator("#facts")).to_contain_text("1 of 8 decided")
    assert page.locator("#editor").is_visible()
    expect(page.locator(".card.at")).to_have_attribute("data-row", rows[7])


def test_editor_asks_before_it_discards_a_correction_that_was_refused(
    run_folder: Path, open_review: Open
) -> None:
    page = open_review(run_folder, allowed="507")
    asked: list[str] = []
    page.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
    refused = {"status": 507, "json": {"problem": "507: the disk is full"}}
    page.route("**/api/decide", lambda route: route.fulfill(**refused))
    edit(page)
    page.keyboard.press("Shift+ArrowLeft")
    page.keyboard.press("Enter")
    expect(page.locator("#notice.bad")).to_be_visible()
    page.keyboard.press("Escape")
    assert len(asked) == 1
    page.unroute("**/api/decide")
    press(page, "Enter")
    assert len(decisions(run_folder)) == 1


def open_next_film(page: Page) -> Callable[[], None]:
    """Go on from the second knee to the first of the next film, whose picture is held back."""
    open_knee(page, 2)
    release = hold(page, "/film/3")
    with page.expect_request(lambda request: "/film/3" in request.url):
        page.keyboard.press("PageDown")
    return release


def test_editor_shows_the_film_of_the_knee_that_was_opened_last(page: Page) -> None:
    release = open_next_film(page)
    page.keyboard.press("PageUp")
    page.wait_for_selector("#editor[data-ready='2']")
    with page.expect_response(lambda response: "/film/3" in response.url):
        release()
    page.evaluate("async () => { await fetch(location.href); }")  # the late answer was seen
    assert page.evaluate(FILM_SHOWN).endswith("/film/2")
    page.keyboard.press("PageDown")
    page.wait_for_selector("#editor[data-ready='3']")
    assert page.evaluate(FILM_SHOWN).endswith("/film/3")


def test_editor_takes_no_decision_about_a_knee_that_it_does_not_show_yet(
    page: Page, run_folder: Path
) -> None:
    release = open_next_film(page)
    page.keyboard.press("a")
    release()
    page.wait_for_selector("#editor[data-ready='3']")
    press(page, "x")
    assert [what for _, _, what in decisions(run_folder)] == ["rejected"]


def test_review_app_filters_rows(page: Page) -> None:
    page.locator("[name=reason]").select_option(ATYPICAL)
    expect(page.locator("#shown")).to_have_text("2 knees")
    page.locator("[name=reason]").select_option("")
    page.locator("[name=side]").select_option("R")
    expect(page.locator("#shown")).to_have_text("4 knees")
    page.locator("[name=film]").fill("film-10")
    expect(page.locator("#shown")).to_have_text("1 knee")
    page.locator("[name=film]").fill("nothing")
    expect(page.locator("#none")).to_be_visible()
    page.reload()
    page.wait_for_selector("body[data-ready]")
    expect(page.locator("#none")).to_be_visible()


def test_gallery_looks_for_an_undecided_knee_beyond_the_rows_in_memory(
    run_folder: Path, open_review: Open
) -> None:
    with Run(run_folder) as run:  # more than the 4000 rows that a page keeps
        film = run.record(1)
        added = run.add([f"{number}.dcm" for number in range(2050)])
        run.save([replace(film, id=number) for number in added])
        run.sql.execute("UPDATE knees SET state = 'accepted'")
    page = by_film(open_review(run_folder, allowed="404"))  # the added films have no picture
    page.keyboard.press("End")
    page.wait_for_selector(".card[data-row='4108']")
    page.keyboard.press("Home")
    page.keyboard.press("n")
    expect(page.locator("#notice")).to_have_text("No undecided knee after this one")


def test_review_app_draws_each_knee_on_its_card(page: Page, run_folder: Path) -> None:
    page.wait_for_function(PICTURES, arg=8)
    for key, row in found(run_folder).items():
        card = page.locator(f".card[data-row='{key}']")
        expect(card.locator(".label")).to_have_text(
            row["laterality"] + "  review" * (key in (4, 7))
        )
        assert card.locator(".marks").evaluate(SEEN_CORNERS) == pytest.approx(
            [float(row[name]) for name in ("x0_px", "y0_px", "x2_px", "y2_px")], abs=1
        )


def test_review_app_refuses_malformed_requests_and_writes_nothing(
    page: Page, run_folder: Path
) -> None:
    for method, path, content in MISFITS:
        assert_refused(page, method, path, content)
    assert decisions(run_folder) == []


def test_review_app_shows_that_a_film_is_missing(run_folder: Path, open_review: Open) -> None:
    with Run(run_folder) as run:
        run.sql.execute("UPDATE films SET path = '404.dcm' WHERE id = 1")
        run.sql.execute("DELETE FROM thumbnails.films WHERE id = 2")
    page = by_film(open_review(run_folder, allowed="404"))
    expect(page.locator(".card p")).to_have_text(["The film cannot be read"] * 2)
    page.keyboard.press("Enter")
    expect(page.locator("#notice")).to_contain_text("404.dcm")
    expect(page.locator("#editor")).to_be_hidden()


def test_review_page_speaks_of_areas_in_a_run_of_another_part(
    tmp_path: Path, open_review: Open
) -> None:
    save_annotation(part_annotation(tmp_path, "any"), tmp_path / "hand.json")
    save_film(tmp_path / "film.png", part_film((150.0, 230.0, 1.0, 0.0, False), seed=2))
    config = DetectConfig(template=(str(tmp_path / "hand.json"),), device="cpu", workers=0)
    out = detect_folder([str(tmp_path / "film.png")], tmp_path / "found", config).out
    page = open_review(out)
    expect(page.locator("#shown")).to_have_text("1 area")
    texts = page.evaluate(
        "document.body.textContent + [...document.querySelectorAll('[title]')].map((e) => e.title)"
    )
    assert not re.search(r"\bknees?\b", texts, re.IGNORECASE)
    page.keyboard.press("Enter")
    expect(page.locator("#knee-facts")).to_have_text("hand on the image's right, undecided")
    page.locator("#add-right").click()  # a second one of the same orientation
    expect(page.locator("#knee-facts")).to_have_text("new area on the image’s right, not saved")


def test_review_app_keeps_reader_grade_and_note_with_a_decision(
    run_folder: Path, serve: Serve, open_page: Open
) -> None:
    session = ReviewSession(run_folder, Path(), "A. Reader")
    page = open_page(serve(review_app(session)))
    expect(page.locator("#reader")).to_have_text("Reader: A. Reader")
    expect(page.locator("#facts")).to_contain_text("2 left to review")
    page.keyboard.press("u")
    expect(page.locator("#notice")).to_have_text("There is no decision to revoke")
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
    click(page, "#accept")
    page.keyboard.press("Escape")
    expect(page.locator("#facts")).to_contain_text("1 left to review")
    expect(page.locator(f".card[data-row='{row}'] .line")).to_contain_text("grade 3")
    click(page, "#apply", "api/apply")
    ((_, _, _, decision, _),) = read_decisions(run_folder / "review.csv")
    told = decision.state, decision.reader, decision.grade, decision.note
    assert told == ("accepted", "A. Reader", "3", "=osteophytes, 0")
