"""What `annotate` and `review` do alike: a page on this machine, until the user ends it."""

import logging
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING

import typer

from kneematch.cli.terminal import complain
from kneematch.errors import SettingsError

if TYPE_CHECKING:
    from kneematch.web.auth import Door, Guard


def check_web() -> None:
    """See that what pages are served with is installed."""
    if find_spec("fastapi") is None or find_spec("uvicorn") is None:
        raise SettingsError(
            "pages need FastAPI and uvicorn, which are not installed; expected the extra 'web'; "
            "run: pip install 'kneematch[web]'"
        )


def show_page(build: Callable[["Door"], "Guard"], *, port: int, browser: bool) -> None:
    """Serve an app until Ctrl-C; its address, which holds the secret, is told on stdout."""
    from kneematch.web.serve import door_of, open_port, serve

    logging.basicConfig(format="kneematch: %(message)s")
    with open_port(port) as own:
        door = door_of(own)
        app = build(door)
        typer.echo(door.address)
        complain("open this address in a browser; Ctrl-C ends it")
        if browser:
            typer.launch(door.address)
        with suppress(KeyboardInterrupt):
            serve(app, own)
