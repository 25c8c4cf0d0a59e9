"""`kneematch train`: train a model for one's own template."""

from pathlib import Path
from typing import Annotated

import typer

from kneematch.cli.config_options import config_options
from kneematch.cli.options import Log, Quiet
from kneematch.cli.terminal import SOME_FAILED, choose_messages, say, shown, stopping_cleanly
from kneematch.options import INPUT, OUTPUT
from kneematch.training.config import TrainConfig


@config_options(TrainConfig)
def train(
    films: Annotated[
        list[str],
        typer.Argument(
            metavar="FILMS", help="Films, folders, patterns such as 'films/*.dcm', or @list.txt."
        ),
    ],
    template: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="Annotation written by `kneematch annotate`.",
            rich_help_panel=INPUT,
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "-o",
            "--out",
            metavar="FILE",
            help="Model file to write, NAME.safetensors.",
            rich_help_panel=OUTPUT,
        ),
    ],
    config: TrainConfig,
    quiet: Quiet = False,
    log: Log = None,
) -> None:
    """Train both networks on films without labels to find the boxes of a template.

    NAME.metrics.csv, NAME.curves.png and NAME.preview.png show the progress.
    A checkpoint is kept beside them until the training ends.
    With several GPUs: torchrun --nproc-per-node N -m kneematch train ...
    """
    from kneematch.training.trainer import checkpoint_path
    from kneematch.training.trainer import train as run

    progress = choose_messages(quiet=quiet, log=log)
    with stopping_cleanly(checkpoint_path(out)):
        result = run(films, template, out, config, progress=progress)
    if result.is_main and not quiet:
        left_out = f", {len(result.failures)} left out" if result.failures else ""
        say(f"{shown(out)}: trained on {result.films} films{left_out}")
    if result.failures:
        raise typer.Exit(SOME_FAILED)
