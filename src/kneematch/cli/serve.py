"""`kneematch serve` and `kneematch watch`: examine films as they arrive."""

from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from kneematch.cli.options import OutFolder, config_options
from kneematch.cli.runs import print_summary
from kneematch.cli.terminal import shown
from kneematch.errors import SettingsError, missing_extra
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
    if any(find_spec(name) is None for name in ("pynetdicom", "requests", "fastapi")):
        raise missing_extra("The node needs pynetdicom, requests and FastAPI", "serve")
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
