"""`kneematch annotate` and `kneematch review`: pages that are served until Ctrl-C."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kneematch.cli.options import FinishedRun, Root
from kneematch.cli.terminal import print_error
from kneematch.errors import SettingsError, check_extra

if TYPE_CHECKING:
    from fastapi import FastAPI

Port = Annotated[
    int, typer.Option(metavar="N", min=0, max=65535, help="Port of the page; 0 chooses a free one.")
]
Browser = Annotated[bool, typer.Option(metavar="", help="Open the page in the browser.")]
PreviewFilms = Annotated[
    list[str] | None,
    typer.Option(
        "--films",
        metavar="PATH",
        help="Film or folder to preview the template on; may be repeated.",
    ),
]


def annotate(
    film: Annotated[Path, typer.Argument(metavar="FILM", help="The film to draw on.")],
    films: PreviewFilms = None,
    out: Annotated[
        Path, typer.Option("-o", "--out", metavar="FILE", help="Template file to write.")
    ] = Path("template.json"),
    port: Port = 0,
    browser: Browser = True,
) -> None:
    """Draw the boxes of a template on one film and preview them on others, in the browser."""
    check_web()
    from kneematch.films.discovery import find_films
    from kneematch.web.annotate import annotate_app

    preview_films = find_films(films) if films else []
    if not out.parent.is_dir():
        raise SettingsError(f"No such folder: {out.parent}")
    _show(lambda: annotate_app(film, out, preview_films), port, browser=browser)


def review(
    out: FinishedRun,
    reader: Annotated[
        str, typer.Option(metavar="NAME", help="Your name, stored with each decision.")
    ] = "",
    root: Root = None,
    port: Port = 0,
    browser: Browser = True,
) -> None:
    """Accept, reject or correct the knees of a run, the doubtful ones first, in the browser."""
    check_web()
    from kneematch.web.review import ReviewSession, review_app

    _show(lambda: review_app(ReviewSession(out, root, reader)), port, browser=browser)


def check_web() -> None:
    """Raise SettingsError if the packages of the extra `web` are missing."""
    check_extra("The page needs FastAPI and uvicorn", "web", "fastapi", "uvicorn")


def _show(make_app: Callable[[], "FastAPI"], port: int, *, browser: bool) -> None:
    """Serve an app until Ctrl-C; print its address, whose token works once, as does the browser's.

    The app is made after the port was opened, so that a port in use leaves no trace.
    """
    from kneematch.connections import open_port
    from kneematch.web.server import Credentials, serve

    with open_port(port) as listening:
        app, credentials = make_app(), Credentials(listening.getsockname()[1])
        typer.echo(credentials.new_url())
        print_error("Open this address in a browser. Ctrl-C ends the page.")
        if browser:
            typer.launch(credentials.new_url())
        with suppress(KeyboardInterrupt):
            serve(app, credentials, listening)
