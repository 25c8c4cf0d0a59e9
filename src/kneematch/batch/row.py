"""A row of a run: what was found on one film."""

import json
from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace
from typing import Any

from kneematch.detection.detection import Detection
from kneematch.errors import SettingsError
from kneematch.io.file_version import FileVersion
from kneematch.review.log import REJECTED

OK, NO_KNEE, FAILED = "ok", "no_knee", "failed"  # status of a film


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """The detections on one film of a run, or why there are none."""

    index: int  # in the list of films
    film: str
    size: tuple[int, int] | None = None  # (height, width) in pixels
    detections: tuple[Detection, ...] = ()
    failure: str | None = None
    no_knee: bool = False  # the film could be read, and `failure` says that it shows no knee
    version: FileVersion | None = None  # of the film's file; None where it was missing

    @property
    def status(self) -> str:
        """OK, NO_KNEE or FAILED."""
        return OK if self.failure is None else NO_KNEE if self.no_knee else FAILED

    @property
    def knees(self) -> tuple[Detection, ...]:
        """The detections that a reviewer did not reject."""
        return tuple(knee for knee in self.detections if knee.decision != REJECTED)

    def to_line(self) -> bytes:
        """Return one line of ASCII: numbers exact, names that are not UTF-8 escaped."""
        return json.dumps(self.to_plain()).encode("ascii") + b"\n"

    def to_plain(self) -> dict[str, object]:
        """Return the row as a JSON object."""
        plain: dict[str, object] = {"index": self.index, "film": self.film, "status": self.status}
        if self.version is not None:
            plain["version"] = astuple(self.version)
        if self.failure is not None:
            plain["failure"] = self.failure
        else:
            plain["size"] = self.size
            plain["knees"] = [found.to_dict() for found in self.detections]
        return plain

    @classmethod
    def from_line(cls, line: bytes) -> "Row":
        """Return the row of a line.

        Raises:
            ValueError: the line is damaged.
        """
        try:
            return cls.from_plain(json.loads(line))
        except (KeyError, TypeError, AttributeError, SettingsError, RecursionError) as error:
            raise ValueError(f"a damaged line of a journal ({error})") from error

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Row":
        """Return the row of a JSON object, as `to_plain` makes it."""
        stored = plain.get("version")
        version = None if stored is None else FileVersion(*stored)
        row = cls(int(plain["index"]), plain["film"], version=version)
        if "failure" in plain:
            no_knee = plain.get("status") == NO_KNEE
            return replace(row, failure=str(plain["failure"]), no_knee=no_knee)
        height, width = plain["size"]
        knees = tuple(Detection.from_dict(found) for found in plain["knees"])
        return replace(row, size=(height, width), detections=knees)
