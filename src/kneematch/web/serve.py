"""An app on a port of this machine, which no other machine can reach."""

import logging
import socket
from collections.abc import Callable
from typing import Final

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.staticfiles import StaticFiles

from kneematch.errors import KneematchError, SettingsError
from kneematch.web.auth import HOST, REFUSED, Door
from kneematch.web.paths import STATIC

ANY_PORT: Final = 0
ENDING_S: Final = 2  # for answers under way when the user ends it

log = logging.getLogger("kneematch.web")


def open_port(port: int = ANY_PORT) -> socket.socket:
    """A socket on this machine alone.

    Raises:
        SettingsError: the port is taken.
    """
    own = socket.socket()
    own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        own.bind((HOST, port))
        own.listen()  # so that a browser that comes before the app waits for it
    except (OSError, OverflowError) as error:
        own.close()
        raise SettingsError(
            f"port {port}: cannot be used ({error}); expected a free one; choose another, or none"
        ) from error
    return own


def door_of(own: socket.socket) -> Door:
    """The door of an open port, with a token of its own."""
    return Door(own.getsockname()[1])


def page_app(page: str) -> FastAPI:
    """An app that shows one page and its static files; what else it answers is added to it."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.mount("/static", StaticFiles(directory=STATIC))

    @app.get("/")
    def index() -> Response:
        return FileResponse(STATIC / page)

    @app.exception_handler(RequestValidationError)
    async def misfit(request: Request, error: RequestValidationError) -> Response:
        places = {".".join(map(str, problem["loc"])) for problem in error.errors()}
        return _refused(request, f"unexpected {', '.join(sorted(places))}")

    @app.exception_handler(KneematchError)
    async def mendable(request: Request, error: KneematchError) -> Response:
        return _refused(request, str(error))

    return app


def serve(app: Callable[..., object], own: socket.socket) -> None:
    """Answer until the user ends it; of what is cut off by that, nothing is said."""
    running = server(app)
    complaints = logging.getLogger("uvicorn.error")

    def before_the_end(record: logging.LogRecord) -> bool:
        return not running.should_exit

    complaints.addFilter(before_the_end)
    try:
        running.run(sockets=[own])
    finally:
        complaints.removeFilter(before_the_end)


def server(app: Callable[..., object]) -> uvicorn.Server:
    """What answers; tests run it in a thread."""
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http="h11",
            ws="none",
            lifespan="off",
            log_level="warning",
            access_log=False,  # the address holds the token
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=ENDING_S,
        )
    )


def _refused(request: Request, reason: str) -> Response:
    log.warning("%s %r refused with %d: %s", request.method, request.url.path, REFUSED, reason)
    return JSONResponse({"problem": reason}, REFUSED)
