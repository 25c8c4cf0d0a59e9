"""Requests to a page: token, Host, Origin, paths and sizes; each refusal is a line in the log."""

import http.client
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from kneematch.web.annotate import annotate_app
from kneematch.web.server import COOKIE, MAX_BODY_BYTES, SECURITY_HEADERS, STATIC, Credentials

BOX = [300.0, 200.0, 420.0, 320.0]
DRAWING = {"fine": BOX, "red": [305, 240, 330, 270], "green": [390, 240, 415, 270]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("out")


@pytest.fixture(scope="module")
def credentials(
    films: list[Path], folder: Path, served: Callable[..., AbstractContextManager[Credentials]]
) -> Iterator[Credentials]:
    with served(annotate_app(films[0], folder / "template.json", [])) as credentials:
        yield credentials


def request(
    credentials: Credentials, method: str, path: str, body: bytes = b"", **headers: str
) -> tuple[int, bytes, dict[str, str]]:
    """Send a request with the page's own headers, or those given instead; "" leaves one out.

    Addresses are those inside the page, unless they begin with "//".
    """
    path = path[1:] if path.startswith("//") else credentials.path + path[1:]
    own = f"127.0.0.1:{credentials.port}"
    usual = {"Host": own, "Cookie": credentials.cookie, "Origin": f"http://{own}"}
    if method == "POST":
        usual |= {"Content-Length": str(len(body)), "Content-Type": "application/json"}
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    connection = http.client.HTTPConnection("127.0.0.1", credentials.port, timeout=120)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    for name, value in (usual | given).items():
        if value:
            connection.putheader(name, value)
    connection.endheaders(body or None)
    answer = connection.getresponse()
    result = answer.status, answer.read(), dict(answer.getheaders())
    connection.close()
    return result


def posted(credentials: Credentials, path: str, content: object, **headers: str) -> int:
    return request(credentials, "POST", path, json.dumps(content).encode(), **headers)[0]


def test_auth_exchanges_a_token_once_for_a_cookie_of_its_own_path(credentials: Credentials) -> None:
    url = credentials.new_url()
    first = f"/{url.removeprefix(f'http://127.0.0.1:{credentials.port}')}"
    status, page, headers = request(credentials, "GET", first, Cookie="", Origin="")
    assert (status, page) == (303, b"")
    place, cookie = headers["location"], headers["set-cookie"]
    assert len(place) > 20  # nobody can guess it
    assert place == credentials.path
    assert cookie.endswith(f"; Path={place}; HttpOnly; SameSite=Strict")
    token = url.partition("token=")[2]
    assert token not in cookie + place
    for _ in range(2):  # it works once
        assert request(credentials, "GET", first, Cookie="", Origin="")[0] == 403
    name_and_value = cookie.partition(";")[0]
    assert request(credentials, "GET", f"/{place}", Cookie=name_and_value, Origin="")[0] == 200
    assert request(credentials, "GET", "//api/start", Cookie=name_and_value)[0] == 403
    for name, value in SECURITY_HEADERS.items():
        assert headers[name.lower()] == value
    assert headers["cache-control"] == "no-store"
    status, body, headers = request(credentials, "GET", "/api/start", Origin="")
    assert (status, json.loads(body)["film"]) == (200, "film-0.dcm")
    assert "set-cookie" not in headers  # it is not set again


def test_auth_refuses_requests_without_the_token(credentials: Credentials) -> None:
    token = credentials.new_url().partition("?")[2]  # the first address alone takes it
    inside = ("/", "/api/start", "/static/style.css", f"/?{token}", f"/api/start?{token}")
    for path in (*inside, "//", "//?token=wrong", "//?token=", f"//api/start?{token}"):
        for cookie in ("", f"{COOKIE}=wrong"):
            status, body, headers = request(credentials, "GET", path, Cookie=cookie)
            assert (status, b"token" in body, "set-cookie" in headers) == (403, True, False)


def test_auth_refuses_other_hosts(credentials: Credentials) -> None:
    port = credentials.port
    own = ("", "evil.example", "127.0.0.1", "127.0.0.1:1")
    for host in (*own, f"192.168.0.7:{port}", f"evil.example:{port}"):
        for path in ("/api/start", f"//?{credentials.new_url().partition('?')[2]}"):
            status, _, _ = request(credentials, "GET", path, Host=host, Origin=f"http://{host}")
            assert status in (400, 403), host


def test_auth_refuses_other_origins_and_a_post_without_one(credentials: Credentials) -> None:
    port = credentials.port
    near = f"https://127.0.0.1:{port}", f"http://localhost:{port}"
    for origin in ("http://evil.example", "null", *near):
        assert posted(credentials, "/api/check", DRAWING, Origin=origin) == 403
        assert request(credentials, "GET", "/film.jpg", Origin=origin)[0] == 403
    for site in ("cross-site", "same-site"):  # that embeds the page
        assert request(credentials, "GET", "/film.jpg", Origin="", Sec_Fetch_Site=site)[0] == 403
    assert posted(credentials, "/api/check", DRAWING, Origin="") == 403
    assert posted(credentials, "/api/check", DRAWING) == 200


def test_page_app_serves_no_other_paths(credentials: Credentials) -> None:
    outside = ["../server.py", "%2e%2e/server.py", "..%2fserver.py", "..%5cserver.py", "%00"]
    for path in ("/../../etc/passwd", *(f"/static/{name}" for name in outside)):
        assert request(credentials, "GET", path)[0] == 403, path
    for path in ("/static//etc/passwd", "/static/nothing.js", "/docs", "/openapi.json"):
        assert request(credentials, "GET", path)[0] == 404, path


def test_auth_refuses_large_bodies_and_those_of_unknown_size(credentials: Credentials) -> None:
    large = b" " * (MAX_BODY_BYTES + 1)
    assert request(credentials, "POST", "/api/check", Content_Length=str(len(large)))[0] == 422
    chunked = {"Content_Length": "", "Transfer_Encoding": "chunked"}
    assert request(credentials, "POST", "/api/check", **chunked)[0] == 422


@pytest.mark.parametrize(
    "content",
    [
        [],
        {**DRAWING, "fine": [1, 2, 3]},
        {**DRAWING, "fine": [1, 2, 3, 1e9]},
        {**DRAWING, "fine": [1, 2, float("nan"), 4]},
        {**DRAWING, "landmarks": {"../name": [1, 2]}},
        {**DRAWING, "red": [0, 0, 40, 40]},
        {**DRAWING, "landmarks": {"x" * 41: [1, 2]}},
        {**DRAWING, "landmarks": {f"p{k}": [1, 2] for k in range(51)}},
    ],
)
def test_drawing_is_refused_if_it_is_no_template(
    credentials: Credentials, folder: Path, content: object
) -> None:
    for path in ("/api/preview", "/api/save"):
        assert posted(credentials, path, content) == 422
    assert list(folder.iterdir()) == []


def test_save_ignores_paths_in_the_request(
    credentials: Credentials, folder: Path, tmp_path: Path
) -> None:
    target = tmp_path / "stolen.json"
    drawing = {**DRAWING, "film": str(target), "template": str(target), "path": str(target)}
    assert posted(credentials, f"/api/save?template={target}&path={target}", drawing) in (200, 422)
    assert not target.exists()
    assert {path.name for path in folder.iterdir()} <= {"template.json"}
    (folder / "template.json").unlink(missing_ok=True)


def test_auth_logs_each_refusal_as_one_line(
    credentials: Credentials, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "kneematch"):
        request(credentials, "GET", "/api/start", Host="evil.example")
        posted(credentials, "/api/check", {"fine\n": 1})
    assert [record.getMessage().count("\n") for record in caplog.records] == [0, 0]
    statuses = [record.args[2] for record in caplog.records if isinstance(record.args, tuple)]
    assert statuses == [403, 422]
    assert credentials.secret not in caplog.text


def test_static_files_load_nothing_from_elsewhere() -> None:
    for path in STATIC.glob("*.*"):
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in text, path
        assert "https:" not in text, path
