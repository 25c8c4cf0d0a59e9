"""Who is let in: token, Host, Origin, paths and sizes, each refused with a line in the log."""

import http.client
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from kneematch.errors import SettingsError
from kneematch.web.annotate import annotate_app
from kneematch.web.auth import HEADERS, MOST_BYTES, Door
from kneematch.web.paths import STATIC, within
from kneematch.web.serve import door_of, open_port

BOX = [300.0, 200.0, 420.0, 320.0]
DRAWING = {"fine": BOX, "red": [305, 240, 330, 270], "green": [390, 240, 415, 270]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("out")


@pytest.fixture(scope="module")
def door(
    films: list[Path], folder: Path, served: Callable[..., AbstractContextManager[Door]]
) -> Iterator[Door]:
    with served(lambda door: annotate_app(films[0], folder / "template.json", [], door)) as door:
        yield door


def request(
    door: Door, method: str, path: str, body: bytes = b"", **headers: str
) -> tuple[int, bytes, dict[str, str]]:
    """Exactly these headers; the usual ones where none is given."""
    own = f"127.0.0.1:{door.port}"
    usual = {"Host": own, "Cookie": f"{door.cookie}={door.token}", "Origin": f"http://{own}"}
    if method == "POST":
        usual |= {"Content-Length": str(len(body)), "Content-Type": "application/json"}
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    connection = http.client.HTTPConnection("127.0.0.1", door.port, timeout=30)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    for name, value in (usual | given).items():
        if value:
            connection.putheader(name, value)
    connection.endheaders(body or None)
    answer = connection.getresponse()
    told = answer.status, answer.read(), dict(answer.getheaders())
    connection.close()
    return told


def posted(door: Door, path: str, content: object, **headers: str) -> int:
    return request(door, "POST", path, json.dumps(content).encode(), **headers)[0]


def test_the_address_opens_the_page_and_leaves_a_cookie(door: Door) -> None:
    status, page, headers = request(door, "GET", f"/?token={door.token}", Cookie="", Origin="")
    assert status == 200
    assert b"kneematch" in page
    cookie = headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    for name, value in HEADERS.items():
        assert headers[name.lower()] == value
    assert headers["cache-control"] == "no-store"


def test_the_cookie_alone_does_and_is_not_told_again(door: Door) -> None:
    status, told, headers = request(door, "GET", "/api/start", Origin="")
    assert status == 200
    assert json.loads(told)["film"] == "film-0.dcm"
    assert "set-cookie" not in headers


@pytest.mark.parametrize(
    "path",
    ["/", "/?token=", "/?token=wrong", "/api/start", "/film.jpg", "/static/style.css", "/nowhere"],
)
@pytest.mark.parametrize("cookie", ["", "kneematch=1", "wrong"])
def test_without_the_token_nothing_is_shown(door: Door, path: str, cookie: str) -> None:
    cookie = f"{door.cookie}=wrong" if cookie == "wrong" else cookie
    status, told, headers = request(door, "GET", path, Cookie=cookie)
    assert status == 403
    assert b"token" in told
    assert "set-cookie" not in headers


def test_the_token_in_another_address_than_the_pages_does_not_count(door: Door) -> None:
    assert request(door, "GET", f"/api/start?token={door.token}", Cookie="")[0] == 403


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1", "127.0.0.1:1", "192.168.0.7:PORT", "evil.example:PORT", ""],
)
def test_another_host_is_refused_token_or_not(door: Door, host: str) -> None:
    host = host.replace("PORT", str(door.port))
    for path in ("/api/start", f"/?token={door.token}"):
        assert request(door, "GET", path, Host=host, Origin=f"http://{host}")[0] in (400, 403)


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "null",
        "https://127.0.0.1:PORT",
        "http://127.0.0.1:1",
        "http://localhost:PORT",
    ],
)
def test_another_origin_is_refused(door: Door, origin: str) -> None:
    origin = origin.replace("PORT", str(door.port))
    assert posted(door, "/api/check", DRAWING, Origin=origin) == 403
    assert request(door, "GET", "/film.jpg", Origin=origin)[0] == 403


def test_a_change_without_an_origin_is_refused(door: Door) -> None:
    assert posted(door, "/api/check", DRAWING, Origin="") == 403
    assert posted(door, "/api/check", DRAWING) == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_what_another_site_embeds_is_refused(door: Door, site: str) -> None:
    assert request(door, "GET", "/film.jpg", Origin="", Sec_Fetch_Site=site)[0] == 403


@pytest.mark.parametrize(
    "path",
    [
        "/static/../door.py",
        "/static/%2e%2e/door.py",
        "/static/..%2fdoor.py",
        "/static/..%5cdoor.py",
        "/static/vendor/../../../../../../etc/passwd",
        "/static/%00",
        "/../../etc/passwd",
    ],
)
def test_paths_that_leave_the_folder_are_refused(door: Door, path: str) -> None:
    assert request(door, "GET", path)[0] == 403


@pytest.mark.parametrize(
    "path",
    [
        "/static//etc/passwd",
        "/static/nothing.js",
        "/etc/passwd",
        "/docs",
        "/openapi.json",
        "/static/",
    ],
)
def test_other_paths_are_not_there(door: Door, path: str) -> None:
    assert request(door, "GET", path)[0] == 404


def test_large_and_unmeasured_bodies_are_refused(door: Door) -> None:
    large = b" " * (MOST_BYTES + 1)
    assert request(door, "POST", "/api/check", Content_Length=str(len(large)))[0] == 422
    assert (
        request(door, "POST", "/api/check", Content_Length="", Transfer_Encoding="chunked")[0]
        == 422
    )


@pytest.mark.parametrize(
    "content",
    [
        [],
        {},
        {**DRAWING, "fine": [1, 2, 3]},
        {**DRAWING, "fine": [1, 2, 3, 1e9]},
        {**DRAWING, "fine": ["../../etc", 2, 3, 4]},
        {**DRAWING, "landmarks": {"../name": [1, 2]}},
        {**DRAWING, "landmarks": {"x" * 41: [1, 2]}},
        {**DRAWING, "landmarks": {f"p{k}": [1, 2] for k in range(51)}},
    ],
)
def test_what_is_no_drawing_is_refused(door: Door, folder: Path, content: object) -> None:
    for path in ("/api/check", "/api/try", "/api/save"):
        assert posted(door, path, content) == 422
    assert list(folder.iterdir()) == []


def test_numbers_that_are_none_are_refused(door: Door) -> None:
    body = json.dumps({**DRAWING, "fine": [1, 2, float("nan"), 4]}).encode()
    assert request(door, "POST", "/api/check", body)[0] == 422


def test_a_bad_template_is_not_saved(door: Door, folder: Path) -> None:
    assert posted(door, "/api/save", {**DRAWING, "red": [0, 0, 40, 40]}) == 422
    assert list(folder.iterdir()) == []


def test_a_path_from_the_page_is_not_written_to(door: Door, folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "stolen.json"
    drawing = {**DRAWING, "film": str(target), "template": str(target), "path": str(target)}
    assert posted(door, f"/api/save?template={target}&path={target}", drawing) in (200, 422)
    assert not target.exists()
    assert {path.name for path in folder.iterdir()} <= {"template.json"}
    (folder / "template.json").unlink(missing_ok=True)


def test_a_refusal_is_a_line_in_the_log(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "kneematch.web"):
        request(door, "GET", "/api/start", Host="evil.example")
        posted(door, "/api/check", {"fine\n": 1})
    assert [record.getMessage().count("\n") for record in caplog.records] == [0, 0]
    assert [record.args[2] for record in caplog.records if isinstance(record.args, tuple)] == [
        403,
        422,
    ]
    assert door.token not in caplog.text


def test_only_this_machine_can_reach_the_port() -> None:
    with open_port() as own:
        assert own.getsockname()[0] == "127.0.0.1"
        with pytest.raises(SettingsError, match="expected a free one"):
            open_port(own.getsockname()[1])


def test_tokens_are_long_and_differ() -> None:
    with open_port() as own:
        one, other = door_of(own), door_of(own)
    assert one.token != other.token
    assert len(one.token) >= 43
    assert one.token not in repr(one)


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "outside.csv"
    inside.mkdir()
    (inside / "review.csv").symlink_to(outside)
    with pytest.raises(SettingsError, match="a link that leads out"):
        within(inside, "review.csv")
    assert within(inside, "other.csv") == inside / "other.csv"


def test_the_pages_load_nothing_from_elsewhere() -> None:
    for path in STATIC.glob("*.*"):
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in text, path
        assert "https:" not in text, path
