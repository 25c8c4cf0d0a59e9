"""`kneematch annotate`, `review` and `serve`: servers that run until Ctrl-C."""

import webbrowser
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from kneematch.cli.terminal import FinishedRun, Root, print_error
from kneematch.errors import SettingsError, check_extra
from kneematch.films.files import writing
from kneematch.serve.config import ServeConfig

if TYPE_CHECKING:
    from fastapi import FastAPI

Port = Annotated[
    int,
    Parameter(
        metavar="N",
        validator=Number(gte=0, lte=65_535),
        help="Port of the page; 0 chooses a free one.",
    ),
]
NoBrowser = Annotated[bool, Parameter(help="Print the page's address without opening a browser.")]


def annotate(
    film: Path,
    /,
    *,
    films: Annotated[tuple[str, ...], Parameter(metavar="PATH")] = (),
    out: Annotated[Path, Parameter(alias="-o", metavar="FILE")] = Path("template.json"),
    port: Port = 0,
    no_browser: NoBrowser = False,
) -> None:
    """Draw the boxes of a template on one film and preview them on others, in the browser.

    Parameters
    ----------
    film
        The film to draw on.
    films
        Film or folder to preview the template on; may be repeated.
    out
        Template file to write.
    """
    check_web()
    from kneematch.films.discovery import find_films
    from kneematch.web.annotate import annotate_app

    preview_films = find_films(films) if films else []
    if not out.parent.is_dir():
        raise SettingsError(f"No such folder: {out.parent}")
    _show(lambda: annotate_app(film, out, preview_films), port, browser=not no_browser)


def review(
    run: FinishedRun,
    /,
    *,
    reader: Annotated[str, Parameter(metavar="NAME")] = "",
    root: Root = None,
    port: Port = 0,
    no_browser: NoBrowser = False,
) -> None:
    """Accept, reject or correct the knees of a run, the doubtful ones first, in the browser.

    Parameters
    ----------
    reader
        Your name, stored with each decision.
    """
    check_web()
    from kneematch.web.review import ReviewSession, review_app

    _show(lambda: review_app(ReviewSession(run, root, reader)), port, browser=not no_browser)


def serve(folder: Path, /, *, settings: ServeConfig = ServeConfig()) -> None:
    """Receive films by DICOM and HTTP, and send what is found on them to other systems.

    Parameters
    ----------
    folder
        Folder of the queue, for the owner only.
    """
    packages = "pynetdicom", "requests", "fastapi", "uvicorn"
    check_extra(f"The node needs {', '.join(packages)}", "serve", *packages)
    from kneematch.serve import http

    with writing(folder):
        http.serve(settings, folder, partial(print, flush=True))


def check_web() -> None:
    """Raise SettingsError if the packages of the extra `web` are missing."""
    check_extra("The page needs FastAPI and uvicorn", "web", "fastapi", "uvicorn")


def _show(make_app: Callable[[], "FastAPI"], port: int, *, browser: bool) -> None:
    """Serve an app until Ctrl-C; print its address, whose token works once, as does the browser's.

    The app is made after the port was opened, so that a port in use leaves no trace.
    """
    from kneematch.connections import open_port
    from kneematch.web.server import Credentials, make_server

    with open_port(port) as listening:
        app, credentials = make_app(), Credentials(listening.getsockname()[1])
        print(credentials.new_url(), flush=True)
        print_error("Open this address in a browser. Ctrl-C ends the page.")
        if browser:
            webbrowser.open(credentials.new_url())
        with suppress(KeyboardInterrupt):
            make_server(app, credentials).run(sockets=[listening])
