"""`kneematch apply` and `kneematch compare`: what is done with runs that have ended."""

from pathlib import Path
from typing import Annotated, Final

import typer

from kneematch.cli.options import FinishedRun, Force, Quiet, Root, Workers
from kneematch.cli.terminal import (
    SOME_FAILED,
    choose_messages,
    print_error,
    print_first_errors,
    print_result,
    shown,
    writing,
)
from kneematch.films.run_folder import DETECTIONS
from kneematch.options import INPUT, OUTPUT

# Parts of the names of the measures whose changes are printed.
PRINTED: Final = ("jsw_medial_minimum", "jsw_lateral_minimum", "jsw_x225", "jsw_x250", "_angle")
MOST_SHOWN: Final = 10  # pairs of films that are skipped


def apply(
    out: FinishedRun,
    decisions: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Add the decisions of this review.csv first.",
            show_default=False,
        ),
    ] = None,
    root: Root = None,
    workers: Workers = None,
    quiet: Quiet = False,
) -> None:
    """Write the decisions of `kneematch review` to the tables, pictures and exports of a run."""
    from kneematch.run.apply import apply_review

    progress = choose_messages(quiet=quiet)
    with writing(out):
        result = apply_review(
            out, root=root, decisions=decisions, workers=workers, progress=progress
        )
    for problem in result.problems:
        print_error(problem)
    if not quiet:
        typer.echo(f"{shown(out / DETECTIONS)}: {result.message}")
    if result.problems:
        raise typer.Exit(SOME_FAILED)


def compare(
    before: Annotated[Path, typer.Argument(metavar="BEFORE", help="Run of the first visit.")],
    after: Annotated[Path, typer.Argument(metavar="AFTER", help="Run of the second visit.")],
    on: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="CSV with the columns `before` and `after`: films of the same patient.",
            rich_help_panel=INPUT,
        ),
    ],
    out: Annotated[
        Path,
        typer.Option("-o", "--out", metavar="FILE", help="Table to write.", rich_help_panel=OUTPUT),
    ] = Path("changes.csv"),
    force: Force = False,
) -> None:
    """Compare the measures of the same knees at two visits; both runs were made with --measure."""
    from kneematch.evaluation.longitudinal import compare_runs

    with writing(out):
        result = compare_runs(before, after, on, out, force=force)
    for each in result.changes:
        if any(name in each.measure for name in PRINTED):
            spread = "" if each.sd is None else f", standard deviation {each.sd:.3f}"
            print_result(f"{each.measure}: mean change {each.mean:+.3f}{spread}")
    print_result(f"{shown(out)}: {result.knees:,} knee{'s' if result.knees != 1 else ''}")
    reasons = [f"pair of films skipped: {reason}" for reason in result.skipped[:MOST_SHOWN]]
    print_first_errors(reasons, len(result.skipped), "skipped", what="pairs of films")
    if result.skipped:
        raise typer.Exit(SOME_FAILED)
