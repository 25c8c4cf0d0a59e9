"""watch_folder: run `detect_folder` on films as they appear in a folder."""

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from kneematch.errors import SettingsError
from kneematch.films.discovery import find_films
from kneematch.films.files import FileVersion, file_versions
from kneematch.run.config import DetectConfig
from kneematch.run.pipeline import DetectResult, detect_folder
from kneematch.run.sqlite import BusyRun

PAUSE_S: Final = 2.0  # between two looks; a file that changes meanwhile is still being written

logger = logging.getLogger("kneematch")


def watch_folder(
    folder: Path, out: Path, config: DetectConfig, report: Callable[[DetectResult], None]
) -> None:
    """Look for new films until KeyboardInterrupt; `report` gets the result after each batch."""
    before: dict[str, FileVersion | None] = {}
    done: dict[str, FileVersion | None] = {}
    is_waiting = False
    while True:
        paths: list[str] = []
        with suppress(SettingsError):  # there is no film yet
            paths = find_films([folder], leave_out=[out])
        now = dict(zip(paths, file_versions(paths), strict=True))
        whole = {path: now[path] for path in paths if path in before and now[path] == before[path]}
        if whole.items() - done.items():
            try:
                report(detect_folder(list(whole), out, config))
                done, config = done | whole, replace(config, force=False)
                is_waiting = False
            except BusyRun as error:  # such as the review page, which applies decisions
                if not is_waiting:
                    logger.warning("%s New films wait for it.", error.message)
                is_waiting = True
        before = now
        time.sleep(PAUSE_S)
