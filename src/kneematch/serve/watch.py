"""watch_folder: run `detect_folder` on films as they appear in a folder."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from kneematch.errors import SettingsError
from kneematch.films.discovery import NoFilms, find_films
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
    said: set[str] = set()
    while True:
        with _only_news(said):
            paths = _films_now(folder, out)
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


def _films_now(folder: Path, out: Path) -> Sequence[str]:
    """Return the films in a folder; none, with a warning, while it cannot be listed."""
    try:
        if not folder.is_dir():  # such as a disk of the network that is away
            raise SettingsError(f"The folder {folder} is not there.")
        return find_films([folder], leave_out=[out])
    except NoFilms:
        pass
    except SettingsError as error:
        logger.warning("%s It is tried again.", error.message)
    return ()


@contextmanager
def _only_news(said: set[str]) -> Iterator[None]:
    """Drop messages that are in `said`, those of the last look, and replace it by the new ones."""
    before = said.copy()
    said.clear()

    def is_new(record: logging.LogRecord) -> bool:
        said.add(record.getMessage())
        return record.getMessage() not in before

    logger.addFilter(is_new)
    try:
        yield
    finally:
        logger.removeFilter(is_new)
