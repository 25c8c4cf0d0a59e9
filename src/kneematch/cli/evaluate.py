"""`kneematch evaluate`: compare methods on films."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kneematch.cli.config_options import config_options
from kneematch.cli.options import Log, OutFolder, Quiet
from kneematch.cli.terminal import (
    SOME_FAILED,
    choose_messages,
    complain,
    print_table,
    shown,
    stopping_cleanly,
    writing,
)
from kneematch.evaluation.config import EvaluateConfig

if TYPE_CHECKING:
    from kneematch.evaluation.run import EvaluateResult

RUNS: Final = "runs"
# Tables to print, and the columns that a terminal has room for.
PRINTED: Final[dict[str, tuple[str, ...] | None]] = {
    "losses": ("method", "films", "left + right loss", "standard error", "ms a film"),
    "accuracy": ("method", "source", "knees", "mean IoU", "recall at 0.75", "margins, median %"),
    "distances": None,  # all
    "templates": ("template", "round trip, median %", "triangles, median %", "mean IoU"),
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
    """Compare methods on films: loss, time, uniformity and, with labels, accuracy.

    evaluation.md has all tables and figures; the tables are also written as LaTeX and CSV. Every
    method's own run, as of `kneematch detect`, is in runs/METHOD.
    """
    from kneematch.evaluation import run

    progress = choose_messages(quiet=quiet, log=log)
    with stopping_cleanly(out / RUNS), writing(out):
        result = run.evaluate(films or [], out, config, progress=progress)
    show_failures(list(result.failed.values()), result.page)
    if not quiet:
        _print(result)
    if result.failed:
        raise typer.Exit(SOME_FAILED)


def show_failures(reasons: list[str], page: Path) -> None:
    """Print the first reasons on stderr, and where the others are."""
    for reason in reasons[:MOST_REASONS]:
        complain(reason)
    if len(reasons) > MOST_REASONS:
        complain(f"{len(reasons) - MOST_REASONS} more films failed: {shown(page)}")


def _print(result: "EvaluateResult") -> None:
    for name, titles in PRINTED.items():
        table = result.table(name)
        if table is not None:
            print_table(table, titles)
    typer.echo(shown(result.page))
