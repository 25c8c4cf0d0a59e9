"""`kneematch apply`: write the decisions of a review to all files of a run."""

from pathlib import Path
from typing import Annotated

import typer

from kneematch.cli.options import Quiet
from kneematch.cli.terminal import SOME_FAILED, complain, progress_bar, shown, writing
from kneematch.options import PERFORMANCE
from kneematch.progress import no_progress


def apply(
    out: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Output folder of `kneematch detect`.")
    ],
    root: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Folder of films with relative paths.")
    ] = Path(),
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="Number of worker processes; 0 works in the main process.",
            rich_help_panel=PERFORMANCE,
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Write the decisions of `kneematch review` to the tables, pictures and exports of a run."""
    from kneematch.batch.apply import apply_review

    with writing(out):
        result = apply_review(
            out, root=root, workers=workers, progress=no_progress if quiet else progress_bar
        )
    for problem in result.problems:
        complain(problem)
    if not quiet:
        typer.echo(f"{shown(out / 'detections.csv')}: {result.message}")
    if result.problems:
        raise typer.Exit(SOME_FAILED)
