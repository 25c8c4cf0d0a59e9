"""Ports to listen on, and HTTP on connections that are limited in number and in idle time."""

import logging
import socket
from asyncio import Transport
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from kneematch.errors import SettingsError

HOST: Final = "127.0.0.1"
MAX_CONNECTIONS: Final = 100  # a browser opens six
IDLE_S: Final = 10  # time for the first request of a connection
# Sec-Fetch-Site of requests from the page itself, and of addresses that the user typed.
TRUSTED_SITES: Final = ("same-origin", "none")


def open_port(port: int = 0, host: str = HOST) -> socket.socket:
    """Return a listening socket; port 0 chooses a free one.

    By default, other machines cannot reach it.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:  # it listens at once, so that who connects before the app runs waits for it
        return socket.create_server((host, port), family=family)
    except OSError as error:
        why = (error.strerror or str(error)).partition(" (")[0]  # without the address
        where = f"Port {port} of {host}"
        raise SettingsError(f"{where} cannot be used: {why}. Choose another one.") from error


class LimitedProtocol(H11Protocol):
    """HTTP on connections that are closed if there are too many, or if nothing is asked."""

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Begin to count the time until the first request, or close the connection."""
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
        else:
            ends = self.loop.call_later(IDLE_S, self.timeout_keep_alive_handler)
            self.timeout_keep_alive_task = ends


def http_server(app: ASGIApp, shutdown_s: int, **options: Any) -> uvicorn.Server:
    """Return the server of an app; requests under way have `shutdown_s` seconds when it ends.

    `options` are uvicorn's, such as those for TLS.
    """
    config = uvicorn.Config(
        app,
        http=LimitedProtocol,
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,  # addresses may hold a token
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=shutdown_s,
        **options,
    )
    server = uvicorn.Server(config)
    # No complaints about requests that the end cuts off.
    logging.getLogger("uvicorn.error").addFilter(lambda record: not server.should_exit)
    return server
