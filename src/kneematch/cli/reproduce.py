"""`kneematch reproduce`: the paper's Tables 1 and 2 on the films of OAI and MOST."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kneematch.cli.options import (
    Cache,
    Epochs,
    Force,
    OutFolder,
    Readers,
    Rounds,
    Start,
    TrainingDevice,
)
from kneematch.cli.terminal import (
    SOME_FAILED,
    complain,
    print_table,
    progress_bar,
    shown,
    stopping_cleanly,
    writing,
)
from kneematch.evaluation.config import METHODS
from kneematch.training.config import PAPER, TrainConfig

if TYPE_CHECKING:
    from kneematch.evaluation.reproduce import Reproduction, Settings

FEWEST_TO_TRAIN: Final = 2
MOST_REASONS: Final = 10
TABLE: Final = "reproduction.md"
LIST: Final = "LIST"


class StudyName(StrEnum):
    """Whose films."""

    OAI = "oai"
    MOST = "most"


def reproduce(
    study: Annotated[StudyName, typer.Argument(help="oai: Table 1; most: Table 2.")],
    root: Annotated[Path, typer.Option(metavar="FOLDER", help="The study's films, unpacked.")],
    out: OutFolder,
    template: Annotated[
        Path | None, typer.Option(metavar="JSON", help="The annotated knee to train on.")
    ] = None,
    model: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A model to test instead of training one.")
    ] = None,
    visit: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="Of the visit's folders; else baseline.")
    ] = None,
    series: Annotated[
        str | None, typer.Option(metavar="TEXT", help="In its description; else the study's.")
    ] = None,
    participant: Annotated[
        str | None, typer.Option(metavar="REGEX", help="Of participants' folders.")
    ] = None,
    films: Annotated[
        Path | None,
        typer.Option(metavar=LIST, help="Choose among these, a path a line or a CSV."),
    ] = None,
    train: Annotated[
        int | None, typer.Option(min=FEWEST_TO_TRAIN, help="Films to train on; else 500.")
    ] = None,
    test: Annotated[int | None, typer.Option(min=1, help="Films to test on; else 400.")] = None,
    train_list: Annotated[
        Path | None, typer.Option(metavar=LIST, help="Train on just these.")
    ] = None,
    test_list: Annotated[
        Path | None, typer.Option(metavar=LIST, help="Test on just these.")
    ] = None,
    recipe: Annotated[
        str, typer.Option(help="paper: exactly the paper's; default: ours.")
    ] = PAPER.name,
    start: Start = "synthetic",
    rounds: Rounds = None,
    epochs: Epochs = None,
    methods: Annotated[
        str, typer.Option(metavar="NAMES", help="Which to test, with commas between.")
    ] = ",".join(METHODS),
    seed: Annotated[int, typer.Option(min=0, help="Of the split and the training.")] = 0,
    device: TrainingDevice = "auto",
    workers: Readers = None,
    cache: Cache = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where it was stopped.")] = False,
    force: Force = False,
) -> None:
    """Train and test on the paper's data, and print its table beside what came out.

    Draw the template on a film of your own choice first: the paper's is not published. For MOST,
    name with --model what was trained on OAI. docs/reproduce.md tells how the films are laid out.
    """
    from kneematch.evaluation.datasets import STUDIES, Choice
    from kneematch.evaluation.reproduce import Settings

    choice = Choice(visit, series, participant, films, train, test, train_list, test_list, seed)
    settings = Settings(
        STUDIES[study.value],
        root,
        out,
        TrainConfig(recipe, start, rounds, epochs, seed=seed, device=device),
        template=template,
        model=model,
        choice=choice,
        methods=tuple(name.strip() for name in methods.split(",") if name.strip()),
        workers=workers,
        cache=cache,
        resume=resume,
        force=force,
    )
    with stopping_cleanly(out), writing(out):
        done = _reproduce(settings)
    _tell(done, out)
    if done.left_out or done.evaluation.failed:
        raise typer.Exit(SOME_FAILED)


def _reproduce(settings: "Settings") -> "Reproduction":
    from kneematch.evaluation.reproduce import reproduce

    return reproduce(settings, progress_bar, complain, progress_bar, sys.argv)


def _tell(done: "Reproduction", out: Path) -> None:
    """What failed on stderr, the table on stdout."""
    reasons = [*done.left_out, *done.evaluation.failed.values()]
    for reason in reasons[:MOST_REASONS]:
        complain(reason)
    if len(reasons) > MOST_REASONS:
        complain(f"{len(reasons) - MOST_REASONS} more films failed")
    print_table(done.table)
    typer.echo(done.table.caption)
    typer.echo(f"{shown(out / TABLE)}, {shown(done.evaluation.page)}")
