"""Names in the output folder of `kneematch detect`, and how such a folder is recognised."""

import os
from pathlib import Path
from typing import Final

JOURNAL: Final = "journal.jsonl"
OLD_JOURNAL: Final = "ledger.jsonl"  # of version 0.1
DETECTIONS, FAILURES = "detections.csv", "failures.csv"
RUN, REPORT = "run.json", "report.html"
OVERLAYS, CROPS, DICOM, LANDMARKS = "overlays", "crops", "dicom-objects", "landmarks"
FOLDERS: Final = (OVERLAYS, CROPS, DICOM, LANDMARKS)  # of files made from films
START: Final = b'{"format": "kneematch-'  # of a journal


def holds_run(folder: str | os.PathLike[str]) -> bool:
    """Return whether a folder holds the results of a run."""
    for name in (JOURNAL, OLD_JOURNAL):
        try:
            with Path(folder, name).open("rb") as file:
                if file.read(len(START)) == START:
                    return True
        except OSError:
            continue
    return False
