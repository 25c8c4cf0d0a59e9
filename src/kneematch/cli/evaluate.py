"""`kneematch evaluate` and `kneematch reproduce`: compare methods, on any films or the paper's."""

from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kneematch.cli.options import Log, OutFolder, Quiet, config_options
from kneematch.cli.terminal import (
    SOME_FAILED,
    choose_messages,
    complain_first,
    print_table,
    progress_bar,
    shown,
    stopping_cleanly,
    writing,
)
from kneematch.evaluation.config import EvaluateConfig, ReproduceConfig

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


class StudyName(StrEnum):
    """Studies that the paper used."""

    OAI = "oai"
    MOST = "most"


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
    _complain(result)
    if not quiet:
        _print_tables(result, PRINTED)
        typer.echo(shown(result.page))
    if result.failed:
        raise typer.Exit(SOME_FAILED)


@config_options(ReproduceConfig)
def reproduce(
    study: Annotated[StudyName, typer.Argument(help="oai: Table 1; most: Table 2.")],
    root: Annotated[Path, typer.Option(metavar="FOLDER", help="The study's films, unpacked.")],
    out: OutFolder,
    config: ReproduceConfig,
) -> None:
    """Train and test on the paper's data, and print its table beside the new results.

    Draw the template on a film of your choice first, since the paper's is not published. For MOST,
    name with --model the model that was trained on OAI. docs/reproduce.md describes the layout of
    the films.
    """
    from kneematch.evaluation import reproduce
    from kneematch.evaluation.datasets import STUDIES

    with stopping_cleanly(out), writing(out):
        done = reproduce.reproduce(STUDIES[study], root, out, config, progress=progress_bar)
    _complain(done.evaluation)  # train() has logged films that could not be trained on
    print_table(done.table)
    _print_tables(done.evaluation, ("accuracy", "distances"))
    typer.echo(done.table.caption)
    typer.echo(f"{shown(done.page)}, {shown(done.evaluation.page)}")
    if done.evaluation.failed or done.left_out:
        raise typer.Exit(SOME_FAILED)


def _complain(result: "EvaluateResult") -> None:
    """Print why films failed, and where the other reasons are."""
    reasons = list(result.failed.values())
    complain_first(reasons[:MOST_REASONS], len(reasons), f"failed: {shown(result.page)}")


def _print_tables(result: "EvaluateResult", names: Iterable[str]) -> None:
    """Print the named tables, where they were made."""
    for name in names:
        if table := result.table(name):
            print_table(table, PRINTED[name])
