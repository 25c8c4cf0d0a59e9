"""`kneematch serve` and `kneematch watch`: examine films as they arrive."""

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from kneematch.cli.options import OutFolder, config_options
from kneematch.cli.runs import print_summary
from kneematch.cli.terminal import shown
from kneematch.errors import SettingsError, check_extra
from kneematch.films.files import writing
from kneematch.run.config import DetectConfig
from kneematch.serve.config import ServeConfig


@config_options(ServeConfig)
def serve(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder of the queue, for the owner only.")
    ],
    config: ServeConfig,
) -> None:
    """Receive films by DICOM and HTTP, and send what is found on them to other systems."""
    packages = "pynetdicom", "requests", "fastapi", "uvicorn"
    check_extra(f"The node needs {', '.join(packages)}", "serve", *packages)
    from kneematch.serve import http

    with writing(folder):
        http.serve(config, folder, typer.echo)


@config_options(DetectConfig)
def watch(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder that films come to.")],
    out: OutFolder,
    config: DetectConfig,
) -> None:
    """Find the knees of films as they appear in a folder, until Ctrl-C."""
    from kneematch.serve.watch import watch_folder

    if not folder.is_dir():
        raise SettingsError(f"No such folder: {folder}")
    typer.echo(f"Looking for films in {shown(folder)} until Ctrl-C")
    with suppress(KeyboardInterrupt), writing(out):
        watch_folder(folder, out, config, lambda result: print_summary(result, quiet=False))
