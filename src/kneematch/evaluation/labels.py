"""Labels: where the tibial plateaus of films are known to be, from a CSV file."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Final

from kneematch.errors import SettingsError
from kneematch.films.annotation import PLATEAU_MARGINS
from kneematch.films.files import read_text
from kneematch.films.radiograph import Point

UNUSABLE: Final = ("implant", "doubtful", "corrupt", "notbilateral", "cut")  # flags of labels
SIDE_NAMES: Final = {"l": "left", "r": "right", "left": "left", "right": "right"}
OTHER: Final = "other"  # source of films of which none is given
LABEL_COLUMNS: Final = ("id", "knee", "x1", "y1", "x2", "y2")
PHANTOM_COLUMNS: Final = (
    *("film", "side"),
    *(f"{name}_{axis}_px" for name in PLATEAU_MARGINS for axis in "xy"),
    *("negative", "implant"),
)


@dataclass(frozen=True, slots=True)
class LabelledKnee:
    """The outermost margins of a tibial plateau, as (x, y) in film pixels."""

    film: str  # file name, with or without suffix
    side: str  # half of the picture, "left" or "right"
    left: Point  # the picture's left margin
    right: Point
    source: str  # group of films that the tables list separately


@dataclass(frozen=True, slots=True)
class Labels:
    """All labelled knees of a file."""

    path: Path
    knees: tuple[LabelledKnee, ...]
    left_out: int  # labels that are flagged as unusable

    def match(self, films: Sequence[str]) -> dict[str, tuple[LabelledKnee, ...]]:
        """Return the labelled knees of each film by its path; films without labels are left out.

        Labels name films by their file names, with or without suffix, in whichever folder.

        Raises:
            SettingsError: no film is labelled, a name fits two films, or a knee has two labels.
        """
        named: dict[str, list[str]] = {}  # paths by the names that a label may use
        for film in dict.fromkeys(films):
            for name in {PurePath(film).name, PurePath(film).stem}:
                named.setdefault(name, []).append(film)
        matched: dict[str, dict[str, LabelledKnee]] = {}
        for knee in self.knees:
            candidates = named.get(knee.film, [])
            if len(candidates) > 1:
                raise SettingsError(
                    f"{self.path}: the label of {knee.film} fits both {candidates[0]} and "
                    f"{candidates[1]}. Evaluate their folders one by one, or rename a film."
                )
            for film in candidates:
                if knee.side in matched.setdefault(film, {}):
                    raise SettingsError(
                        f"{self.path}: the {knee.side} knee of {film} is labelled twice."
                    )
                matched[film][knee.side] = knee
        if not matched:
            example = f", such as {PurePath(films[0]).stem}" if films else ""
            raise SettingsError(f"{self.path} labels none of the films{example}.")
        return {film: tuple(knees.values()) for film, knees in matched.items()}


def load_labels(path: Path) -> Labels:
    """Read labels: `id, knee, x1, y1, x2, y2[, flag][, source]`, or the truth.csv of phantoms.

    Raises:
        SettingsError: the file is missing, or has neither set of columns.
    """
    try:
        text = read_text(path)
        reader = csv.DictReader(io.StringIO(text, newline=""), restval="")
        names = set(reader.fieldnames or ())
        rows = [(reader.line_num, row) for row in reader]
    except (OSError, ValueError, csv.Error) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise SettingsError(f"The labels {path} cannot be read as CSV: {why}.") from error
    if not (set(LABEL_COLUMNS) <= names or set(PHANTOM_COLUMNS) <= names):
        raise SettingsError(
            f"{path} is neither a table with the columns {', '.join(LABEL_COLUMNS)} nor a "
            "truth.csv of `kneematch synth`."
        )
    columns = LABEL_COLUMNS if set(LABEL_COLUMNS) <= names else PHANTOM_COLUMNS
    knees = []
    for line, row in rows:
        try:
            knees.append(_parse(row, columns))
        except (KeyError, ValueError) as error:
            raise SettingsError(f"{path}, line {line}: {error}.") from error
    used = tuple(filter(None, knees))
    if not used:
        raise SettingsError(f"{path} has no label that can be used.")
    return Labels(path, used, len(knees) - len(used))


def _parse(row: Mapping[str, str], columns: Sequence[str]) -> LabelledKnee | None:
    """Return the knee of a row; None if it has no points or a flag that makes it unusable."""
    film, side, *points = (row[name] for name in columns[:6])
    if not points[0].strip() or any(word in row.get("flag", "") for word in UNUSABLE):
        return None
    if columns == PHANTOM_COLUMNS:
        kind = "negative" if row["negative"] == "1" else "ordinary"
        source = "implant" if row["implant"] else kind
    else:
        source = row.get("source") or OTHER
    half = SIDE_NAMES.get(side.strip().lower())
    x1, y1, x2, y2 = map(float, points)
    left, right = sorted([(x1, y1), (x2, y2)])
    if not film:
        raise ValueError("the row names no film")
    if half is None:
        raise ValueError(f"the side {side!r} is neither left nor right")
    if not 0 < math.dist(left, right) < math.inf:
        raise ValueError("the two points must be finite and differ")
    return LabelledKnee(PurePath(film).name, half, left, right, source)
