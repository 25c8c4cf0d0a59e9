"""Rank annotated knees by how consistently each finds the others, to choose a template."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from kneematch.errors import SettingsError
from kneematch.evaluation.ground_truth import GroundTruth, LabelledKnee
from kneematch.evaluation.method_run import MethodRun, common_films
from kneematch.evaluation.scores import (
    GOOD_IOU,
    KneeScore,
    require_margins,
    score_knees,
    sorted_margins,
)
from kneematch.evaluation.statistics import Floats, mean
from kneematch.evaluation.tables import Column, Table, columns
from kneematch.films.annotation import Annotation, load_annotation
from kneematch.films.csv_text import Cell
from kneematch.knee.detection import CORNERS, Detection
from kneematch.knee.detector import Detector
from kneematch.sampling import rectangle_to_film

METHOD: Final = "search"  # it uses nothing but the template
FEWEST: Final = 3  # of two that disagree, neither is known to be wrong

TEMPLATES: Final = columns(
    *("template", "round trip, median %:2", "round trip, worst %:2", "triangles, median %:2"),
    "mean loss on the others:3",
)
DISAGREEMENT: Final = columns("disagreement on films %:2")
LABELLED: Final = columns("margins, median %:2", "mean IoU:3", f"recall at {GOOD_IOU}:3")
RANKED: Final = (
    "Templates, best first: each is found on the film of every other one, and that one on its "
    "film; after a round trip its corners should be back where they were. Errors in % of the "
    "template's width; medians over its partners, so that a bad partner does not count."
)
PAIRS: Final = "Round trips from the row's template to the column's and back, in % of its width."

logger = logging.getLogger("kneematch")


def rank_templates(
    folder: Path,
    films: Sequence[str] = (),
    truth: GroundTruth | None = None,
    *,
    paper: bool = False,
    device: str = "cpu",
) -> list[Table]:
    """Search every template on the films of all others; return tables, the best template first.

    Args:
        folder: folder of annotations, *.json.
        films: further films to search; those that cannot be read are left out.
        truth: labels of the films; by default the margins of the plateau in the annotations.
        paper: minimise the paper's energy instead of the robust one.
        device: where to compute.

    Raises:
        SettingsError: fewer than three templates.
    """
    files = sorted(folder.glob("*.json"))
    if len(files) < FEWEST:
        raise SettingsError(
            f"{folder}: {len(files)} templates; expected {FEWEST} or more, each a .json file; "
            "draw them with kneematch annotate"
        )
    annotations = {file.name: load_annotation(file) for file in files}
    films = [_absolute(film) for film in films]
    own = [_absolute(annotation.film) for annotation in annotations.values()]
    everywhere = list(dict.fromkeys([*own, *films]))
    runs = []
    for name, annotation in annotations.items():
        logger.info("%s", name)
        detector = Detector.load(
            template=annotation, method=METHOD, paper=paper, device=device, check=False
        )
        outcomes = zip(everywhere, detector.detect_each(everywhere), strict=True)
        found = {film: each.detections for film, each in outcomes if each.failure is None}
        runs.append(MethodRun(name, found))
    return _tables(list(annotations.values()), runs, films, truth)


def cycle_errors(boxes: Floats, found: Floats) -> tuple[Floats, Floats]:
    """Compare the maps between templates along closed cycles, which needs no labels.

    From a to b and back every point of a should be where it was, however differently the two were
    drawn; and from a to c directly it should be where it is by way of b.

    Args:
        boxes: (N, 3, 3), maps of each template's [-1, 1]^2 to its own film.
        found: (N, N, 3, 3), maps of template a's [-1, 1]^2 to where it was found on b's film.

    Returns:
        Errors in % of template a's width, NaN where two templates are the same: (N, N) of round
        trips from a to b and back, and (N, N, N) of triangles from a by way of b to c and directly
        back.
    """
    between = np.linalg.inv(boxes) @ found  # (N, N, 3, 3), from a to b
    there_and_back = between.swapaxes(0, 1) @ between
    aspect = _aspect(boxes)
    round_trip = _displacement(there_and_back, aspect[:, None])
    by_way_of = between[None] @ between[:, :, None]  # (a, b, c): from a to b, then to c
    triangle = _displacement(np.linalg.inv(between)[:, None] @ by_way_of, aspect[:, None, None])
    same = np.eye(len(boxes), dtype=bool)
    round_trip[same] = np.nan
    triangle[same[:, :, None] | same[None] | same[:, None]] = np.nan
    return round_trip, triangle


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


def _tables(
    annotations: Sequence[Annotation],
    runs: Sequence[MethodRun],
    films: Sequence[str],
    truth: GroundTruth | None,
) -> list[Table]:
    names = [run.method for run in runs]
    knees = [[_on_film_of(each, run) for each in annotations] for run in runs]  # a on b's film
    found = np.array([[knee.to_film for knee in row] for row in knees])
    boxes = np.stack(  # maps (N, 3, 3) of [-1, 1]^2 onto the fine boxes
        [
            rectangle_to_film(*each.fine, mirrored=each.side == "left").numpy()
            for each in annotations
        ]
    )
    round_trip, triangle = cycle_errors(boxes, found)
    titles = TEMPLATES
    rows: list[tuple[Cell, ...]] = [
        (
            name,
            float(np.nanmedian(round_trip[k])),
            float(np.nanmax(round_trip[k])),
            float(np.nanmedian(triangle[k])),
            mean([knee.loss for knee in (*knees[k][:k], *knees[k][k + 1 :])]),
        )
        for k, name in enumerate(names)
    ]
    for further, cells in (
        (DISAGREEMENT, _disagreement_cells(runs, films)),
        (LABELLED, _accuracy_cells(annotations, runs, knees, truth)),
    ):
        if cells:
            titles += further
            rows = [(*row, *more) for row, more in zip(rows, cells, strict=True)]
    order = sorted(range(len(names)), key=lambda k: float(np.nanmedian(round_trip[k])))
    pairs = tuple(
        (names[a], *(None if a == b else float(round_trip[a, b]) for b in order)) for a in order
    )
    others = *columns("template"), *(Column(names[k], 2) for k in order)
    return [
        Table("templates", RANKED, titles, tuple(rows[k] for k in order)),
        Table("template_pairs", PAIRS, others, pairs),
    ]


def _disagreement_cells(runs: Sequence[MethodRun], films: Sequence[str]) -> list[tuple[Cell, ...]]:
    """Return each template's median disagreement with the others; nothing without films."""
    common = set(common_films(runs))
    found = [
        [knee.to_film for film in films if film in common for knee in run.found[film]]
        for run in runs
    ]
    if not found[0]:
        return []
    between = disagreement(np.array(found))
    return [(float(value),) for value in np.nanmedian(between, axis=1)]


def _accuracy_cells(
    annotations: Sequence[Annotation],
    runs: Sequence[MethodRun],
    knees: Sequence[Sequence[Detection]],
    truth: GroundTruth | None,
) -> list[tuple[Cell, ...]]:
    """Return the cells of LABELLED, a template's own film left out; nothing without labels."""
    if truth is not None:
        judged = [
            MethodRun(run.method, {f: k for f, k in run.found.items() if f != _absolute(own.film)})
            for run, own in zip(runs, annotations, strict=True)
        ]
    else:
        marked = [k for k, each in enumerate(annotations) if sorted_margins(each.landmarks)]
        if len(marked) < FEWEST:
            return []
        # Films by number, since two in different folders may have one name.
        labels = tuple(
            LabelledKnee(
                str(b), knees[b][b].side, *require_margins(annotations[b].landmarks), "template"
            )
            for b in marked
        )
        truth = GroundTruth(Path(), labels, 0)
        judged = [
            MethodRun(runs[a].method, {str(b): (knees[a][b],) for b in marked if b != a})
            for a in marked
        ]
    scores = score_knees(judged, truth)
    return [_accuracy(scores.get(run.method, ())) for run in runs]


def _accuracy(knees: Sequence[KneeScore]) -> tuple[Cell, ...]:
    errors = [knee.margin_percent for knee in knees if not knee.missed]
    median = float(np.median(errors)) if errors else None
    return median, mean([k.iou for k in knees]), mean([k.iou >= GOOD_IOU for k in knees])


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
