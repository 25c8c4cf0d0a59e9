"""HTTP server of the pages: it listens on this machine only, and checks every request first.

Also how both pages read films and show them.
"""

import logging
import secrets
import threading
from dataclasses import dataclass, field
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import uvicorn
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from PIL import Image
from starlette.datastructures import MutableHeaders
from starlette.responses import (
    FileResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
)
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kneematch.connections import HOST, TRUSTED_SITES, http_server
from kneematch.errors import KneematchError
from kneematch.films.pictures import encode, to_grey8
from kneematch.films.radiograph import Radiograph
from kneematch.films.read import read_isolated

COOKIE: Final = "kneematch"
STATIC: Final = Path(__file__).parent / "static"
SHUTDOWN_S: Final = 2  # for responses under way when the user presses Ctrl-C
HOST_NAMES: Final = (HOST, "localhost")  # accepted in the Host header
MAX_BODY_BYTES: Final = 64 * 1024  # a request body is a few boxes
CACHED_FILMS: Final = 3  # in memory, each up to 50 MB
MAX_SIDE_PX: Final = 5000  # larger films are shown smaller
FILM_QUALITY: Final = 92  # JPEG quality at which compression errors are below a film's noise
SECURITY_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

logger = logging.getLogger("kneematch")


@dataclass(frozen=True, slots=True)
class Credentials:
    """The port of a page, and what opens it: tokens that work once, and a cookie after that.

    A token may be seen in the command line of a browser, but is worthless once it was used. The
    cookie has a random path: browsers send cookies to all ports of a host, but no other server on
    this machine knows the path. (The prefix `__Host-` would need https, and excludes paths.)
    """

    port: int
    secret: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    path: str = field(default_factory=lambda: f"/{secrets.token_urlsafe(16)}/", repr=False)
    _tokens: set[str] = field(default_factory=set, repr=False)  # those that were not used yet

    def new_url(self) -> str:
        """Return an address for the user, with a token of its own, that works once."""
        token = secrets.token_urlsafe(32)
        self._tokens.add(token)
        return f"http://{HOST}:{self.port}/?token={token}"

    @property
    def cookie(self) -> str:
        """Name and value of the cookie."""
        return f"{COOKIE}={self.secret}"

    def match(self, request: Request) -> bool:
        """Return whether a request is for the page and has the cookie."""
        given = request.cookies.get(COOKIE, "").encode()
        in_page = request.scope["path"].startswith(self.path)
        return secrets.compare_digest(given, self.secret.encode()) and in_page

    def exchange(self, request: Request) -> bool:
        """Return whether a request has a token that was not used before; from now on it was."""
        token = request.query_params.get("token", "")
        opens = request.method == "GET" and request.scope["path"] == "/" and token in self._tokens
        self._tokens.difference_update({token} if opens else ())
        return opens


@dataclass(frozen=True, slots=True)
class AuthMiddleware:
    """ASGI middleware that passes on only requests with the cookie from the application's pages."""

    app: ASGIApp
    credentials: Credentials

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it and log the reason."""
        if scope["type"] != "http":
            return
        request = Request(scope)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(SECURITY_HEADERS)
                headers["Cache-Control"] = "no-store"
            await send(message)

        own, answer = self.credentials, self.app
        if refusal := _refusal(request, own):
            status, reason = refusal
            _log_refusal(request, status, reason)
            answer = PlainTextResponse(reason, status)
        elif not own.match(request):  # it has a token
            cookie = f"{own.cookie}; Path={own.path}; HttpOnly; SameSite=Strict"
            answer = RedirectResponse(own.path, HTTPStatus.SEE_OTHER, {"Set-Cookie": cookie})
        inside = "/" + scope["path"].removeprefix(own.path)
        await answer({**scope, "path": inside}, receive, send_with_headers)


def _log_refusal(request: Request, status: int, reason: str) -> None:
    path = request.scope["path"]
    logger.warning("%s %r refused with %d: %s", request.method, path, status, reason)


def _refusal(request: Request, credentials: Credentials) -> tuple[int, str] | None:
    """Return the status and the reason for refusing a request, or None to answer it."""
    headers, path = request.headers, request.scope["path"]
    host, origin = headers.get("host", ""), headers.get("origin")
    writes = request.method not in ("GET", "HEAD")
    forbidden = HTTPStatus.FORBIDDEN
    if host not in [f"{name}:{credentials.port}" for name in HOST_NAMES]:
        return forbidden, "The request is for another host."
    if (origin is None and writes) or origin not in (None, f"http://{host}"):
        return forbidden, "The request comes from another page."
    if ".." in path or "\\" in path or "\0" in path:
        return forbidden, "The path leaves the page's folder."
    if headers.get("sec-fetch-site", "none") not in TRUSTED_SITES:
        return forbidden, "The request comes from another site."
    if not (credentials.match(request) or credentials.exchange(request)):
        return forbidden, "The token is missing or was used. Give the command again."
    length = headers.get("content-length", "")
    if writes and not (length.isdecimal() and int(length) <= MAX_BODY_BYTES):
        return HTTPStatus.UNPROCESSABLE_ENTITY, f"A body has at most {MAX_BODY_BYTES} bytes."
    return None


def page_app(page: str) -> FastAPI:
    """Return an app that serves one HTML page and the static files; routes are added to it."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.mount("/static", StaticFiles(directory=STATIC))

    @app.get("/")
    def index() -> Response:
        return FileResponse(STATIC / page)

    @app.exception_handler(OSError)
    async def cannot_write(request: Request, error: OSError) -> Response:
        reason = f"It cannot be written: {error.strerror}. Make room, and try again."
        _log_refusal(request, HTTPStatus.INSUFFICIENT_STORAGE, reason)
        return JSONResponse({"problem": reason}, HTTPStatus.INSUFFICIENT_STORAGE)

    @app.exception_handler(RequestValidationError)
    @app.exception_handler(KneematchError)
    async def refuse(request: Request, error: Exception) -> Response:
        reason, status = str(error), HTTPStatus.UNPROCESSABLE_ENTITY
        if isinstance(error, RequestValidationError):
            places = {".".join(map(str, problem["loc"])) for problem in error.errors()}
            reason = f"The request has unexpected values: {', '.join(sorted(places))}."
        _log_refusal(request, status, reason)
        return JSONResponse({"problem": reason}, status)

    return app


def make_server(app: ASGIApp, credentials: Credentials) -> uvicorn.Server:
    """Return the server of an app, which sees only requests that have the credentials."""
    return http_server(AuthMiddleware(app, credentials), SHUTDOWN_S)


_read = lru_cache(CACHED_FILMS)(read_isolated)
_reading = threading.Lock()


def read_film(path: Path) -> Radiograph:
    """Return a film, perhaps from the cache; one thread reads, and the others wait for it."""
    with _reading:
        return _read(path)


class Window(NamedTuple):
    """Parameters of a request: what is black and white, as shares of a film's usual window."""

    low: Annotated[float, Query(ge=-20, le=20)] = 0.0
    high: Annotated[float, Query(ge=-20, le=20)] = 1.0


def film_jpeg(film: Radiograph, window: tuple[float, float] = (0.0, 1.0)) -> bytes:
    """Return the film as a JPEG file in 8-bit grey."""
    image = Image.fromarray(to_grey8(film.pixels, window))
    if max(image.size) > MAX_SIDE_PX:
        image.thumbnail((MAX_SIDE_PX, MAX_SIDE_PX), Image.Resampling.BOX)
    return encode(image, "jpeg", quality=FILM_QUALITY)
