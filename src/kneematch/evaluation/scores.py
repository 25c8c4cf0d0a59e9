"""What methods found, its losses and errors, and the tables of both (the paper's Tables 1, 2)."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import bootstrap, sem

from kneematch.errors import SettingsError
from kneematch.evaluation import GRID
from kneematch.evaluation.labels import LabelledKnee, Labels
from kneematch.films.annotation import PLATEAU_MARGINS, find_plateau_margins
from kneematch.films.csv_text import Cell
from kneematch.films.radiograph import Point
from kneematch.knee.detection import Detection
from kneematch.run.outputs.tables import Columns

SQUARE_WIDTHS: Final = 1.5  # side of the square that stands for a knee, in widths of its plateau
RESAMPLES: Final = 2000  # samples of the bootstrap
SEED: Final = 0  # seed of the bootstrap, so that an evaluation can be repeated

LOSSES: Final[Columns] = {
    "method": None,
    "films": 0,
    "left + right loss": 3,
    "standard error": 4,
}
ACCURACY: Final[Columns] = {
    **dict.fromkeys(("method", "source")),
    **dict.fromkeys(("knees", "missed"), 0),
    **dict.fromkeys(("mean IoU", "IoU, low", "IoU, high", "recall at 0.5", "recall at 0.75"), 3),
    "recall at 0.9": 3,
    **dict.fromkeys(("margins, median %", "margins, 95th %", "margins, median mm"), 2),
}


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells under columns."""

    name: str  # name of its CSV file
    caption: str
    columns: Columns  # decimals by title, None for text; CSV has numbers in full
    rows: tuple[tuple[Cell, ...], ...]

    def shown(self) -> list[list[str]]:
        """Return all cells as text."""
        decimals = self.columns.values()
        return [[_text(*pair) for pair in zip(row, decimals, strict=True)] for row in self.rows]


def _text(cell: Cell, decimals: int | None) -> str:
    """Return a cell as text; a number that is not known is a dash."""
    if decimals is None or cell is None:
        return str(cell or "") if decimals is None else "-"
    return f"{cell:.{decimals}f}"


@dataclass(frozen=True, slots=True, eq=False)
class MethodRun:
    """What one method found; a film is either in `found` or in `failed`."""

    method: str
    found: Mapping[str, tuple[Detection, ...]]  # by the film's path
    failed: Mapping[str, str] = field(default_factory=dict)  # reasons by the film's path


def loss_table(runs: Sequence[MethodRun], warning: str = "") -> Table:
    """Return each method's mean loss.

    Only films on which all methods found both knees count; the grid search may have been run on
    fewer films than the others. `warning` is added to the caption.
    """
    losses = {run.method: film_losses(run) for run in runs}
    full = [each for method, each in losses.items() if method != GRID] or list(losses.values())
    films = set.intersection(*map(set, full))
    caption = (
        "Mean of left + right loss. The losses of all methods are computed alike: the paper's loss "
        "at each area in the film's half images of 800 x 500 pixels, whichever image the method "
        "itself searches. A method that minimises this loss may have a lower loss than one that "
        f"does not, and yet larger errors. {warning}"
    )
    rows = []
    for run in runs:
        counted = [loss for film, loss in losses[run.method].items() if film in films]
        error = float(sem(counted)) if len(counted) > 1 else None
        rows.append((run.method, len(counted), mean(counted), error))
    return Table("losses", caption.strip(), LOSSES, tuple(rows))


def film_losses(run: MethodRun) -> dict[str, float]:
    """Return left + right loss of every film that shows both knees."""
    losses = {
        film: sum(knee.loss for knee in knees)
        for film, knees in run.found.items()
        if len(knees) == 2
    }
    return {film: loss for film, loss in losses.items() if math.isfinite(loss)}


def mean(values: ArrayLike) -> float | None:
    """Return the mean of numbers or flags (N,); None without any."""
    given = np.asarray(values, np.float64)
    return float(given.mean()) if len(given) else None


def quantile(errors: Sequence[float], share: float) -> float | None:
    """Return a quantile of the errors that are known, not NaN; None if none is."""
    known = [error for error in errors if math.isfinite(error)]
    return float(np.quantile(known, share)) if known else None


@dataclass(frozen=True, slots=True)
class KneeScore:
    """How far one labelled knee was found from its label; errors are NaN where it was missed."""

    film: str  # path
    source: str
    missed: bool = True
    iou: float = 0.0  # overlap of the squares around both plateaus
    margin_percent: float = math.nan  # mean distance of both margins, in % of the width
    margin_mm: float = math.nan  # the same in mm, where the film has spacing


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


def _square(left: Point, right: Point) -> tuple[float, float, float, float]:
    """Return the square around a plateau: x0, y0, x1, y1."""
    x, y = (left[0] + right[0]) / 2, (left[1] + right[1]) / 2
    half = SQUARE_WIDTHS / 2 * math.dist(left, right)
    return x - half, y - half, x + half, y + half


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
        return KneeScore(film, label.source)
    left, right = require_margins(detection.landmarks)
    margins = math.dist(left, label.left), math.dist(right, label.right)
    margin = sum(margins) / 2
    return KneeScore(
        film,
        label.source,
        missed=False,
        iou=_overlap(detection, label),
        margin_percent=100 * margin / math.dist(label.left, label.right),
        margin_mm=margin * (detection.mm_per_px or math.nan),
    )


def accuracy_table(scores: Scores, left_out: int) -> Table:
    """Return a table of IoU, recall and errors.

    `left_out` is the number of labels that are flagged as unusable, for the caption.
    """
    caption = (
        "Detected against labelled knees: squares around the tibial plateau, 1.5 times as wide as "
        "the plateau. Errors of its margins are in % of its width. "
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
        rows.append((method, "all", *_accuracy(knees)))
    return Table("accuracy", caption, ACCURACY, tuple(rows))


def _accuracy(knees: Sequence[KneeScore]) -> Iterator[Cell]:
    """Yield the cells of ACCURACY from the third on."""
    films, iou = [knee.film for knee in knees], [knee.iou for knee in knees]
    yield len(knees)
    yield sum(knee.missed for knee in knees)
    yield mean(iou)
    yield from bootstrap_mean(films, iou)
    for least in (0.5, 0.75, 0.9):
        yield mean([value >= least for value in iou])
    for share in (0.5, 0.95):
        yield quantile([knee.margin_percent for knee in knees], share)
    yield quantile([knee.margin_mm for knee in knees], 0.5)


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
