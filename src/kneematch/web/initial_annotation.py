"""The annotation that the page starts with, so that most users only adjust it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from kneematch.detection.detection import Detection
from kneematch.detection.detector import Detector
from kneematch.errors import KneematchError
from kneematch.matching.annotation import Annotation, load_annotation
from kneematch.synthetic.annotation import annotate
from kneematch.web.drawing import SplitFilm, default_coarse, find_problems

MARGINS: Final = ("plateau_left", "plateau_right")  # landmarks of the built-in model
PLATEAU_WIDTH: Final = 0.45  # of the half's width, where no knee was detected


def initial_annotation(
    film: SplitFilm, template: Path, detect: Callable[[], Annotation | None]
) -> tuple[Annotation, str]:
    """Return an annotation to start with, and its source.

    Args:
        film: The film to annotate.
        template: File of an earlier annotation, used if it exists and was drawn on this film.
        detect: Returns what the model finds (`detected_annotation`), or None.

    Returns:
        The annotation, and "file", "model" or "middle" (boxes in the middle of a half).
    """
    if drawn := _saved_annotation(film, template):
        return drawn, "file"
    if detected := detect():
        return detected, "model"
    return _middle_annotation(film), "middle"


def detected_annotation(film: SplitFilm) -> Annotation | None:
    """Return boxes around the knee with the lowest loss whose boxes are valid, or None."""
    try:
        found = Detector.load(device="cpu").detect(film.film)
    except KneematchError:  # no built-in model, or a film that it cannot use
        return None
    knees = sorted(found, key=lambda knee: knee.loss)
    drawn = [_around(knee, film) for knee in knees if set(MARGINS) <= set(knee.landmarks)]
    return next((annotation for annotation in drawn if not find_problems(annotation, film)), None)


def _saved_annotation(film: SplitFilm, template: Path) -> Annotation | None:
    try:
        drawn = load_annotation(template)
        return drawn if drawn.film.samefile(film.path) else None
    except (KneematchError, OSError):
        return None


def _around(knee: Detection, film: SplitFilm) -> Annotation:
    # The template is mirrored in the left half, so the landmarks are sorted by x again.
    left, right = sorted(knee.landmarks[name] for name in MARGINS)
    left, right = ((round(x, 1), round(y, 1)) for x, y in (left, right))
    return _with_default_coarse(annotate(film.path, knee.side, left, right), film)


def _middle_annotation(film: SplitFilm) -> Annotation:
    """Return boxes without landmarks in the middle of the right half."""
    height, width = film.film.size
    x, y = (film.axis_px + width) / 2, height / 2
    reach = PLATEAU_WIDTH * (width - film.axis_px) / 2
    drawn = annotate(film.path, "right", (x - reach, y), (x + reach, y))
    return _with_default_coarse(replace(drawn, landmarks={}), film)


def _with_default_coarse(annotation: Annotation, film: SplitFilm) -> Annotation:
    coarse = default_coarse(annotation.fine, film.frame(annotation.side))
    return replace(annotation, coarse=coarse)
