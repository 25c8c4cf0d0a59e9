"""Rank annotated knees by how consistently each finds the others, to choose a template."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kneematch.errors import SettingsError
from kneematch.evaluation.scores import Table, mean
from kneematch.films.annotation import Annotation, load_annotation
from kneematch.films.csv_text import Cell
from kneematch.knee.detection import CORNERS, Detection
from kneematch.knee.detector import Detector
from kneematch.run.outputs.tables import Columns
from kneematch.sampling import rectangle_to_film

Floats = NDArray[np.float64]

FEWEST: Final = 3  # where two disagree, neither is known to be wrong
TEMPLATES: Final[Columns] = {
    "template": None,
    "round trip, median %": 2,
    "round trip, worst %": 2,
    "mean loss on the others": 3,
}
RANKED: Final = (
    "Templates, best first: each is found on the film of every other one, and that one on its "
    "film; after a round trip its corners should be back where they were. Errors in % of the "
    "template's width; medians over its partners, so that a bad partner does not count."
)

logger = logging.getLogger("kneematch")


def rank_templates(folder: Path, *, paper: bool = False, device: str = "cpu") -> Table:
    """Search every template (*.json) on the films of all others; return a table, the best first.

    `paper` minimises the paper's energy instead of the robust one.

    Raises:
        SettingsError: fewer than three templates.
        FilmError: a template's film cannot be read.
    """
    files = sorted(folder.glob("*.json"))
    if len(files) < FEWEST:
        raise SettingsError(
            f"{folder} has {len(files)} templates (*.json), but a ranking takes {FEWEST} or more. "
            "Draw them with `kneematch annotate`."
        )
    annotations = [load_annotation(file) for file in files]
    films = list(dict.fromkeys(each.film for each in annotations))
    knees = []  # (N, N), template a on b's film
    for file, annotation in zip(files, annotations, strict=True):
        logger.info("%s", file.name)
        searching = Detector.load(template=annotation, method="search", paper=paper, device=device)
        detector = replace(searching, check=None)  # flags do not count, only the template
        found = dict(zip(films, detector.detect(films), strict=True))
        knees.append([_drawn_knee(each, found[each.film]) for each in annotations])
    boxes = [rectangle_to_film(*a.fine, mirrored=a.mirrored).numpy() for a in annotations]
    errors = round_trips(
        np.stack(boxes), np.array([[knee.to_film for knee in row] for row in knees])
    )
    rows: list[tuple[Cell, ...]] = []
    for k in np.argsort(np.nanmedian(errors, axis=1), kind="stable").tolist():
        loss = mean([knee.loss for b, knee in enumerate(knees[k]) if b != k])
        trips = float(np.nanmedian(errors[k])), float(np.nanmax(errors[k]))
        rows.append((files[k].name, *trips, loss))
    return Table("templates", RANKED, TEMPLATES, tuple(rows))


def _drawn_knee(annotation: Annotation, found: Sequence[Detection]) -> Detection:
    """Return the detection of an annotated knee, or the only one of its film."""
    if not found:
        raise SettingsError(f"No knee was found on {annotation.film}, on which one was drawn.")
    return next((knee for knee in found if knee.side == annotation.side), found[0])


def round_trips(boxes: Floats, found: Floats) -> Floats:
    """Return how far points of template a are from where they were, from a to b and back.

    However differently the two were drawn, they should be back, so that this needs no labels.

    Args:
        boxes: (N, 3, 3), maps of each template's [-1, 1]^2 to its own film.
        found: (N, N, 3, 3), maps of template a's [-1, 1]^2 to where it was found on b's film.

    Returns:
        (N, N), mean errors of the corners in % of template a's width, NaN on the diagonal.
    """
    between = np.linalg.inv(boxes) @ found  # (N, N, 3, 3), from a to b
    lengths = np.linalg.norm(boxes[:, :2, :2], axis=-2)
    aspect = (lengths[:, 1] / lengths[:, 0])[:, None, None]  # height over width of a
    corners = np.array([(x, y, 1.0) for x, y in CORNERS]).T  # (3, 4)
    moved = (between.swapaxes(0, 1) @ between - np.eye(3)) @ corners
    errors: Floats = 100 * np.hypot(moved[..., 0, :] / 2, moved[..., 1, :] / 2 * aspect).mean(-1)
    np.fill_diagonal(errors, np.nan)
    return errors
