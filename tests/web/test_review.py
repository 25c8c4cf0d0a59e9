"""Reviewing a run in the browser: what is decided there is exactly what the files hold."""

import csv
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from kneematch.web.auth import Door, Guard
from kneematch.web.review import open_run, review_app

Build = Callable[[Door], Guard]
Served = Callable[[Build], AbstractContextManager[Door]]
Open = Callable[..., Page]
Row = dict[str, str]

MISFITS: list[tuple[str, str, object]] = [
    ("GET", "api/rows?wanted=8", None),
    ("GET", "api/rows?wanted=-1", None),
    ("GET", "api/rows?wanted=" + ",".join(["1"] * 401), None),
    ("GET", "api/rows?wanted=../../etc/passwd", None),
    ("GET", "api/areas/8", None),
    ("GET", "api/order?sort=magic", None),
    ("GET", "api/order?low=nan", None),
    ("GET", "thumbnail/99/abc", None),
    ("GET", "film/-1", None),
    ("GET", "film/detections.csv", None),
    ("POST", "api/decide", {"row": 8, "what": "accepted"}),
    ("POST", "api/decide", {"row": 0, "what": "undone"}),
    ("POST", "api/decide", {"row": 0, "what": "corrected"}),
    ("POST", "api/decide", {"row": "../x", "what": "accepted"}),
    ("POST", "api/decide", {"row": 0, "what": "x" * 70_000}),
    ("POST", "api/loss/0", {"centre_x_px": 1e9, "centre_y_px": 1, "width_px": 9}),
]


@pytest.fixture
def door(run_folder: Path, serve: Callable[[Build], Door]) -> Door:
    run = open_run(run_folder, Path())
    return serve(lambda door: review_app(run, door))


@pytest.fixture
def page(door: Door, open_page: Open) -> Page:
    return ready(open_page(door))


def ready(page: Page) -> Page:
    page.wait_for_selector("body[data-ready]")
    return page


def table(path: Path) -> list[Row]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def decisions(folder: Path) -> list[tuple[str, str, str]]:
    lines = table(folder / "review.csv")
    return [(Path(line["film"]).name, line["side"], line["decision"]) for line in lines]


def named(row: Row) -> tuple[str, str]:
    return Path(row["film"]).name, row["side"]


def card(page: Page, place: int) -> str:
    """The row that is shown at a place."""
    cards = page.locator(".card[data-row]")
    expect(cards).to_have_count(8)
    places = cards.evaluate_all(
        "cards => cards.sort((a, b) => a.offsetTop - b.offsetTop || a.offsetLeft - b.offsetLeft)"
        ".map(card => card.dataset.row)"
    )
    return str(places[place])


def press(page: Page, key: str, answer: str = "api/decide") -> None:
    """A key, and the server's answer to it."""
    with page.expect_response(lambda told: answer in told.url and told.ok):
        page.keyboard.press(key)


def edit(page: Page) -> None:
    page.keyboard.press("Enter")
    page.wait_for_selector("#editor[data-ready]")


def on_screen(page: Page, x: float, y: float) -> tuple[float, float]:
    film = page.locator("#film")
    place = film.bounding_box()
    assert place is not None
    left, top, scale = (float(film.get_attribute(f"data-{k}") or 0) for k in ("x", "y", "scale"))
    return place["x"] + left + scale * x, place["y"] + top + scale * y


def drag(page: Page, start: tuple[float, float], end: tuple[float, float]) -> None:
    page.mouse.move(*on_screen(page, *start))
    page.mouse.down()
    for share in (0.3, 0.7, 1.0):
        point = (a + share * (b - a) for a, b in zip(start, end, strict=True))
        page.mouse.move(*on_screen(page, *point))
    page.mouse.up()


def export(page: Page) -> None:
    with page.expect_response(lambda told: "api/export" in told.url and told.ok):
        page.locator("#export").click()


def test_accept_reject_fix_reload_and_the_files_hold_exactly_that(
    run_folder: Path, finished_run: Path, served: Served, open_page: Open
) -> None:
    rows = table(finished_run / "detections.csv")
    run = open_run(run_folder, Path())
    with served(lambda door: review_app(run, door)) as door:
        page = ready(open_page(door))
        order = [int(card(page, place)) for place in range(8)]
        assert set(order[:2]) == {3, 6}
        press(page, "a")
        press(page, "x")
        fixed = rows[order[2]]
        edit(page)
        found_loss = page.locator("#loss-here")
        expect(found_loss).to_have_text(f"{float(fixed['loss']):.3f}")
        centre = float(fixed["centre_x_px"]), float(fixed["centre_y_px"])
        drag(page, centre, (centre[0] + 12, centre[1] - 8))
        expect(found_loss).not_to_have_text(f"{float(fixed['loss']):.3f}")
        press(page, "Enter")
        page.wait_for_selector(f"#editor[data-ready='{order[3]}']")
        page.keyboard.press("Escape")
        expect(page.locator(".card.corrected")).to_have_count(1)
        expected = [
            (*named(rows[order[0]]), "accepted"),
            (*named(rows[order[1]]), "rejected"),
            (*named(fixed), "corrected"),
        ]
        assert decisions(run_folder) == expected
        page.reload()
        ready(page)
        assert_shown(page, order)
    run.decisions.close()
    again = open_run(run_folder, Path())
    with served(lambda door: review_app(again, door)) as door:
        page = ready(open_page(door))
        assert_shown(page, order)
        export(page)
    again.decisions.close()
    assert decisions(run_folder) == expected
    assert_exported(table(run_folder / "detections.reviewed.csv"), rows, order, centre)
    assert (run_folder / "detections.csv").read_bytes() == (
        finished_run / "detections.csv"
    ).read_bytes()


def assert_shown(page: Page, order: list[int]) -> None:
    """Three cards are marked, and the fourth is where one goes on."""
    for row, state in zip(order, ("accepted", "rejected", "corrected"), strict=False):
        expect(page.locator(f".card.{state}")).to_have_attribute("data-row", str(row))
    expect(page.locator(".card.at")).to_have_attribute("data-row", str(order[3]))
    expect(page.locator("#facts")).to_contain_text("3 of 8 decided")


def assert_exported(
    reviewed: list[Row], rows: list[Row], order: list[int], centre: tuple[float, float]
) -> None:
    """All rows but the rejected one; the corrected one moved with its landmarks."""
    kept = [row for k, row in enumerate(rows) if k != order[1]]
    assert [named(row) for row in reviewed] == [named(row) for row in kept]
    for row, before in zip(reviewed, kept, strict=True):
        decision = row.pop("decision")
        if named(before) == named(rows[order[0]]):
            assert decision == "accepted"
        if named(before) != named(rows[order[2]]):
            assert row == before
            continue
        assert decision == "corrected"
        assert row["method"] == "review"
        assert row["energy"] == ""
        assert float(row["loss"]) > float(before["loss"])
        for name, shift in (("centre", (12, -8)), ("plateau_left", (12, -8))):
            for axis, by in zip("xy", shift, strict=True):
                column = f"{name}_{axis}_px"
                assert float(row[column]) == pytest.approx(float(before[column]) + by, abs=1)
        assert float(row["width_px"]) == pytest.approx(float(before["width_px"]), abs=0.01)
        assert float(row["x0_px"]) == pytest.approx(float(before["x0_px"]) + 12, abs=1)


def test_an_area_is_turned_and_resized_by_its_handles(page: Page, run_folder: Path) -> None:
    row = int(card(page, 0))
    before = table(run_folder / "detections.csv")[row]
    edit(page)
    xs, ys = ([float(before[f"{axis}{k}_px"]) for k in range(4)] for axis in "xy")
    x, y = max(zip(xs, ys, strict=True), key=lambda corner: sum(corner))
    drag(page, (x, y), (x + 15, y + 15))
    for key in ("]", "]", "Shift+ArrowLeft"):
        page.keyboard.press(key)
    press(page, "Enter")
    (line,) = table(run_folder / "review.csv")
    turned = float(line["rotation_deg"]) - float(before["rotation_deg"])
    assert turned == pytest.approx(0.5, abs=1e-3)
    assert 5 < float(line["width_px"]) - float(before["width_px"]) < 30


def test_undo_takes_back_one_decision_after_the_other(page: Page, run_folder: Path) -> None:
    for key in "axa":
        press(page, key)
    for count in (1, 2, 3):
        press(page, "u", "api/undo")
        undone = [what for _, _, what in decisions(run_folder)].count("undone")
        assert undone == count
    expect(page.locator("#facts")).to_contain_text("0 of 8 decided")
    expect(page.locator(".badge")).to_have_count(0)


def test_quick_keys_each_decide_the_next_knee(page: Page, run_folder: Path) -> None:
    order = [int(card(page, place)) for place in range(8)]
    with page.expect_response(lambda told: f'"row":{order[4]},' in str(told.request.post_data)):
        page.keyboard.type("axaxa")
    rows = table(run_folder / "detections.csv")
    wanted = ["accepted", "rejected", "accepted", "rejected", "accepted"]
    told = [(*named(rows[row]), what) for row, what in zip(order, wanted, strict=False)]
    assert decisions(run_folder) == told


def test_filters_ask_the_server(page: Page) -> None:
    page.locator("[name=reason]").select_option("high loss")
    expect(page.locator("#shown")).to_have_text("2 knees")
    page.locator("[name=reason]").select_option("")
    page.locator("[name=side]").select_option("left")
    expect(page.locator("#shown")).to_have_text("4 knees")
    page.locator("[name=film]").fill("film-10")
    expect(page.locator("#shown")).to_have_text("1 knees")
    page.locator("[name=film]").fill("nothing")
    expect(page.locator("#none")).to_be_visible()
    page.reload()
    ready(page)
    expect(page.locator("#none")).to_be_visible()


def test_pictures_are_kept_beside_the_run(page: Page, run_folder: Path) -> None:
    page.wait_for_load_state("networkidle")
    expect(page.locator(".card img")).to_have_count(8)
    cache = list((run_folder / "review-cache").iterdir())
    assert len(cache) == 8
    assert {path.suffix for path in cache} == {".jpg"}


def test_requests_that_fit_no_row_are_refused_and_write_nothing(
    door: Door, open_page: Open, run_folder: Path
) -> None:
    request = open_page(door).context.request
    own = f"http://127.0.0.1:{door.port}"
    headers = {"Content-Type": "application/json", "Origin": own}
    for method, path, content in MISFITS:
        body = None if content is None else json.dumps(content)
        answer = request.fetch(f"{own}/{path}", method=method, data=body, headers=headers)
        assert answer.status == 422, path
    assert table(run_folder / "review.csv") == []


def test_a_film_that_is_gone_is_told_on_its_card(
    run_folder: Path, serve: Callable[[Build], Door], open_page: Open
) -> None:
    path = run_folder / "detections.csv"
    path.write_text(path.read_text().replace("film-10.dcm", "gone.dcm"))
    run = open_run(run_folder, Path())
    page = ready(open_page(serve(lambda door: review_app(run, door)), allowed="404"))
    expect(page.locator(".card p")).to_have_count(2)
    assert "cannot be read" in page.locator(".card p").first.inner_text()
