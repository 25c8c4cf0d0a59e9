"""Requests to a page: token, Host, Origin, paths and sizes; each refusal is a line in the log."""

import http.client
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from kneematch.errors import SettingsError
from kneematch.web.annotate import annotate_app
from kneematch.web.server import MAX_BODY_BYTES, SECURITY_HEADERS, STATIC, Credentials, open_port

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
    """Send a request with the page's own headers, or those given instead; "" leaves one out."""
    own = f"127.0.0.1:{credentials.port}"
    usual = {
        "Host": own,
        "Cookie": f"{credentials.cookie_name}={credentials.token}",
        "Origin": f"http://{own}",
    }
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


def test_auth_accepts_the_url_and_sets_a_cookie(credentials: Credentials) -> None:
    status, page, headers = request(
        credentials, "GET", f"/?token={credentials.token}", Cookie="", Origin=""
    )
    assert status == 200
    assert b"kneematch" in page
    cookie = headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    for name, value in SECURITY_HEADERS.items():
        assert headers[name.lower()] == value
    assert headers["cache-control"] == "no-store"


def test_auth_accepts_the_cookie_and_does_not_set_it_again(credentials: Credentials) -> None:
    status, body, headers = request(credentials, "GET", "/api/start", Origin="")
    assert status == 200
    assert json.loads(body)["film"] == "film-0.dcm"
    assert "set-cookie" not in headers


@pytest.mark.parametrize("path", ["/", "/?token=wrong", "/api/start", "/static/style.css"])
@pytest.mark.parametrize("cookie", ["", "wrong"])
def test_auth_refuses_requests_without_the_token(
    credentials: Credentials, path: str, cookie: str
) -> None:
    cookie = f"{credentials.cookie_name}=wrong" if cookie == "wrong" else cookie
    status, body, headers = request(credentials, "GET", path, Cookie=cookie)
    assert status == 403
    assert b"token" in body
    assert "set-cookie" not in headers


def test_auth_refuses_the_token_in_other_addresses_than_the_page(credentials: Credentials) -> None:
    assert request(credentials, "GET", f"/api/start?token={credentials.token}", Cookie="")[0] == 403


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1", "127.0.0.1:1", "192.168.0.7:PORT", "evil.example:PORT", ""],
)
def test_auth_refuses_other_hosts(credentials: Credentials, host: str) -> None:
    host = host.replace("PORT", str(credentials.port))
    for path in ("/api/start", f"/?token={credentials.token}"):
        status, _, _ = request(credentials, "GET", path, Host=host, Origin=f"http://{host}")
        assert status in (400, 403)


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "https://127.0.0.1:PORT", "http://localhost:PORT"]
)
def test_auth_refuses_other_origins(credentials: Credentials, origin: str) -> None:
    origin = origin.replace("PORT", str(credentials.port))
    assert posted(credentials, "/api/check", DRAWING, Origin=origin) == 403
    assert request(credentials, "GET", "/film.jpg", Origin=origin)[0] == 403


def test_auth_refuses_a_post_without_origin(credentials: Credentials) -> None:
    assert posted(credentials, "/api/check", DRAWING, Origin="") == 403
    assert posted(credentials, "/api/check", DRAWING) == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_auth_refuses_what_another_site_embeds(credentials: Credentials, site: str) -> None:
    assert request(credentials, "GET", "/film.jpg", Origin="", Sec_Fetch_Site=site)[0] == 403


@pytest.mark.parametrize(
    "path",
    [
        *("/static/../server.py", "/static/%2e%2e/server.py", "/static/..%2fserver.py"),
        *("/static/..%5cserver.py", "/static/%00", "/../../etc/passwd"),
    ],
)
def test_auth_refuses_paths_that_leave_the_folder(credentials: Credentials, path: str) -> None:
    assert request(credentials, "GET", path)[0] == 403


@pytest.mark.parametrize(
    "path", ["/static//etc/passwd", "/static/nothing.js", "/etc/passwd", "/docs", "/openapi.json"]
)
def test_page_app_serves_no_other_paths(credentials: Credentials, path: str) -> None:
    assert request(credentials, "GET", path)[0] == 404


def test_auth_refuses_large_bodies_and_those_of_unknown_size(credentials: Credentials) -> None:
    large = b" " * (MAX_BODY_BYTES + 1)
    assert request(credentials, "POST", "/api/check", Content_Length=str(len(large)))[0] == 422
    chunked = {"Content_Length": "", "Transfer_Encoding": "chunked"}
    assert request(credentials, "POST", "/api/check", **chunked)[0] == 422


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
def test_drawing_is_refused_if_malformed(
    credentials: Credentials, folder: Path, content: object
) -> None:
    for path in ("/api/check", "/api/preview", "/api/save"):
        assert posted(credentials, path, content) == 422
    assert list(folder.iterdir()) == []


def test_drawing_is_refused_if_a_number_is_nan(credentials: Credentials) -> None:
    body = json.dumps({**DRAWING, "fine": [1, 2, float("nan"), 4]}).encode()
    assert request(credentials, "POST", "/api/check", body)[0] == 422


def test_save_refuses_an_invalid_template(credentials: Credentials, folder: Path) -> None:
    assert posted(credentials, "/api/save", {**DRAWING, "red": [0, 0, 40, 40]}) == 422
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
    assert [record.args[2] for record in caplog.records if isinstance(record.args, tuple)] == [
        403,
        422,
    ]
    assert credentials.token not in caplog.text


def test_open_port_listens_on_this_machine_only() -> None:
    with open_port() as listening:
        assert listening.getsockname()[0] == "127.0.0.1"
        with pytest.raises(SettingsError, match="cannot be used"):
            open_port(listening.getsockname()[1])


def test_credentials_have_long_tokens_that_differ() -> None:
    one, other = Credentials(8000), Credentials(8000)
    assert one.token != other.token
    assert len(one.token) >= 43
    assert one.token not in repr(one)


def test_static_files_load_nothing_from_elsewhere() -> None:
    for path in STATIC.glob("*.*"):
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in text, path
        assert "https:" not in text, path
