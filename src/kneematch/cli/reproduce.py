"""`kneematch reproduce`: repeat the paper's Tables 1 and 2 on films of OAI and MOST."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from kneematch.cli.config_options import config_options
from kneematch.cli.evaluate import PRINTED, show_failures
from kneematch.cli.options import OutFolder
from kneematch.cli.terminal import (
    SOME_FAILED,
    print_table,
    progress_bar,
    shown,
    stopping_cleanly,
    writing,
)
from kneematch.evaluation.config import ReproduceConfig


class StudyName(StrEnum):
    """Studies that the paper used."""

    OAI = "oai"
    MOST = "most"


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
    failed = list(done.evaluation.failed.values())
    show_failures(failed, done.evaluation.page)  # train() has logged those of training films
    print_table(done.table)
    for name in ("accuracy", "distances"):
        if table := done.evaluation.table(name):
            print_table(table, PRINTED[name])
    typer.echo(done.table.caption)
    typer.echo(f"{shown(done.page)}, {shown(done.evaluation.page)}")
    if failed or done.left_out:
        raise typer.Exit(SOME_FAILED)
