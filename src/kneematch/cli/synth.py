"""`kneematch synth`: write a folder of phantoms and their ground truth."""

from pathlib import Path
from typing import Annotated

import typer

from kneematch.cli.options import config_options
from kneematch.cli.terminal import progress_bar, shown, writing
from kneematch.synthetic.config import SynthConfig


@config_options(SynthConfig)
def synth(
    out: Annotated[
        Path, typer.Option("-o", "--out", metavar="FOLDER", help="Folder for the films.")
    ],
    config: SynthConfig,
) -> None:
    """Write synthetic knee films (phantoms), truth.csv with their knees, and a template.json."""
    from kneematch.synthetic.dataset import synthesize

    with writing(out):
        result = synthesize(out, config, progress=progress_bar)
    films = f"{config.count} film{'s' if config.count != 1 else ''}"
    typer.echo(
        f"{shown(out)}: {films}, {result.truth.name} and {result.template.name}"
        if result.template
        else f"{shown(out)}: {films} and {result.truth.name}; no knee could serve as a template"
    )
