"""Options of several commands that are not part of a configuration."""

from pathlib import Path
from typing import Annotated

import typer

OutFolder = Annotated[
    Path, typer.Option("-o", "--out", metavar="FOLDER", help="Folder for the results.")
]
Log = Annotated[
    Path | None,
    typer.Option("--log", metavar="FILE", help="Append all messages to NAME.log, with the time."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", metavar="", help="Print only what failed.")]
