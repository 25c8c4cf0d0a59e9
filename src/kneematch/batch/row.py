"""Record: what became of one film of a cohort, as a line of text and back."""

import json
from dataclasses import dataclass
from typing import Final

from kneematch.detection.detection import Detection

START: Final = b'{"index": '  # of every line, so that a film's number is read without the rest


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """One film's detections, or why there are none."""

    index: int  # in the list of films
    film: str
    size: tuple[int, int] | None = None  # (height, width) in pixels
    detections: tuple[Detection, ...] = ()
    failure: str | None = None


def to_line(record: Record) -> bytes:
    """One line of ASCII: numbers exact, and names that are not UTF-8 escaped."""
    plain: dict[str, object] = {"index": record.index, "film": record.film}
    if record.failure is not None:
        plain["failure"] = record.failure
    else:
        plain["size"] = record.size
        plain["knees"] = [found.to_dict() for found in record.detections]
    return json.dumps(plain).encode("ascii") + b"\n"


def from_line(line: bytes) -> Record:
    """The record that became a line."""
    plain = json.loads(line)
    if "failure" in plain:
        return Record(plain["index"], plain["film"], failure=plain["failure"])
    height, width = plain["size"]
    knees = tuple(Detection.from_dict(found) for found in plain["knees"])
    return Record(plain["index"], plain["film"], (height, width), knees)


def index_of(line: bytes) -> int | None:
    """The number of a line's film; None where the line is not whole."""
    if not line.startswith(START) or not line.endswith(b"}\n"):
        return None
    number = line[len(START) : line.find(b",")]
    return int(number) if number.isdigit() else None
