"""HTTP server of the pages, which listens on this machine only."""

import logging
import os
import socket
from http import HTTPStatus
from pathlib import Path
from typing import Final

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from kneematch.errors import KneematchError, SettingsError
from kneematch.web.auth import HOST, AuthMiddleware, Credentials

STATIC: Final = Path(__file__).parent / "static"
SHUTDOWN_S: Final = 2  # for responses under way when the user presses Ctrl-C

log = logging.getLogger("kneematch")


def open_port(port: int = 0) -> socket.socket:
    """Return a listening socket that other machines cannot reach; port 0 chooses a free one.

    Raises:
        SettingsError: The port is taken.
    """
    try:  # it listens at once, so that a browser that connects before the app runs waits for it
        return socket.create_server((HOST, port))
    except OSError as error:
        why = os.strerror(error.errno or 0)  # without the address, which its own text repeats
        raise SettingsError(
            f"port {port}: cannot be used ({why}); expected a free one; choose another, or none"
        ) from error


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
            reason = f"unexpected {', '.join(sorted(places))}"
        log.warning("%s %r refused with %d: %s", request.method, request.url.path, status, reason)
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
