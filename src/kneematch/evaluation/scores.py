"""Errors of detections against labels, and tables of accuracy and of the review flag."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.stats import bootstrap

from kneematch.errors import SettingsError
from kneematch.evaluation.labels import SQUARE_WIDTHS, LabelledKnee, Labels
from kneematch.evaluation.method_runs import MethodRun
from kneematch.evaluation.tables import Table, columns, mean
from kneematch.films.annotation import PLATEAU_MARGINS, find_plateau_margins
from kneematch.films.csv_text import Cell
from kneematch.films.radiograph import Point
from kneematch.knee.detection import Detection

GOOD_IOU: Final = 0.75
ALL: Final = "all"
RESAMPLES: Final = 2000  # samples of the bootstrap
SEED: Final = 0  # seed of the bootstrap, so that an evaluation can be repeated

ACCURACY: Final = columns(
    *("method", "source", "knees:0", "missed:0", "mean IoU:3", "IoU, low:3", "IoU, high:3"),
    *("recall at 0.5:3", "recall at 0.75:3", "recall at 0.75, low:3", "recall at 0.75, high:3"),
    *("recall at 0.9:3", "centre, median %:2", "centre, 95th %:2", "margins, median %:2"),
    *("margins, 95th %:2", "margins, median mm:2"),
)
RELIABILITY: Final = columns(
    *("method", "good areas:0", "good to review:0", "share of good:3"),
    *("bad areas:0", "bad to review:0", "share of bad:3"),
)
LIMITS_MM: Final = (1.0, 1.5, 2.0, 2.5)  # as in KNEEL (Tiulpin et al., ICCVW 2019)
DISTANCES: Final = columns(
    "method", "margins:0", *(f"within {limit:g} mm:3" for limit in LIMITS_MM), "median mm:2"
)


@dataclass(frozen=True, slots=True)
class KneeScore:
    """How far one labelled knee was found from its label; errors are NaN where it was missed."""

    film: str  # path
    side: str
    source: str
    missed: bool = True
    iou: float = 0.0  # overlap of the squares around both plateaus
    centre_percent: float = math.nan  # distance of the plateaus' midpoints, in % of the width
    margin_percent: float = math.nan  # mean distance of both margins, in % of the width
    margins_mm: tuple[float, ...] = ()  # distance of each margin, where the film has spacing
    review: bool = False


Scores = Mapping[str, Sequence[KneeScore]]  # by method


def score_knees(runs: Sequence[MethodRun], labels: Labels) -> dict[str, list[KneeScore]]:
    """Compare every method's detections with the labels of the films that it was run on.

    Returns:
        One score per labelled knee, by method.

    Raises:
        SettingsError: no film is labelled, or detections lack the plateau's two margins.
    """
    matched = labels.match([film for run in runs for film in (*run.found, *run.failed)])
    return {
        run.method: [
            _score(film, knee, _find(knee, knees, run.found.get(film, ())))
            for film, knees in matched.items()
            if film in run.found or film in run.failed
            for knee in knees
        ]
        for run in runs
    }


def require_margins(landmarks: Mapping[str, Point]) -> tuple[Point, Point]:
    """Return both margins of a tibial plateau, the picture's left one first.

    If there are only two landmarks, they are taken, whatever their names are; with neither,
    SettingsError is raised.
    """
    found = find_plateau_margins(landmarks) or tuple(landmarks.values())
    if len(found) != 2:
        raise SettingsError(
            f"The template lacks the landmarks {' and '.join(PLATEAU_MARGINS)}, which are compared "
            "with the labels. Mark them with `kneematch annotate`, or leave out --truth."
        )
    left, right = sorted(found)
    return left, right


def plateau_iou(one: tuple[Point, Point], other: tuple[Point, Point]) -> float:
    """Return the intersection over union of the squares around two plateaus."""
    (ax0, ay0, ax1, ay1), (bx0, by0, bx1, by1) = _square(*one), _square(*other)
    width, height = min(ax1, bx1) - max(ax0, bx0), min(ay1, by1) - max(ay0, by0)
    both = max(width, 0.0) * max(height, 0.0)
    return both / ((ax1 - ax0) * (ay1 - ay0) + (bx1 - bx0) * (by1 - by0) - both)


def accuracy_table(scores: Scores, left_out: int) -> Table:
    """Return IoU, recall and errors by method and source of the films.

    `left_out` is the number of labels that are flagged as unusable, for the caption.
    """
    caption = (
        "Detected against labelled knees: squares around the tibial plateau, 1.5 times as wide as "
        "the plateau. Errors of the plateau's midpoint and of its margins are in % of its width. "
        "Low and high: 95 % interval of a bootstrap over films. A missed knee has an IoU of 0 and "
        "no error."
    )
    if left_out:
        caption += f" {left_out} knees whose labels are flagged are left out."
    rows: list[tuple[Cell, ...]] = []
    for method, knees in scores.items():
        sources = sorted({knee.source for knee in knees})
        for source in sources if len(sources) > 1 else ():
            chosen = [knee for knee in knees if knee.source == source]
            rows.append((method, source, *_accuracy(chosen)))
        rows.append((method, ALL, *_accuracy(knees)))
    return Table("accuracy", caption, ACCURACY, tuple(rows))


def distance_tables(scores: Scores) -> list[Table]:
    """Return a table of the margins within some millimetres of their labels, if any are known."""
    rows: list[tuple[Cell, ...]] = []
    for method, knees in scores.items():
        found = [mm for knee in knees for mm in knee.margins_mm]
        count = len(found) + 2 * sum(knee.missed for knee in knees)
        if found:
            shares = [sum(mm <= limit for mm in found) / count for limit in LIMITS_MM]
            rows.append((method, count, *shares, float(np.median(found))))
    caption = (
        "Share of the plateaus' margins within some millimetres of their labels; those of missed "
        "knees are not."
    )
    return [Table("distances", caption, DISTANCES, tuple(rows))] if rows else []


def reliability_table(scores: Scores) -> Table:
    """Count the good and the bad areas that are flagged for review, by method."""
    caption = (
        f"How many good areas, and how many bad ones (IoU below {GOOD_IOU}), are flagged for "
        "review. Missed knees have no area."
    )
    rows: list[tuple[Cell, ...]] = []
    for method, knees in scores.items():
        counts: list[Cell] = []
        for bad in (False, True):
            flags = [k.review for k in knees if not k.missed and (k.iou < GOOD_IOU) == bad]
            counts += [len(flags), sum(flags), mean(flags)]
        rows.append((method, *counts))
    return Table("reliability", caption, RELIABILITY, tuple(rows))


def bootstrap_mean(
    films: Sequence[str], values: Sequence[float]
) -> tuple[float | None, float | None]:
    """Return both ends of the 95 % percentile interval of a mean, by a clustered bootstrap.

    Whole films are resampled, since both knees of a film tend to be right or wrong together. Given
    are the film of each knee and its value, (N,) each; fewer than two films have no interval.
    """
    names, film = np.unique(films, return_inverse=True)
    if len(names) < 2:
        return None, None

    def ratio(sums: NDArray[Any], counts: NDArray[Any], axis: int) -> NDArray[Any]:
        return np.asarray(sums.sum(axis) / counts.sum(axis))

    totals = np.bincount(film, np.asarray(values, np.float64)), np.bincount(film)
    options = {"method": "percentile", "n_resamples": RESAMPLES, "random_state": SEED}
    interval = bootstrap(totals, ratio, paired=True, **options).confidence_interval
    return float(interval.low), float(interval.high)


def _find(
    label: LabelledKnee, labels: Sequence[LabelledKnee], found: Sequence[Detection]
) -> Detection | None:
    """Return the detection of a labelled knee, given all labels and detections of its film.

    It is the one on its side. The only knee of a film may be labelled by the half in which it lies;
    detections name it after the half in which it would stand on a film of both.
    """
    alone = len(labels) == len(found) == 1
    for detection in found:
        if detection.side == label.side or (alone and _overlap(detection, label) > 0):
            return detection
    return None


def _overlap(detection: Detection, label: LabelledKnee) -> float:
    return plateau_iou(require_margins(detection.landmarks), (label.left, label.right))


def _score(film: str, label: LabelledKnee, detection: Detection | None) -> KneeScore:
    if detection is None:
        return KneeScore(film, label.side, label.source)
    left, right = require_margins(detection.landmarks)
    percent = 100 / math.dist(label.left, label.right)
    centre = math.dist(_middle(left, right), _middle(label.left, label.right))
    margins = math.dist(left, label.left), math.dist(right, label.right)
    mm = detection.mm_per_px
    return KneeScore(
        film,
        label.side,
        label.source,
        missed=False,
        iou=_overlap(detection, label),
        centre_percent=centre * percent,
        margin_percent=math.nan if label.is_box else sum(margins) / 2 * percent,
        margins_mm=() if mm is None or label.is_box else tuple(mm * each for each in margins),
        review=detection.needs_review,
    )


def _square(left: Point, right: Point) -> tuple[float, float, float, float]:
    """Return the square around a plateau: x0, y0, x1, y1."""
    x, y = _middle(left, right)
    half = SQUARE_WIDTHS / 2 * math.dist(left, right)
    return x - half, y - half, x + half, y + half


def _middle(left: Point, right: Point) -> Point:
    return (left[0] + right[0]) / 2, (left[1] + right[1]) / 2


def _accuracy(knees: Sequence[KneeScore]) -> Iterator[Cell]:
    """Yield the cells of ACCURACY from the third on."""
    films, iou = [knee.film for knee in knees], [knee.iou for knee in knees]
    yield len(knees)
    yield sum(knee.missed for knee in knees)
    yield mean(iou)
    yield from bootstrap_mean(films, iou)
    for least in (0.5, GOOD_IOU, 0.9):
        reached = [value >= least for value in iou]
        yield mean(reached)
        if least == GOOD_IOU:
            yield from bootstrap_mean(films, reached)
    for errors in ([k.centre_percent for k in knees], [k.margin_percent for k in knees]):
        yield quantile(errors, 0.5)
        yield quantile(errors, 0.95)
    yield quantile([sum(knee.margins_mm) / 2 for knee in knees if knee.margins_mm], 0.5)


def quantile(errors: Sequence[float], share: float) -> float | None:
    """Return a quantile of the errors that are known, not NaN; None if none is."""
    known = [error for error in errors if math.isfinite(error)]
    return float(np.quantile(known, share)) if known else None
