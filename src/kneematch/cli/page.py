"""Shared by `annotate` and `review`: show a page in the browser until Ctrl-C."""

from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer

from kneematch.cli.terminal import complain
from kneematch.errors import missing_extra

if TYPE_CHECKING:
    from kneematch.web.auth import AuthMiddleware, Credentials


Port = Annotated[
    int,
    typer.Option(metavar="N", min=0, max=65535, help="Port of the page; 0 chooses a free one."),
]
Browser = Annotated[bool, typer.Option(metavar="", help="Open the page in the browser.")]


def check_web() -> None:
    """Raise SettingsError if the packages of the extra `web` are missing."""
    if find_spec("fastapi") is None or find_spec("uvicorn") is None:
        raise missing_extra("pages need FastAPI and uvicorn", "web")


def show_page(
    make_app: Callable[["Credentials"], "AuthMiddleware"], *, port: int, browser: bool
) -> None:
    """Serve an app until Ctrl-C; print its address, which contains the secret token."""
    from kneematch.web.auth import Credentials
    from kneematch.web.server import open_port, serve

    with open_port(port) as listening:
        credentials = Credentials(listening.getsockname()[1])
        app = make_app(credentials)
        typer.echo(credentials.url)
        complain("open this address in a browser; Ctrl-C ends it")
        if browser:
            typer.launch(credentials.url)
        with suppress(KeyboardInterrupt):
            serve(app, listening)
