"""HTTP server of the pages: it listens on this machine only, and checks every request first."""

import logging
import os
import secrets
import socket
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Final

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import MutableHeaders
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kneematch.errors import KneematchError, SettingsError

STATIC: Final = Path(__file__).parent / "static"
SHUTDOWN_S: Final = 2  # for responses under way when the user presses Ctrl-C
HOST: Final = "127.0.0.1"
HOST_NAMES: Final = (HOST, "localhost")  # accepted in the Host header
MAX_BODY_BYTES: Final = 64 * 1024  # a request body is a few boxes
# Sec-Fetch-Site of requests from the page itself, and of addresses that the user typed.
TRUSTED_SITES: Final = ("same-origin", "none")
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
    """The port of a page and the secret token that opens it."""

    port: int
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)

    @property
    def url(self) -> str:
        """Address for the user; the page removes the token from it, and a cookie keeps it."""
        return f"http://{HOST}:{self.port}/?token={self.token}"

    @property
    def cookie_name(self) -> str:
        """Name with the port in it, since browsers share cookies between ports."""
        return f"kneematch-{self.port}"

    def match(self, given: str) -> bool:
        """Compare a text with the token in constant time."""
        return secrets.compare_digest(given.encode(), self.token.encode())


@dataclass(frozen=True, slots=True)
class AuthMiddleware:
    """ASGI middleware that passes on only requests with the token from the application's pages."""

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
                if _is_first_request(request, self.credentials):
                    cookie = f"{self.credentials.cookie_name}={self.credentials.token}"
                    headers.append("Set-Cookie", f"{cookie}; Path=/; HttpOnly; SameSite=Strict")
            await send(message)

        refusal = _refusal(request, self.credentials)
        if refusal is None:
            await self.app(scope, receive, send_with_headers)
            return
        status, reason = refusal
        _log_refusal(request, status, reason)
        await PlainTextResponse(reason, status, SECURITY_HEADERS)(scope, receive, send)


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
    if _is_first_request(request, credentials):
        return None
    if not credentials.match(request.cookies.get(credentials.cookie_name, "")):
        return forbidden, "The token is missing. Open the address that kneematch has printed."
    if headers.get("sec-fetch-site", "none") not in TRUSTED_SITES:
        return forbidden, "The request comes from another site."
    length = headers.get("content-length", "")
    if writes and not (length.isdecimal() and int(length) <= MAX_BODY_BYTES):
        return HTTPStatus.UNPROCESSABLE_ENTITY, f"A body has at most {MAX_BODY_BYTES} bytes."
    return None


def _is_first_request(request: Request, credentials: Credentials) -> bool:
    """Return whether this is a request for the page itself with the token in its address."""
    for_page = request.method == "GET" and request.scope["path"] == "/"
    return for_page and credentials.match(request.query_params.get("token", ""))


def open_port(port: int = 0) -> socket.socket:
    """Return a listening socket that other machines cannot reach; port 0 chooses a free one.

    Raises:
        SettingsError: the port is taken.
    """
    try:  # it listens at once, so that a browser that connects before the app runs waits for it
        return socket.create_server((HOST, port))
    except OSError as error:
        why = os.strerror(error.errno or 0)  # without the address, which its own text repeats
        raise SettingsError(f"Port {port} cannot be used: {why}. Choose another one.") from error


def page_app(page: str) -> FastAPI:
    """Return an app that serves one HTML page and the static files; routes are added to it."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.mount("/static", StaticFiles(directory=STATIC))

    @app.get("/")
    def index() -> Response:
        return FileResponse(STATIC / page)

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


def serve(app: ASGIApp, credentials: Credentials, listening: socket.socket) -> None:
    """Answer requests until Ctrl-C, without complaints about requests that it cuts off."""
    server = make_server(app, credentials)
    uvicorn_log = logging.getLogger("uvicorn.error")

    def before_shutdown(record: logging.LogRecord) -> bool:
        return not server.should_exit

    uvicorn_log.addFilter(before_shutdown)
    server.run(sockets=[listening])


def make_server(app: ASGIApp, credentials: Credentials) -> uvicorn.Server:
    """Return the server of an app, which sees only requests that have the credentials."""
    return uvicorn.Server(
        uvicorn.Config(
            AuthMiddleware(app, credentials),
            http="h11",
            ws="none",
            lifespan="off",
            log_level="warning",
            access_log=False,  # addresses hold the token
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=SHUTDOWN_S,
        )
    )
