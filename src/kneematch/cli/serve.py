"""`kneematch serve`: examine films as they arrive."""

from pathlib import Path
from typing import Annotated

import typer

from kneematch.cli.options import config_options
from kneematch.errors import check_extra
from kneematch.films.files import writing
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
