"""Trying a template on a few films, told of as they come."""

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from kneematch.detection.detector import Detector
from kneematch.detection.overlay import draw_detections
from kneematch.errors import FilmError
from kneematch.matching.template import Template
from kneematch.solvers.exhaustive_search import search
from kneematch.web.films import inline, read_film

MOST_FILMS: Final = 12
PICTURE_PX: Final = 320


def some_of(films: Sequence[str]) -> list[Path]:
    """A dozen films from all over the list."""
    count = min(MOST_FILMS, len(films))
    return [Path(films[k * len(films) // count]) for k in range(count)]


class Trials:
    """One trial at a time: a new one ends the one before."""

    def __init__(self, films: Sequence[Path]) -> None:
        self.films = films
        self._latest = 0
        # Held for one film and never while one is told of: a page may be closed at any moment.
        self._searching = threading.Lock()

    def run(self, template: Template) -> Iterator[dict[str, Any]]:
        """What becomes of each film; ends early when a later trial begins."""
        self._latest += 1
        mine = self._latest
        # Not `Detector.load`, which takes seconds for the networks that tell the doubtful.
        detector = Detector(template, search, search.__name__)
        for number, path in enumerate(self.films):
            with self._searching:
                if mine != self._latest:
                    return
                found = _found(detector, path)
            yield {"number": number, "film": path.name, **found}


def _found(detector: Detector, path: Path) -> dict[str, Any]:
    """The picture and the losses of a film, or why there are none."""
    try:
        film = read_film(path)
        knees = detector.detect(film)
    except FilmError as error:
        return {"problem": str(error).removeprefix(f"{path}: ")}
    picture = draw_detections(film, knees, longest_px=PICTURE_PX)
    losses = [{"side": knee.side, "loss": knee.loss} for knee in knees]
    return {"picture": inline(picture), "knees": losses}
