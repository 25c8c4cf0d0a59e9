"""Read labels of OAI's baseline that others have published, which are no part of kneematch.

They are `annotations/bf_landmarks_1_0.3.csv` of KNEEL (Tiulpin et al., ICCVW 2019), with points on
the outline of the plateau, of which the outermost are taken; and `data/detector/*.csv` of
denizlab's OAI-KL-Grade-Classification, with boxes around the joints.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath
from typing import Any

from kneematch.errors import FilmError, SettingsError
from kneematch.evaluation.labels import (
    SQUARE_WIDTHS,
    LabelledKnee,
    LabelRow,
    Labels,
    load_labels,
    read_label_rows,
)
from kneematch.films.dicom_header import header_value
from kneematch.films.read import read_header

LANDMARK_COLUMNS = ("subject_id", "side", "tibia", "bbox")
BOX_COLUMNS = tuple("012345678")
SPACING_MM = 0.3  # of KNEEL's pixels
PADDING = 100  # pixels that KNEEL added around the film
HALVES = {"R": "left", "L": "right"}  # where the patient's knees are in OAI's films
SPACING = ("ImagerPixelSpacing", "PixelSpacing")  # in KNEEL's order


def load_oai_labels(path: Path, films: Sequence[str]) -> Labels:
    """Read labels of KNEEL or denizlab, or a file that `load_labels` reads, for some films.

    Paths of films have OAI's folders: release, participant, date, series, file.

    Raises:
        SettingsError: the file cannot be read, or none of the films is labelled.
    """
    names, rows = read_label_rows(path)
    if set(LANDMARK_COLUMNS) <= names:
        parse, of_film = _landmarks, {part: film for film in films for part in PurePath(film).parts}
    elif set(BOX_COLUMNS) <= names:
        parse, of_film = _boxes, {"_".join(PurePath(film).parts[-5:]): film for film in films}
    else:
        return load_labels(path)
    knees, left_out = list[LabelledKnee](), 0
    for line, row in rows:
        film = of_film.get(PurePath(row.get("subject_id") or row["0"]).name.removesuffix(".h5"))
        if film is None:
            continue
        try:
            found = list(parse(row, film))
        except FilmError:  # the methods report it
            found = []
        except (KeyError, ValueError, TypeError) as error:
            raise SettingsError(
                f"{path}, line {line}: {error}; expected the layout of KNEEL's landmarks or "
                "denizlab's boxes; download the file again"
            ) from error
        knees += found
        left_out += not found
    if not knees:
        raise SettingsError(
            f"{path}: none of {len(films)} test films is labelled in it; expected participants of "
            "OAI's baseline; test on labelled films with --test-list"
        )
    return Labels(path, tuple(knees), left_out)


def _landmarks(row: LabelRow, film: str) -> Iterator[LabelledKnee]:
    """Yield the knee of a row of KNEEL: points in a crop, which is mirrored for left knees."""
    header: Any = read_header(film, *SPACING)
    spacing = next((value for name in SPACING if (value := header_value(header, name))), None)
    if spacing is None:
        return
    scale = SPACING_MM / float(spacing[0])
    x0, y0, x1, _ = map(float, row["bbox"].split(","))
    numbers = list(map(float, row["tibia"].split(",")))
    points = []
    for x, y in zip(numbers[::2], numbers[1::2], strict=True):
        across = x1 - x if row["side"] == "L" else x0 + x
        points.append((scale * (across - PADDING), scale * (y0 + y - PADDING)))
    yield LabelledKnee(film, HALVES[row["side"]], min(points), max(points), "KNEEL")


def _boxes(row: LabelRow, film: str) -> Iterator[LabelledKnee]:
    """Yield the knees of a row of denizlab: two boxes x0, y0, x1, y1 as fractions of the film."""
    header: Any = read_header(film, "Rows", "Columns")
    height, width = float(header.Rows), float(header.Columns)
    numbers = [float(row[name]) for name in BOX_COLUMNS[1:]]
    boxes = sorted(box for box in (numbers[:4], numbers[4:]) if min(box) >= 0)
    if len(boxes) < len(HALVES):
        return
    for side, (x0, y0, x1, y1) in zip(HALVES.values(), boxes, strict=True):
        reach = width * (x1 - x0) / (2 * SQUARE_WIDTHS)
        x, y = width * (x0 + x1) / 2, height * (y0 + y1) / 2
        yield LabelledKnee(film, side, (x - reach, y), (x + reach, y), "denizlab", is_box=True)
