"""`kneematch review`: look through a run in the browser, and decide."""

from pathlib import Path
from typing import Annotated

import typer

from kneematch.cli.page import check_web, show_page


def review(
    out: Annotated[Path, typer.Argument(help="The folder that `kneematch detect` has filled.")],
    root: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where relative names of films begin.")
    ] = Path(),
    port: Annotated[int, typer.Option(help="Of the page; 0 is any that is free.")] = 0,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
) -> None:
    """Accept, reject or correct what was found, the doubtful first, in the browser."""
    check_web()
    from kneematch.web.review import open_run, review_app

    run = open_run(out, root)
    show_page(lambda door: review_app(run, door), port=port, browser=browser)
