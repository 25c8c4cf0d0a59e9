"""`kneematch evaluate`: compare methods."""

from typing import Annotated, Final

import typer

from kneematch.cli.options import Log, OutFolder, Quiet, config_options
from kneematch.cli.terminal import (
    SOME_FAILED,
    choose_messages,
    print_first_errors,
    print_table,
    shown,
    stopping_cleanly,
    writing,
)
from kneematch.evaluation.config import RUNS, EvaluateConfig

# Tables to print, and the columns that a terminal has room for.
PRINTED: Final[dict[str, tuple[str, ...] | None]] = {
    "losses": ("method", "films", "left + right loss", "standard error", "ms a film"),
    "accuracy": ("method", "source", "knees", "mean IoU", "recall at 0.75", "margins, median %"),
    "distances": None,  # all
    "templates": ("template", "round trip, median %", "mean loss on the others", "mean IoU"),
}
MOST_REASONS: Final = 10


@config_options(EvaluateConfig)
def evaluate(
    out: OutFolder,
    config: EvaluateConfig,
    films: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILMS", help="Films, folders, patterns or @list.txt."),
    ] = None,
    quiet: Quiet = False,
    log: Log = None,
) -> None:
    """Compare methods on films: loss, time and, with labels, accuracy.

    evaluation.md has all tables and figures; the tables are also written as CSV. Every method's own
    run, as of `kneematch detect`, is in runs/METHOD.
    """
    from kneematch.evaluation import run

    progress = choose_messages(quiet=quiet, log=log)
    with stopping_cleanly(out / RUNS), writing(out):
        result = run.evaluate(films or [], out, config, progress=progress)
    reasons = list(result.failed.values())
    print_first_errors(reasons[:MOST_REASONS], len(reasons), f"failed: {shown(result.page)}")
    if not quiet:
        for name, titles in PRINTED.items():
            if table := result.table(name):
                print_table(table, titles)
        typer.echo(shown(result.page))
    if result.failed:
        raise typer.Exit(SOME_FAILED)
