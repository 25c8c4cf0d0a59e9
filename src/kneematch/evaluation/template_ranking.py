"""Rank annotated knees by how consistently each finds the others, to choose a template."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kneematch.errors import FilmError, SettingsError
from kneematch.evaluation.labels import Labels
from kneematch.evaluation.scores import GOOD_IOU, MethodRun, Table, mean, quantile, score_knees
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
LABELLED: Final[Columns] = {"margins, median %": 2, "mean IoU": 3, f"recall at {GOOD_IOU}": 3}
RANKED: Final = (
    "Templates, best first: each is found on the film of every other one, and that one on its "
    "film; after a round trip its corners should be back where they were. Errors in % of the "
    "template's width; medians over its partners, so that a bad partner does not count."
)

logger = logging.getLogger("kneematch")


def rank_templates(
    folder: Path,
    films: Sequence[str] = (),
    labels: Labels | None = None,
    *,
    paper: bool = False,
    device: str = "cpu",
) -> Table:
    """Search every template (*.json) on the films of all others; return a table, the best first.

    Further films are searched if there are labels, and left out if they cannot be read. `paper`
    minimises the paper's energy instead of the robust one.

    Raises:
        SettingsError: fewer than three templates.
    """
    files = sorted(folder.glob("*.json"))
    if len(files) < FEWEST:
        raise SettingsError(
            f"{folder} has {len(files)} templates (*.json), but a ranking takes {FEWEST} or more. "
            "Draw them with `kneematch annotate`."
        )
    annotations = [load_annotation(file) for file in files]
    further = [] if labels is None else films
    named: list[str | Path] = [*(each.film for each in annotations), *further]
    everywhere = list(dict.fromkeys(_absolute(film) for film in named))
    runs = []
    for file, annotation in zip(files, annotations, strict=True):
        logger.info("%s", file.name)
        detector = Detector.load(
            template=annotation, method="search", paper=paper, device=device, check=False
        )  # which uses nothing but the template
        outcomes = zip(everywhere, detector.detect_each(everywhere), strict=True)
        found = {film: each for film, each in outcomes if not isinstance(each, FilmError)}
        runs.append(MethodRun(file.name, found))
    return _table(annotations, runs, labels)


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


def _table(
    annotations: Sequence[Annotation], runs: Sequence[MethodRun], labels: Labels | None
) -> Table:
    knees = [[_on_film_of(each, run) for each in annotations] for run in runs]  # a on b's film
    boxes = [rectangle_to_film(*a.fine, mirrored=a.side == "left").numpy() for a in annotations]
    found = np.array([[knee.to_film for knee in row] for row in knees])
    errors = round_trips(np.stack(boxes), found)
    rows: list[tuple[Cell, ...]] = []
    for k in np.argsort(np.nanmedian(errors, axis=1), kind="stable").tolist():
        loss = mean([knee.loss for b, knee in enumerate(knees[k]) if b != k])
        trips = float(np.nanmedian(errors[k])), float(np.nanmax(errors[k]))
        accuracy = () if labels is None else _accuracy(annotations[k], runs[k], labels)
        rows.append((runs[k].method, *trips, loss, *accuracy))
    columns = TEMPLATES if labels is None else {**TEMPLATES, **LABELLED}
    return Table("templates", RANKED, columns, tuple(rows))


def _accuracy(own: Annotation, run: MethodRun, labels: Labels) -> tuple[Cell, ...]:
    """Return the cells of LABELLED for a template, without the film that it was drawn on."""
    others = {film: knees for film, knees in run.found.items() if film != _absolute(own.film)}
    scores = score_knees([MethodRun(run.method, others)], labels)[run.method]
    iou = [knee.iou for knee in scores]
    margins = quantile([knee.margin_percent for knee in scores], 0.5)
    return margins, mean(iou), mean([each >= GOOD_IOU for each in iou])


def _on_film_of(annotation: Annotation, run: MethodRun) -> Detection:
    """Return what a run found at an annotated knee, or the only knee of its film."""
    knees = run.found[_absolute(annotation.film)]
    return next((knee for knee in knees if knee.side == annotation.side), knees[0])


def _absolute(film: str | Path) -> str:
    """Return one path for a film, however it was named."""
    return os.path.normpath(Path(film).absolute())
