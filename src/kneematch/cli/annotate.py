"""`kneematch annotate`: draw a template on one film, in the browser."""

from pathlib import Path
from typing import Annotated

import typer

from kneematch.cli.page import Browser, Port, check_web, show_page
from kneematch.errors import SettingsError


def annotate(
    film: Annotated[Path, typer.Argument(metavar="FILM", help="The film to draw on.")],
    films: Annotated[
        list[str] | None,
        typer.Option(
            "--films",
            metavar="PATH",
            help="Film or folder to preview the template on; may be repeated.",
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("-o", "--out", metavar="FILE", help="Template file to write.")
    ] = Path("template.json"),
    port: Port = 0,
    browser: Browser = True,
) -> None:
    """Draw the boxes of a template on one film and preview them on others, in the browser."""
    check_web()
    from kneematch.io.discovery import find_films
    from kneematch.web.annotate import annotate_app

    preview_films = find_films(films) if films else []
    if not out.parent.is_dir():
        raise SettingsError(
            f"{out}: its folder is not there; expected one to write the template to; make it"
        )
    show_page(
        lambda credentials: annotate_app(film, out, preview_films, credentials),
        port=port,
        browser=browser,
    )
