"""HTTP interface of the node: health, and detection on the film that a request brings."""

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from threading import BoundedSemaphore, Thread
from typing import Any, Final

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from kneematch import __version__
from kneematch.connections import TRUSTED_SITES, http_server, open_port
from kneematch.films.files import FILE_MODE
from kneematch.run.film_record import FAILED, UNREADABLE, FilmRecord
from kneematch.serve.config import LOCAL, ServeConfig
from kneematch.serve.node import NOTICE_S, Node

HEALTH: Final = "/health"  # the only path that needs no token
UNKNOWN_CALLER: Final = "A token is needed, as the header Authorization: Bearer TOKEN.\n"
MAX_BODY_BYTES: Final = 256 << 20  # more than the largest films have
BODY_S: Final = 120.0  # in which a film must arrive
SHUTDOWN_S: Final = 30  # in which requests under way must end when the node ends
MOST_REQUESTS: Final = 16  # films of requests that are examined or wait

logger = logging.getLogger("kneematch")


def node_app(node: Node) -> FastAPI:
    """Return the app of a node."""
    app = FastAPI(openapi_url=None)
    token, room = node.config.token(), BoundedSemaphore(MOST_REQUESTS)

    @app.middleware("http")
    async def check(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        host = request.headers.get("host", "").rsplit(":", 1)[0].strip("[]")
        if node.config.host in LOCAL and host not in LOCAL:  # a web page whose name was rebound
            return PlainTextResponse("The request is for another host.", HTTPStatus.FORBIDDEN)
        site = request.headers.get("sec-fetch-site", "none")
        if request.method != "GET" and site not in TRUSTED_SITES:  # it would be examined unseen
            return PlainTextResponse("The request comes from another page.", HTTPStatus.FORBIDDEN)
        given = request.headers.get("authorization", "").removeprefix("Bearer ").encode("latin-1")
        known = not token or secrets.compare_digest(given, token.encode())
        if not known and request.scope["path"] != HEALTH:  # a URL has the given host in it
            return PlainTextResponse(UNKNOWN_CALLER, HTTPStatus.UNAUTHORIZED)
        return await answer(request)

    @app.get(HEALTH)
    def health() -> JSONResponse:
        """Say whether the networks are loaded (status 200, else 503), and count films by state."""
        films = dict(node.queue.query("SELECT state, count(*) FROM films GROUP BY state"))
        ready = node.ready.is_set()
        status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
        return JSONResponse({"ready": ready, "version": __version__, "films": films}, status)

    @app.post("/detect")
    async def detect(request: Request) -> JSONResponse:
        """Find the knees on the film in the body, in any format that `kneematch detect` reads."""
        if not room.acquire(blocking=False):
            raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, "Too many requests. Try again.")
        path = node.queue.new_film()
        try:
            await _store_body(request, path)
            return JSONResponse(await run_in_threadpool(_detect, node, path))
        finally:
            path.unlink(missing_ok=True)
            room.release()

    return app


async def _store_body(request: Request, path: Path) -> None:
    try:
        path.touch(FILE_MODE)
        with path.open("wb") as file:
            async with asyncio.timeout(BODY_S):
                async for chunk in request.stream():
                    if file.tell() + len(chunk) > MAX_BODY_BYTES:
                        raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
                    file.write(chunk)
    except (TimeoutError, ClientDisconnect) as error:
        raise HTTPException(HTTPStatus.REQUEST_TIMEOUT) from error
    except OSError as error:
        raise HTTPException(HTTPStatus.INSUFFICIENT_STORAGE) from error


def _detect(node: Node, path: Path) -> dict[str, Any]:
    """Return what was found on a film as JSON can hold it."""
    found = node.examine(FilmRecord(0, str(path), path.name, to_make=frozenset()))
    if found.status == UNREADABLE:
        raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, found.reason)
    if found.status == FAILED:
        raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, found.reason)
    knees = [{**knee.to_dict(), "corners": knee.corners.tolist()} for knee in found.knees]
    return {"status": found.status, "mm_per_px": found.mm_per_px, "knees": knees}


def serve(config: ServeConfig, folder: Path, started: Callable[[str], None]) -> None:
    """Run a node with its queue in a folder until KeyboardInterrupt, then finish what it accepted.

    `started` is called with a line that names the ports.
    """
    config.token()  # one that cannot be used is refused before anything starts
    with open_port(config.http_port, config.host) as listening:
        node = Node(config, folder)
        tls = {"ssl_keyfile": config.tls_key, "ssl_certfile": config.tls_cert}
        server = http_server(node_app(node), SHUTDOWN_S, **tls)
        answering = Thread(target=server.run, args=([listening],), daemon=True)
        answering.start()
        port = listening.getsockname()[1]
        started(f"DICOM: {config.ae_title}@{config.host}:{node.port}; HTTP: port {port}")
        with suppress(KeyboardInterrupt):
            while True:
                time.sleep(NOTICE_S)
        logger.warning("Finishing what was accepted; a second signal ends at once.")
        node.finish()
        server.should_exit = True
        answering.join()
        node.queue.close()
