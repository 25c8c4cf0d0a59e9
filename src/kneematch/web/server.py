"""HTTP server of the pages, which listens on this machine only."""

import logging
import socket
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Final

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.staticfiles import StaticFiles

from kneematch.errors import KneematchError, SettingsError
from kneematch.web.auth import HOST, UNPROCESSABLE

STATIC: Final = Path(str(files("kneematch.web"))) / "static"
ANY_PORT: Final = 0
SHUTDOWN_S: Final = 2  # for responses under way when the user presses Ctrl-C

log = logging.getLogger("kneematch")


def open_port(port: int = ANY_PORT) -> socket.socket:
    """Return a listening socket that other machines cannot reach.

    Raises:
        SettingsError: The port is taken or out of range.
    """
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
        listening.listen()  # so that a browser that connects before the app runs waits for it
    except (OSError, OverflowError) as error:
        listening.close()
        raise SettingsError(
            f"port {port}: cannot be used ({error}); expected a free one; choose another, or none"
        ) from error
    return listening


def page_app(page: str) -> FastAPI:
    """Return an app that serves one HTML page and the static files; routes are added to it."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.mount("/static", StaticFiles(directory=STATIC))

    @app.get("/")
    def index() -> Response:
        return FileResponse(STATIC / page)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        places = {".".join(map(str, problem["loc"])) for problem in error.errors()}
        return _refuse(request, f"unexpected {', '.join(sorted(places))}")

    @app.exception_handler(KneematchError)
    async def refused(request: Request, error: KneematchError) -> Response:
        return _refuse(request, str(error))

    return app


def serve(app: Callable[..., object], listening: socket.socket) -> None:
    """Answer requests until Ctrl-C, without complaints about requests that it cuts off."""
    server = make_server(app)
    uvicorn_log = logging.getLogger("uvicorn.error")

    def before_shutdown(record: logging.LogRecord) -> bool:
        return not server.should_exit

    uvicorn_log.addFilter(before_shutdown)
    try:
        server.run(sockets=[listening])
    finally:
        uvicorn_log.removeFilter(before_shutdown)


def make_server(app: Callable[..., object]) -> uvicorn.Server:
    """Return the server of an app."""
    return uvicorn.Server(
        uvicorn.Config(
            app,
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


def _refuse(request: Request, reason: str) -> Response:
    status = UNPROCESSABLE
    log.warning("%s %r refused with %d: %s", request.method, request.url.path, status, reason)
    return JSONResponse({"problem": reason}, status)
