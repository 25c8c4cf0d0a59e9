"""Truth: where the knees are known to be, and how far what was found lies from there."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path, PurePath
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kneematch.detection.detection import Detection, Point
from kneematch.errors import SettingsError
from kneematch.evaluation.method_run import Trial

AREA: Final = 1.5  # a knee's area is a square, so many widths of its plateau wide
LEFT_OUT: Final = ("implant", "doubtful", "corrupt", "notbilateral", "cut")  # flags of labels
MARGINS: Final = ("plateau_left", "plateau_right")  # landmarks of the template
SIDES: Final = {"l": "left", "r": "right", "left": "left", "right": "right"}
OTHER: Final = "other"  # the source of films whose names tell none
LABEL_COLUMNS: Final = ("id", "knee", "x1", "y1", "x2", "y2")
PHANTOM_COLUMNS: Final = (
    "film",
    "side",
    *(f"{name}_{axis}_px" for name in MARGINS for axis in ("x", "y")),
    "negative",
    "hardware",
)

Floats = NDArray[np.float64]
Row = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class KnownKnee:
    """The outermost margins of a tibial plateau, in film pixels."""

    film: str  # its file's name, with or without suffix
    side: str  # "left" or "right" half of the picture
    left: Point  # the picture's left margin
    right: Point
    source: str  # the kind of film


@dataclass(frozen=True, slots=True)
class Truth:
    """All labelled knees of a file."""

    path: Path
    knees: tuple[KnownKnee, ...]
    left_out: int  # knees whose flag says that they cannot be judged

    def match(self, films: Sequence[str]) -> dict[str, tuple[KnownKnee, ...]]:
        """The knees of each film that has some, by its path; folders do not matter.

        Raises:
            SettingsError: no film is labelled, or it is not clear which one is.
        """
        named: dict[str, list[str]] = {}  # films by what a label may call them
        for film in dict.fromkeys(films):
            path = PurePath(film)
            for name in {path.name, path.stem}:
                named.setdefault(name, []).append(film)
        matched: dict[str, dict[str, KnownKnee]] = {}
        for knee in self.knees:
            for film in self._meant(knee, named):
                if knee.side in matched.setdefault(film, {}):
                    raise SettingsError(
                        f"{self.path}: {film}, {knee.side}: labelled twice; expected one row a "
                        "knee; remove the other"
                    )
                matched[film][knee.side] = knee
        if not matched:
            raise SettingsError(
                f"{self.path}: no film is labelled in it; expected names of films, as "
                f"{PurePath(films[0]).stem if films else 'film'}; check both"
            )
        return {film: tuple(knees.values()) for film, knees in matched.items()}

    def _meant(self, knee: KnownKnee, named: Mapping[str, list[str]]) -> list[str]:
        """The film of a knee, or none."""
        films = named.get(knee.film, [])
        if len(films) > 1:
            raise SettingsError(
                f"{self.path}: {knee.film} may be {films[0]} or {films[1]}; expected one film of "
                "this name; evaluate their folders one by one, or rename them"
            )
        return films


@dataclass(frozen=True, slots=True, eq=False)
class Score:
    """How far the knees that one method found lie from K labelled ones; NaN where missed."""

    method: str
    film: NDArray[np.str_]  # (K,) path
    side: NDArray[np.str_]  # (K,)
    source: NDArray[np.str_]  # (K,)
    missed: NDArray[np.bool_]  # (K,) not found at all
    iou: Floats  # (K,) of the areas; 0 where missed
    centre_percent: Floats  # (K,) distance of the margins' midpoints, in % of the plateau's width
    margin_percent: Floats  # (K,) mean distance of both margins, likewise
    centre_mm: Floats  # (K,) NaN also where the film has no spacing
    margin_mm: Floats  # (K,)
    loss: Floats  # (K,)
    review: NDArray[np.bool_]  # (K,)
    reason: NDArray[np.str_]  # (K,)

    def only(self, chosen: NDArray[np.bool_]) -> "Score":
        """Some of the knees."""
        arrays = {item.name: getattr(self, item.name) for item in fields(self)}
        method = arrays.pop("method")
        return Score(method, **{name: values[chosen] for name, values in arrays.items()})

    def by_film(self, values: Floats) -> list[list[float]]:
        """Values (K,) in groups, the knees of a film together."""
        _, row = np.unique(self.film, return_inverse=True)
        order = np.argsort(row, kind="stable")
        groups = np.split(values[order], np.flatnonzero(np.diff(row[order])) + 1)
        return [group.tolist() for group in groups]


def load_truth(path: Path) -> Truth:
    """Read labels: `id, knee, x1, y1, x2, y2[, flag][, source]`, or the truth.csv of phantoms.

    Raises:
        SettingsError: the file is not there, or is neither.
    """
    names, rows = _table(path)
    if set(LABEL_COLUMNS) <= names:
        read = _labelled
    elif set(PHANTOM_COLUMNS) <= names:
        read = _of_a_phantom
    else:
        raise SettingsError(
            f"{path}: columns {', '.join(sorted(names)) or 'none'}; expected "
            f"{', '.join(LABEL_COLUMNS)} and perhaps flag, or those of a truth.csv that kneematch "
            "synth wrote; check the header"
        )
    knees, left_out = [], 0
    for line, row in rows:
        try:
            knee = read(row)
        except (KeyError, ValueError) as error:
            raise SettingsError(
                f"{path}, line {line}: {error}; expected a film, a side and two points that "
                "differ; mend the row"
            ) from error
        if knee is None:
            left_out += 1
        else:
            knees.append(knee)
    if not knees:
        raise SettingsError(f"{path}: no knee to compare with; expected a row each; check the file")
    return Truth(path, tuple(knees), left_out)


def scores(trials: Sequence[Trial], truth: Truth) -> list[Score]:
    """How far each method's knees are from the labelled ones on the films that it was given.

    Raises:
        SettingsError: no film is labelled, or areas have no two points to compare.
    """
    films = dict.fromkeys(film for trial in trials for film in (*trial.found, *trial.failed))
    matched = truth.match(list(films))
    return [_score(trial, matched) for trial in trials]


def margins_of(found: Detection) -> tuple[Point, Point]:
    """The margins of the plateau that a detection carries, the picture's left one first.

    Raises:
        SettingsError: it has none.
    """
    points = found.landmarks
    names = MARGINS if set(MARGINS) <= set(points) else tuple(points)
    if len(names) != len(MARGINS):
        raise SettingsError(
            f"areas with {len(points)} landmarks; expected both margins of the tibial plateau, "
            f"{' and '.join(MARGINS)}, to compare with the truth; mark them on the template "
            "(kneematch annotate), or leave out --truth"
        )
    left, right = sorted(points[name] for name in names)  # they swap in the mirrored half
    return left, right


def overlap(one: tuple[Point, Point], other: tuple[Point, Point]) -> float:
    """Intersection over union of the areas around two plateaus."""
    (ax0, ay0, ax1, ay1), (bx0, by0, bx1, by1) = _area(*one), _area(*other)
    width, height = min(ax1, bx1) - max(ax0, bx0), min(ay1, by1) - max(ay0, by0)
    both = max(width, 0.0) * max(height, 0.0)
    return both / ((ax1 - ax0) * (ay1 - ay0) + (bx1 - bx0) * (by1 - by0) - both)


def _area(left: Point, right: Point) -> tuple[float, float, float, float]:
    """The square around a plateau: x0, y0, x1, y1."""
    x, y = _middle(left, right)
    half = AREA / 2 * math.dist(left, right)
    return x - half, y - half, x + half, y + half


def _middle(left: Point, right: Point) -> Point:
    return (left[0] + right[0]) / 2, (left[1] + right[1]) / 2


def _score(trial: Trial, matched: Mapping[str, tuple[KnownKnee, ...]]) -> Score:
    given = {*trial.found, *trial.failed}
    rows = [
        (film, knee, _on_side(trial.found.get(film, ()), knee.side))
        for film, knees in matched.items()
        if film in given
        for knee in knees
    ]
    measured = np.array([_measured(knee, found) for _, knee, found in rows]).reshape(-1, 6)
    iou, centre, margin, centre_mm, margin_mm, loss = measured.T
    return Score(
        method=trial.method,
        film=np.array([film for film, _, _ in rows], np.str_),
        side=np.array([knee.side for _, knee, _ in rows], np.str_),
        source=np.array([knee.source for _, knee, _ in rows], np.str_),
        missed=np.array([found is None for _, _, found in rows], np.bool_),
        iou=iou,
        centre_percent=centre,
        margin_percent=margin,
        centre_mm=centre_mm,
        margin_mm=margin_mm,
        loss=loss,
        review=np.array([_to_review(found) for _, _, found in rows], np.bool_),
        reason=np.array([found.reason if found else "" for _, _, found in rows], np.str_),
    )


def _on_side(knees: Sequence[Detection], side: str) -> Detection | None:
    return next((found for found in knees if found.side == side), None)


def _to_review(found: Detection | None) -> bool:
    return found is not None and found.needs_review


def _measured(knee: KnownKnee, found: Detection | None) -> tuple[float, ...]:
    """IoU, centre and margin error in % and in mm, loss."""
    if found is None:
        return (0.0, *[math.nan] * 5)
    left, right = margins_of(found)
    percent = 100 / math.dist(knee.left, knee.right)
    mm = math.nan if found.mm_per_px is None else found.mm_per_px
    centre = math.dist(_middle(left, right), _middle(knee.left, knee.right))
    margin = (math.dist(left, knee.left) + math.dist(right, knee.right)) / 2
    iou = overlap((left, right), (knee.left, knee.right))
    return iou, centre * percent, margin * percent, centre * mm, margin * mm, found.loss


def _table(path: Path) -> tuple[set[str], list[tuple[int, Row]]]:
    """The columns of a CSV file, and its rows with their lines."""
    try:
        reader = csv.DictReader(io.StringIO(path.read_text("utf-8-sig"), newline=""), restval="")
        names = set(reader.fieldnames or ())
        rows: list[tuple[int, Row]] = [(reader.line_num, row) for row in reader]
    except (OSError, ValueError, csv.Error) as error:
        what = error.strerror if isinstance(error, OSError) else error
        raise SettingsError(
            f"{path}: {what}; expected labels of knees as CSV; check the path"
        ) from error
    return names, rows


def _labelled(row: Row) -> KnownKnee | None:
    """A row of labels; None for a knee without points or with a flag that forbids to judge it."""
    if not row["x1"].strip() or any(word in row.get("flag", "") for word in LEFT_OUT):
        return None
    _, _, rest = row["id"].partition("-")
    word = rest.split("-")[0]  # knee in dev-knee-03
    source = row.get("source") or (word if word.isalpha() else OTHER)
    return _known(row["id"], row["knee"], [row[name] for name in LABEL_COLUMNS[2:]], source)


def _of_a_phantom(row: Row) -> KnownKnee:
    """A row of truth.csv."""
    source = "negative" if row["negative"] == "1" else "ordinary"
    source = "implant" if row["hardware"] else source
    return _known(row["film"], row["side"], [row[name] for name in PHANTOM_COLUMNS[2:6]], source)


def _known(film: str, side: str, points: Sequence[str], source: str) -> KnownKnee:
    x1, y1, x2, y2 = map(float, points)
    left, right = sorted([(x1, y1), (x2, y2)])
    if not (film and 0 < math.dist(left, right) < math.inf):
        raise ValueError(f"{film or 'no film'} and points {left} and {right}")
    if side.strip().lower() not in SIDES:
        raise ValueError(f"side {side!r}")
    return KnownKnee(PurePath(film).name, SIDES[side.strip().lower()], left, right, source)
