"""`kneematch serve`: examine films as they arrive."""

from functools import partial
from pathlib import Path

from kneematch.errors import check_extra
from kneematch.films.files import writing
from kneematch.serve.config import ServeConfig


def serve(folder: Path, /, *, settings: ServeConfig = ServeConfig()) -> None:
    """Receive films by DICOM and HTTP, and send what is found on them to other systems.

    Parameters
    ----------
    folder
        Folder of the queue, for the owner only.
    """
    packages = "pynetdicom", "requests", "fastapi", "uvicorn"
    check_extra(f"The node needs {', '.join(packages)}", "serve", *packages)
    from kneematch.serve import http

    with writing(folder):
        http.serve(settings, folder, partial(print, flush=True))
