"""Names in the output folder of `kneematch detect`."""

import os
from pathlib import Path
from typing import Final

RUN_DATABASE: Final = "run.sqlite"
THUMBNAILS: Final = "thumbnails.sqlite"
DETECTIONS, FAILURES = "detections.csv", "failures.csv"
RUN, REPORT = "run.json", "report.html"
OVERLAYS, CROPS, DICOM = "overlays", "crops", "dicom-objects"
FOLDERS: Final = (OVERLAYS, CROPS, DICOM)  # hold files made from films


def holds_run(folder: str | os.PathLike[str]) -> bool:
    """Return whether a folder holds the results of a run."""
    return Path(folder, RUN_DATABASE).is_file()
