"""Run every method on the same films, and measure how long each takes per film."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Final

from kneematch.evaluation.config import GRID, RUNS, EvaluateConfig
from kneematch.films.run_folder import JOURNAL
from kneematch.knee.detection import Detection
from kneematch.knee.detector import Detector
from kneematch.knee.preparation import PreparedFilm
from kneematch.progress import Progress, no_progress
from kneematch.run.config import DetectConfig
from kneematch.run.journal import Journal
from kneematch.run.outputs.run_file import device_name
from kneematch.run.pipeline import detect_files

# Settings that a method's run takes over.
SHARED: Final = "model", "template", "paper", "resume", "force", "device", "batch_size", "workers"
TIMED_FILMS: Final = 8
TIMED_FILMS_OF_GRID: Final = 1  # it takes minutes
NO_WARM_UP: Final = (GRID, "sliding")  # methods whose first call takes no longer than the next

logger = logging.getLogger("kneematch")


@dataclass(frozen=True, slots=True, eq=False)
class MethodRun:
    """What one method found; a film is either in `found` or in `failed`."""

    method: str
    found: Mapping[str, tuple[Detection, ...]]  # by the film's path
    ms_per_film: float | None = None  # of the method alone, without reading; None: not measured
    failed: Mapping[str, str] = field(default_factory=dict)  # reasons by the film's path


def common_films(runs: Sequence[MethodRun]) -> list[str]:
    """Return the films on which all methods found the same number of knees, in order."""
    first, *others = runs
    return [
        film
        for film, knees in first.found.items()
        if all(len(other.found.get(film, ())) == len(knees) for other in others)
    ]


def leave_out_knee(runs: Sequence[MethodRun], film: str, side: str) -> list[MethodRun]:
    """Return runs without the knee in one half of a film."""
    return [
        replace(
            run,
            found={
                path: kept
                for path, knees in run.found.items()
                if (kept := tuple(k for k in knees if (path, k.side) != (film, side))) or not knees
            },
        )
        for run in runs
    ]


def run_methods(
    films: Sequence[str], out: Path, config: EvaluateConfig, progress: Progress = no_progress
) -> list[MethodRun]:
    """Run each method as `kneematch detect` does, and the grid search on the first films only.

    The runs are written to out/runs/METHOD, and continued where there are some.
    """
    runs = []
    for method, count in films_per_method(config, len(films)).items():
        logger.info("%s, %d films", method, count)
        folder = out / RUNS / method
        detect_files(films[:count], folder, _detect_config(config, method), progress=progress)
        with Journal(folder / JOURNAL) as journal:
            named = set(journal.add(films[:count]))
            rows = [row for row in journal.rows() if row.index in named]
        found = {row.film: row.detections for row in rows if row.failure is None}
        failed = {
            row.film: f"{row.film}: {row.failure}" if row.no_knee else row.failure
            for row in rows
            if row.failure is not None
        }
        runs.append(MethodRun(method, found, failed=failed))
    return runs


def films_per_method(config: EvaluateConfig, count: int) -> dict[str, int]:
    """Return how many of `count` films each method is run on."""
    films = dict.fromkeys(config.methods, count)
    return films | {GRID: min(config.grid, count)} if config.grid else films


def load_detectors(config: EvaluateConfig, count: int) -> dict[str, Detector]:
    """Load the detector of every method that is run on `count` films."""
    methods = films_per_method(config, count)
    return {method: _detect_config(config, method).load_detector() for method in methods}


def file_hashes(config: EvaluateConfig) -> dict[str, str]:
    """Return the SHA-256 of the model and, if one is given, of the template and its film."""
    return _detect_config(config, "auto").file_hashes()


def measure_times(
    runs: Sequence[MethodRun], detectors: Mapping[str, Detector], films: Sequence[str]
) -> list[MethodRun]:
    """Return the runs with the time per film, measured for each method alone.

    The first films that can be used are read and split before the clock starts.
    """
    prepared = {}
    for how, detector in {each.preparation: each for each in detectors.values()}.items():
        read = (film for path in films for film in detector.prepare([path]))
        usable = (film for film in read if isinstance(film, PreparedFilm))
        prepared[how] = list(islice(usable, TIMED_FILMS))
    return [
        replace(run, ms_per_film=milliseconds_per_film(detector, prepared[detector.preparation]))
        for run in runs
        for detector in (detectors[run.method],)
    ]


def milliseconds_per_film(detector: Detector, films: Sequence[PreparedFilm]) -> float | None:
    """Time a detector on prepared films in batches of its own size; None without films."""
    chosen = films[:TIMED_FILMS_OF_GRID] if detector.method == GRID else films
    size = detector.batch_size
    batches = [chosen[k : k + size] for k in range(0, len(chosen), size)]
    if not batches:
        return None
    if detector.method not in NO_WARM_UP:
        detector.find(batches[0])
    started = time.perf_counter()
    for batch in batches:
        detector.find(batch)
    return 1000 * (time.perf_counter() - started) / len(chosen)


def timing_caption(detectors: Mapping[str, Detector]) -> str:
    """Describe how times were measured."""
    detector = next(iter(detectors.values()))
    fewer = f" ({TIMED_FILMS_OF_GRID} for the grid)" if GRID in detectors else ""
    return (
        f"Milliseconds of the method alone, on {device_name(detector.device)}, without reading and "
        f"splitting films, in batches of up to {min(detector.batch_size, TIMED_FILMS)}, on at most "
        f"{TIMED_FILMS} films{fewer}."
    )


def _detect_config(config: EvaluateConfig, method: str) -> DetectConfig:
    shared = {name: getattr(config, name) for name in SHARED}
    return DetectConfig(method=method, paper_settings=config.paper_settings(), **shared)
