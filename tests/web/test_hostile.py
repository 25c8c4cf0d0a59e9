"""Names that are markup, connections that never finish, links that lead out, and two tabs."""

import http.client
import json
import socket
import sys
import urllib.request
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from kneematch import connections
from kneematch.errors import SettingsError
from kneematch.run.database import Run
from kneematch.web.annotate import annotate_app
from kneematch.web.review import ReviewSession, review_app
from pages import Open, Serve

MARKUP = "<img src=x onerror=window.hacked=1>"
DECIDE = """row => fetch('api/decide', {
    method: 'POST', headers: {'Content-Type': 'application/json'},
    body: JSON.stringify({row: row, state: 'accepted'})
}).then(answer => answer.status)"""


def assert_harmless(page: Page) -> None:
    """The markup is shown as text: it is no element, and nothing has run."""
    page.wait_for_function("() => [...document.images].every((image) => image.complete)")
    assert page.evaluate("window.hacked") is None
    assert page.locator("img[src=x]").count() == 0


def rename(out: Path, path: Path) -> None:
    """Give the first film of a run, one of its landmarks and a reason hostile names."""
    with Run(out) as run:
        film = run.record(1)
        run.sql.execute("UPDATE films SET path = ? WHERE id = 1", (str(path),))
        hostile = {"needs_review": True, "reasons": (MARKUP,), "landmarks": {MARKUP: (9.0, 9.0)}}
        knees = tuple(replace(knee, **hostile) for knee in film.found)
        run.save([replace(film, found=knees, knees=knees)])


def test_review_shows_hostile_names_as_text(
    films: list[Path], run_folder: Path, tmp_path: Path, open_review: Open
) -> None:
    hostile = tmp_path / f"{MARKUP}.dcm"
    hostile.symlink_to(films[0])
    rename(run_folder, hostile)
    page = open_review(run_folder)
    expect(page.locator("body")).to_contain_text(MARKUP)
    assert_harmless(page)
    page.keyboard.press("Enter")  # opens the first knee
    page.wait_for_selector("#editor[data-ready]")
    assert_harmless(page)


@pytest.mark.usefixtures("model_already_run")
def test_annotate_shows_a_hostile_name_as_text(
    films: list[Path], tmp_path: Path, serve: Serve, open_page: Open
) -> None:
    hostile = tmp_path / f"{MARKUP}.dcm"
    hostile.symlink_to(films[0])
    out = tmp_path / f"{MARKUP}.json"
    page = open_page(serve(annotate_app(hostile, out, [])))
    assert_harmless(page)
    assert MARKUP in page.content().replace("&lt;", "<").replace("&gt;", ">")


def test_page_answers_beside_connections_that_never_finish(
    run_folder: Path, serve: Serve, open_page: Open
) -> None:
    credentials = serve(review_app(ReviewSession(run_folder, Path())))
    slow = [socket.create_connection(("127.0.0.1", credentials.port)) for _ in range(60)]
    try:
        for number, connection in enumerate(slow):
            connection.sendall(b"GET /api/start HTTP/1.1\r\nHost: x"[: 5 + number % 20])
        open_page(credentials)
    finally:
        for connection in slow:
            connection.close()


def test_review_keeps_the_decisions_of_two_tabs(
    run_folder: Path, serve: Serve, open_page: Open
) -> None:
    credentials = serve(review_app(ReviewSession(run_folder, Path())))
    tabs = [open_page(credentials), open_page(credentials)]
    for row in range(1, 5):
        assert tabs[row % 2].evaluate(DECIDE, row) == 200
    with Run(run_folder, exclusive=False) as run:
        assert [decision.state for _, _, _, decision, _ in run.decisions()] == ["accepted"] * 4


@pytest.mark.parametrize("name", ["run.sqlite", "thumbnails.sqlite"])
def test_review_session_refuses_links(run_folder: Path, tmp_path: Path, name: str) -> None:
    (run_folder / name).rename(tmp_path / "elsewhere")
    (run_folder / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SettingsError, match="is not a regular file"):
        ReviewSession(run_folder, Path())


def test_page_closes_connections_that_ask_nothing_and_does_not_fill_the_log(
    run_folder: Path,
    serve: Serve,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(connections, "IDLE_S", 1)
    credentials = serve(review_app(ReviewSession(run_folder, Path())))
    place = "127.0.0.1", credentials.port
    idle = [socket.create_connection(place) for _ in range(400)]
    for connection in idle:
        connection.settimeout(60)
        with connection, suppress(ConnectionResetError):
            assert connection.recv(1) == b""  # the server has closed it
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    assert b"review.js" in browser.open(credentials.new_url(), timeout=60).read()
    assert capfd.readouterr().err == ""


@pytest.mark.skipif(sys.platform != "linux", reason="limits are those of Linux")
def test_review_answers_after_the_commit_when_the_disk_is_full(
    run_folder: Path, serve: Serve
) -> None:
    """What was answered with an error never appears, and what was not is there."""
    import resource

    credentials = serve(review_app(ReviewSession(run_folder, Path())))
    place = "127.0.0.1", credentials.port
    own = {"Origin": "http://{}:{}".format(*place), "Cookie": credentials.cookie}
    own["Content-Type"] = "application/json"
    connection = http.client.HTTPConnection(*place, timeout=60)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = (run_folder / "run.sqlite").stat().st_size
    statuses = []
    try:
        for number in range(200):
            if number == 20:
                resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
            if number == 150:  # there is room again
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            request = {"row": 1 + number % 6, "state": ("accepted", "rejected")[number % 2]}
            address = f"{credentials.path}api/decide"
            connection.request("POST", address, json.dumps(request), own)
            answer = connection.getresponse()
            answer.read()
            statuses.append((answer.status, request["state"]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        connection.close()
    assert {status for status, _ in statuses} == {200, 507}
    with Run(run_folder, exclusive=False) as run:
        kept = [decision.state for _, _, _, decision, _ in run.decisions()]
    assert kept == [state for status, state in statuses if status == 200]
