"""The first guess of a template, so that most users only nudge it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from kneematch.detection.detection import Detection
from kneematch.detection.detector import Detector
from kneematch.errors import KneematchError
from kneematch.geometry.split import SIDES
from kneematch.matching.annotation import Annotation, Box, load_annotation
from kneematch.synthetic.annotation import annotate
from kneematch.web.drawing import Subject, coarse_around, problems_of

# The margins of the plateau, which the model in the box knows.
MARGINS: Final = ("plateau_left", "plateau_right")
# Of a half's width: the plateau in it, where nothing is known.
USUAL: Final = 0.45


def first_guess(
    subject: Subject, template: Path, ask_model: Callable[[], Annotation | None]
) -> tuple[Annotation, str]:
    """An annotation to begin with, and where it is from: "file", "model" or "middle"."""
    if drawn := _drawn_before(subject, template):
        return drawn, "file"
    if guessed := ask_model():
        return guessed, "model"
    return _in_the_middle(subject), "middle"


def _drawn_before(subject: Subject, template: Path) -> Annotation | None:
    """What the template's file holds, if it was drawn on this film."""
    try:
        drawn = load_annotation(template)
        return drawn if drawn.film.samefile(subject.path) else None
    except (KneematchError, OSError):
        return None


def from_model(subject: Subject) -> Annotation | None:
    """The boxes around the knee that matches best, of those that can serve."""
    try:
        found = Detector.load(device="cpu").detect(subject.film)
    except KneematchError:  # no model in the box, or no knee for it
        return None
    knees = sorted(found, key=lambda knee: knee.loss)
    guesses = [_around(knee, subject) for knee in knees if set(MARGINS) <= set(knee.landmarks)]
    return next((guess for guess in guesses if not problems_of(guess, subject)), None)


def _around(knee: Detection, subject: Subject) -> Annotation:
    # On the mirrored side the names are swapped; the picture's left margin is the lesser x.
    left, right = sorted(knee.landmarks[name] for name in MARGINS)
    left, right = ((round(x, 1), round(y, 1)) for x, y in (left, right))
    return _usual_coarse(annotate(subject.path, knee.side, left, right), subject)


def _usual_coarse(guess: Annotation, subject: Subject) -> Annotation:
    """With the coarse box that is drawn for the user, not the phantoms' own."""
    return replace(guess, coarse=coarse_around(guess.fine, subject.frame(guess.side)))


def _in_the_middle(subject: Subject) -> Annotation:
    """Boxes in the middle of the right half, to be drawn anew."""
    x0, y0, x1, y1 = _on_film(subject)
    x, y, reach = (x0 + x1) / 2, (y0 + y1) / 2, USUAL * (x1 - x0) / 2
    guess = annotate(subject.path, SIDES[1], (x - reach, y), (x + reach, y))
    return _usual_coarse(replace(guess, landmarks={}), subject)


def _on_film(subject: Subject) -> Box:
    height, width = subject.film.size
    return subject.axis_px, 0.0, float(width), float(height)
