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
from kneematch.evaluation.method_runs import MethodRun, common_films
from kneematch.evaluation.scores import GOOD_IOU, quantile, score_knees
from kneematch.evaluation.tables import Table, columns, mean
from kneematch.films.annotation import Annotation, load_annotation
from kneematch.films.csv_text import Cell
from kneematch.knee.detection import CORNERS, Detection
from kneematch.knee.detector import Detector
from kneematch.sampling import rectangle_to_film

Floats = NDArray[np.float64]

METHOD: Final = "search"  # it uses nothing but the template
FEWEST: Final = 3  # where two disagree, neither is known to be wrong

TEMPLATES: Final = columns(
    *("template", "round trip, median %:2", "round trip, worst %:2", "mean loss on the others:3")
)
DISAGREEMENT: Final = columns("disagreement on films %:2")
LABELLED: Final = columns("margins, median %:2", "mean IoU:3", f"recall at {GOOD_IOU}:3")
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
    """Search every template on the films of all others; return a table, the best template first.

    Args:
        folder: folder of annotations, *.json.
        films: further films to search; those that cannot be read are left out.
        labels: labels of the films.
        paper: minimise the paper's energy instead of the robust one.
        device: where to compute.

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
    films = [_absolute(film) for film in films]
    everywhere = list(dict.fromkeys([*(_absolute(each.film) for each in annotations), *films]))
    runs = []
    for file, annotation in zip(files, annotations, strict=True):
        logger.info("%s", file.name)
        detector = Detector.load(
            template=annotation, method=METHOD, paper=paper, device=device, check=False
        )
        outcomes = zip(everywhere, detector.detect_each(everywhere), strict=True)
        found = {film: each for film, each in outcomes if not isinstance(each, FilmError)}
        runs.append(MethodRun(file.name, found))
    return _table(annotations, runs, films, labels)


def round_trips(boxes: Floats, found: Floats) -> Floats:
    """Return how far points of template a are from where they were, from a to b and back.

    However differently the two were drawn, they should be back, so that this needs no labels.

    Args:
        boxes: (N, 3, 3), maps of each template's [-1, 1]^2 to its own film.
        found: (N, N, 3, 3), maps of template a's [-1, 1]^2 to where it was found on b's film.

    Returns:
        (N, N), errors in % of template a's width, NaN on the diagonal.
    """
    between = np.linalg.inv(boxes) @ found  # (N, N, 3, 3), from a to b
    errors = _displacement(between.swapaxes(0, 1) @ between, _aspect(boxes)[:, None])
    np.fill_diagonal(errors, np.nan)
    return errors


def disagreement(found: Floats) -> Floats:
    """Return how inconsistently pairs of templates lie on K knees, in % of the first one's width.

    Templates that were drawn differently lie differently on every knee; what counts is how far the
    map from one to the other deviates, from knee to knee, from its median.

    Args:
        found: (N, K, 3, 3), maps of each template's [-1, 1]^2 to where it was found.

    Returns:
        (N, N), NaN on the diagonal.
    """
    between = np.linalg.inv(found)[None] @ found[:, None]  # (a, b, K), from a to b
    usual = np.median(between, axis=2, keepdims=True)
    aspect = np.median(_aspect(found), axis=-1)[:, None, None]
    spread: Floats = np.median(_displacement(np.linalg.inv(usual) @ between, aspect), axis=-1)
    np.fill_diagonal(spread, np.nan)
    return spread


def _table(
    annotations: Sequence[Annotation],
    runs: Sequence[MethodRun],
    films: Sequence[str],
    labels: Labels | None,
) -> Table:
    knees = [[_on_film_of(each, run) for each in annotations] for run in runs]  # a on b's film
    boxes = [rectangle_to_film(*a.fine, mirrored=a.side == "left").numpy() for a in annotations]
    found = np.array([[knee.to_film for knee in row] for row in knees])
    errors = round_trips(np.stack(boxes), found)
    order = np.argsort(np.nanmedian(errors, axis=1), kind="stable").tolist()
    rows: list[list[Cell]] = []
    for k, run in enumerate(runs):
        others = [knee.loss for b, knee in enumerate(knees[k]) if b != k]
        rows.append([run.method, float(np.nanmedian(errors[k])), float(np.nanmax(errors[k]))])
        rows[-1].append(mean(others))
    titles = TEMPLATES
    common = [film for film in common_films(runs) if film in films]
    places = [[knee.to_film for film in common for knee in run.found[film]] for run in runs]
    if places[0]:
        titles += DISAGREEMENT
        for row, value in zip(rows, np.nanmedian(disagreement(np.array(places)), 1), strict=True):
            row.append(float(value))
    if labels is not None:
        titles += LABELLED
        for row, own, run in zip(rows, annotations, runs, strict=True):
            row += _accuracy(own, run, labels)
    return Table("templates", RANKED, titles, tuple(tuple(rows[k]) for k in order))


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


def _aspect(matrices: Floats) -> Floats:
    """Return height over width (...) of the rectangles that (..., 3, 3) map [-1, 1]^2 onto."""
    lengths = np.linalg.norm(matrices[..., :2, :2], axis=-2)
    ratio: Floats = lengths[..., 1] / lengths[..., 0]
    return ratio


def _displacement(maps: Floats, aspect: Floats) -> Floats:
    """Return how far maps (..., 3, 3) of a template to itself move its corners, in % of width."""
    corners = np.array([(x, y, 1.0) for x, y in CORNERS]).T  # (3, 4)
    x, y = np.moveaxis(((maps - np.eye(3)) @ corners)[..., :2, :], -2, 0)  # (..., 4) each
    distance: Floats = 100 * np.hypot(x / 2, y / 2 * aspect[..., None]).mean(-1)
    return distance
