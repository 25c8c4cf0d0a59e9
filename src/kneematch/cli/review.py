"""`kneematch review`: look through the knees of a run and decide, in the browser."""

from pathlib import Path
from typing import Annotated

import typer

from kneematch.cli.page import Browser, Port, check_web, show_page


def review(
    out: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Output folder of `kneematch detect`.")
    ],
    root: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Folder of films with relative paths.")
    ] = Path(),
    port: Port = 0,
    browser: Browser = True,
) -> None:
    """Accept, reject or correct the knees of a run, the doubtful ones first, in the browser."""
    check_web()
    from kneematch.web.review import review_app
    from kneematch.web.run_folder import RunFolder

    show_page(
        lambda credentials: review_app(RunFolder(out, root), credentials),
        port=port,
        browser=browser,
    )
