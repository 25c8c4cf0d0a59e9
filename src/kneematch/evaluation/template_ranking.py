"""Which of several annotated knees is the best template: how well each finds all the others."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kneematch.detection.detection import CORNERS, Detection
from kneematch.detection.detector import Detector
from kneematch.errors import SettingsError
from kneematch.evaluation.ground_truth import MARGINS, KnownKnee, Score, Truth, scores
from kneematch.evaluation.method_run import Trial, common_films
from kneematch.evaluation.tables import Cell, Column, Table, digits
from kneematch.geometry.view import rectangle_to_film
from kneematch.matching.annotation import Annotation, load_annotation

FEWEST: Final = 3  # of two that disagree, none can be told to be the wrong one
GOOD_IOU: Final = 0.75

COLUMNS: Final[tuple[Column, ...]] = (
    Column("template"),
    Column("round trip, median %", digits(2)),
    Column("round trip, worst %", digits(2)),
    Column("triangles, median %", digits(2)),
    Column("mean loss on the others", digits(3)),
)
DISAGREEMENT: Final = Column("disagreement on films %", digits(2))
LABELLED: Final = (
    Column("margins, median %", digits(2)),
    Column("mean IoU", digits(3)),
    Column(f"recall at {GOOD_IOU}", digits(3)),
)
RANKED: Final = (
    "Templates, best first: each is found on the film of every other one and that one on its own; "
    "there and back again, its corners should be where they were. Errors in % of the template's "
    "width; a median over its partners, so that a bad one among them does not count."
)
PAIRS: Final = "Round trips from the row's template to the column's and back, in % of its width."

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Cycles:
    """Errors between N templates, in % of a template's width; NaN where two are the same."""

    round_trip: Floats  # (N, N): of row a, to column b and back
    triangle: Floats  # (N, N, N): from a by way of b to c, and straight back


def rank_templates(
    folder: Path,
    *,
    films: Sequence[str] = (),
    truth: Truth | None = None,
    method: str = "search",
    paper: bool = False,
    device: str = "cpu",
    report: Callable[[str], None] = lambda name: None,
) -> list[Table]:
    """Search every template on the films of all others.

    Args:
        folder: of annotations, *.json.
        films: more films to search; one that cannot be read is left out.
        truth: labels of the films; else the plateau's margins in the annotations, if they are
            there, are the truth.
        method: as `Detector.load` has it, as are `paper` and `device`.
        report: told the name of each template when its search begins.

    Returns:
        The templates, best first, and the errors of all pairs.

    Raises:
        SettingsError: fewer than three templates.
    """
    drawn = _annotations(folder)
    films = [_path(film) for film in films]
    everywhere = list(dict.fromkeys([*(_path(each.film) for each in drawn.values()), *films]))
    trials = []
    for name, annotation in drawn.items():
        report(name)
        detector = Detector.load(
            template=annotation, method=method, paper=paper, device=device, check=False
        )
        outcomes = zip(everywhere, detector.detect_each(everywhere), strict=True)
        found = {film: each.detections for film, each in outcomes if each.failure is None}
        trials.append(Trial(name, found))
    return _tables(list(drawn.values()), trials, films, truth)


def cycles(boxes: Floats, found: Floats) -> Cycles:
    """Follow the maps between templates around.

    From a to b and back again every point of a should be where it was, however differently the
    two were drawn; and from a to c directly as by way of b. No labels are needed for that.

    Args:
        boxes: (N, 3, 3), from each template's [-1, 1]^2 to its own film.
        found: (N, N, 3, 3), from that of row a to where it was found on the film of column b.
    """
    between = np.linalg.inv(boxes) @ found  # (N, N, 3, 3), from a to b
    there_and_back = between.swapaxes(0, 1) @ between
    aspect = _aspect(boxes)
    round_trip = _strayed(there_and_back, aspect[:, None])
    by_another = between[None] @ between[:, :, None]  # (a, b, c): from a to b, then to c
    triangle = _strayed(np.linalg.inv(between)[:, None] @ by_another, aspect[:, None, None])
    same = np.eye(len(boxes), dtype=bool)
    round_trip[same] = np.nan
    triangle[same[:, :, None] | same[None] | same[:, None]] = np.nan
    return Cycles(round_trip, triangle)


def disagreement(found: Floats) -> Floats:
    """How differently two templates lie on K knees: (N, N), in % of the first one's width.

    Two templates that were drawn differently always lie differently; what counts is how far the
    map from one to the other strays, from knee to knee, from its median.

    Args:
        found: (N, K, 3, 3), from each template's [-1, 1]^2 to where it was found.
    """
    between = np.linalg.inv(found)[None] @ found[:, None]  # (a, b, K), from a to b
    usual = np.median(between, axis=2, keepdims=True)
    aspect = np.median(_aspect(found), axis=-1)
    spread: Floats = np.median(_strayed(np.linalg.inv(usual) @ between, aspect[:, None, None]), -1)
    np.fill_diagonal(spread, np.nan)
    return spread


def placed(corners: Floats) -> Floats:
    """The map (..., 3, 3) of [-1, 1]^2 onto corners (..., 4, 2)."""
    matrix = np.zeros((*corners.shape[:-2], 3, 3))
    matrix[..., :2, 0] = (corners[..., 1, :] - corners[..., 0, :]) / 2
    matrix[..., :2, 1] = (corners[..., 3, :] - corners[..., 0, :]) / 2
    matrix[..., :2, 2] = corners.mean(-2)
    matrix[..., 2, 2] = 1
    return matrix


def _annotations(folder: Path) -> dict[str, Annotation]:
    """By the name of their file."""
    files = sorted(folder.glob("*.json"))
    if len(files) < FEWEST:
        raise SettingsError(
            f"{folder}: {len(files)} templates; expected {FEWEST} or more, each a .json file; "
            "draw them with kneematch annotate"
        )
    return {file.name: load_annotation(file) for file in files}


def _tables(
    drawn: Sequence[Annotation], trials: Sequence[Trial], films: Sequence[str], truth: Truth | None
) -> list[Table]:
    knees = [[_on(trial, each) for each in drawn] for trial in trials]  # row a on the film of b
    found = placed(np.array([[knee.corners for knee in row] for row in knees]))
    errors = cycles(np.stack([_box(each) for each in drawn]), found)
    names = [trial.method for trial in trials]
    columns, rows = COLUMNS, [(name, *_cells(errors, knees, k)) for k, name in enumerate(names)]
    for added, cells in (
        ((DISAGREEMENT,), _on_films(trials, films)),
        (LABELLED, _accuracy(names, *_known(drawn, trials, knees, truth))),
    ):
        if cells:
            columns += added
            rows = [(*row, *more) for row, more in zip(rows, cells, strict=True)]
    best_first = sorted(range(len(names)), key=lambda k: float(np.nanmedian(errors.round_trip[k])))
    return [
        Table("templates", RANKED, columns, tuple(rows[k] for k in best_first)),
        _pairs(names, errors.round_trip, best_first),
    ]


def _pairs(names: Sequence[str], round_trip: Floats, order: Sequence[int]) -> Table:
    columns = Column("template"), *(Column(names[k], digits(2)) for k in order)
    rows = tuple(
        (names[a], *(None if a == b else float(round_trip[a, b]) for b in order)) for a in order
    )
    return Table("template_pairs", PAIRS, columns, rows)


def _cells(errors: Cycles, knees: Sequence[Sequence[Detection]], k: int) -> tuple[Cell, ...]:
    """How consistent template k is with the others."""
    losses = [knee.loss for b, knee in enumerate(knees[k]) if b != k]
    return (
        float(np.nanmedian(errors.round_trip[k])),
        float(np.nanmax(errors.round_trip[k])),
        float(np.nanmedian(errors.triangle[k])),
        float(np.mean(losses)),
    )


def _on_films(trials: Sequence[Trial], films: Sequence[str]) -> list[tuple[Cell, ...]]:
    """How far each template strays from the others on more films; nothing without."""
    common = set(common_films(trials))
    corners = [
        [knee.corners for film in films if film in common for knee in trial.found[film]]
        for trial in trials
    ]
    if not corners[0]:
        return []
    between = disagreement(placed(np.array(corners)))
    return [(float(value),) for value in np.nanmedian(between, axis=1)]


def _known(
    drawn: Sequence[Annotation],
    trials: Sequence[Trial],
    knees: Sequence[Sequence[Detection]],
    truth: Truth | None,
) -> tuple[list[Trial], Truth | None]:
    """What is compared with the truth: all but a template's own film."""
    if truth is not None:
        others = [
            Trial(
                trial.method, {f: found for f, found in trial.found.items() if f != _path(own.film)}
            )
            for trial, own in zip(trials, drawn, strict=True)
        ]
        return others, truth
    marked = [k for k, each in enumerate(drawn) if set(MARGINS) <= set(each.landmarks)]
    if len(marked) < FEWEST:
        return [], None
    # Films by number, since two in different folders may have one name.
    labels = tuple(_labelled(drawn[b], str(b), knees[b][b].side) for b in marked)
    found = [
        Trial(trials[a].method, {str(b): (knees[a][b],) for b in marked if b != a}) for a in marked
    ]
    return found, Truth(Path(), labels, 0)


def _labelled(drawn: Annotation, film: str, side: str) -> KnownKnee:
    left, right = sorted(drawn.landmarks[name] for name in MARGINS)
    return KnownKnee(film, side, left, right, "template")


def _accuracy(
    names: Sequence[str], trials: Sequence[Trial], truth: Truth | None
) -> list[tuple[Cell, ...]]:
    """Margin error, IoU and recall of each template; nothing without truth."""
    if truth is None:
        return []
    known = {score.method: score for score in scores(trials, truth)}
    return [_measured(known.get(name)) for name in names]


def _measured(score: Score | None) -> tuple[Cell, ...]:
    if score is None or not len(score.iou):
        return (None,) * len(LABELLED)
    found = score.margin_percent[~score.missed]
    return (
        float(np.median(found)) if len(found) else None,
        float(score.iou.mean()),
        float((score.iou >= GOOD_IOU).mean()),
    )


def _on(trial: Trial, drawn: Annotation) -> Detection:
    """The knee that was annotated, or the only one of its film."""
    knees = trial.found[_path(drawn.film)]
    return next((knee for knee in knees if knee.side == drawn.side), knees[0])


def _path(film: str | Path) -> str:
    """The same for one film, however it is named."""
    return os.path.normpath(Path(film).absolute())


def _box(drawn: Annotation) -> Floats:
    """The map of [-1, 1]^2 onto the box that was drawn; the left half is mirrored."""
    matrix: Floats = rectangle_to_film(*drawn.fine, mirrored=drawn.side == "left").numpy()
    return matrix


def _aspect(matrices: Floats) -> Floats:
    """Height over width of what (..., 3, 3) map [-1, 1]^2 onto."""
    lengths = np.linalg.norm(matrices[..., :2, :2], axis=-2)
    ratio: Floats = lengths[..., 1] / lengths[..., 0]
    return ratio


def _strayed(maps: Floats, aspect: Floats) -> Floats:
    """How far maps (..., 3, 3) of a template to itself take its corners, in % of its width."""
    corners = np.array([(x, y, 1.0) for x, y in CORNERS]).T  # (3, 4)
    x, y = np.moveaxis(((maps - np.eye(3)) @ corners)[..., :2, :], -2, 0)  # (..., 4) each
    apart: Floats = 100 * np.hypot(x / 2, y / 2 * aspect[..., None]).mean(-1)
    return apart
