"""How long each method takes for a film, measured alone."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

from kneematch.detection.detector import Detector, PreparedFilm, prepare_file
from kneematch.evaluation.config import GRID
from kneematch.evaluation.method_run import Trial
from kneematch.export.run_file import device_name

MOST_FILMS: Final = 8
FILMS_OF_GRID: Final = 1  # it takes minutes
COLD: Final = (GRID, "sliding")  # those that a first call does not prepare


def timed(
    trials: Sequence[Trial], detectors: Mapping[str, Detector], films: Sequence[str]
) -> list[Trial]:
    """The trials with their milliseconds a film; detectors by the name of their method.

    The films are read and split before, so that it is the method alone that is measured.
    """
    rooms = {detector.margin for detector in detectors.values()}
    prepared = {room: list(islice(_prepared(films, room), MOST_FILMS)) for room in rooms}
    return [
        replace(trial, ms_a_film=milliseconds(detector, prepared[detector.margin]))
        for trial in trials
        for detector in (detectors[trial.method],)
    ]


def milliseconds(detector: Detector, films: Sequence[PreparedFilm]) -> float | None:
    """A film's, in batches as the detector has them; None without films."""
    some = films[:FILMS_OF_GRID] if detector.method == GRID else films
    batches = [some[k : k + detector.batch_size] for k in range(0, len(some), detector.batch_size)]
    if not batches:
        return None
    if detector.method not in COLD:
        detector.find(batches[0])
    started = time.perf_counter()
    for batch in batches:
        detector.find(batch)
    return 1000 * (time.perf_counter() - started) / len(some)


def how_timed(detectors: Mapping[str, Detector]) -> str:
    """For a caption."""
    detector = next(iter(detectors.values()))
    batch = min(detector.batch_size, MOST_FILMS)
    fewer = f" ({FILMS_OF_GRID} for the grid)" if GRID in detectors else ""
    return (
        f"Milliseconds of the method alone, on {device_name(detector.device)}, films read and "
        f"split before, in batches of up to {batch}, at most {MOST_FILMS} films{fewer}."
    )


def _prepared(films: Sequence[str], room: float) -> Iterator[PreparedFilm]:
    """The films that can be used."""
    for film in films:
        prepared = prepare_file(film, room)
        if isinstance(prepared, PreparedFilm):
            yield prepared
