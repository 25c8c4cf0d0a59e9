"""FilmRecord: what is known of a film of a run."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from kneematch.films.files import FileVersion
from kneematch.knee.decision import Decision
from kneematch.knee.detection import CORRECTED, REJECTED, Detection

# Status of a film that was visited. It has failed for what is in its file, and until that changes;
# it was unreadable for its surroundings, such as a disk that was away, and is tried again.
OK, NO_KNEE, FAILED, UNREADABLE = "ok", "no_knee", "failed", "unreadable"
SET_ASIDE: Final = "the film has changed since the knee was corrected"
SETTINGS, FILES = "settings", "files"

Made = Mapping[str, Mapping[str, Any]]
"""By kind of files: the settings with which a film's files were made, and their names."""


@dataclass(frozen=True, slots=True, eq=False)
class FilmRecord:
    """A film of a run: its file, what was found on it, and what was made of it."""

    id: int  # its row in the run's database
    path: str  # as the user named it
    name: str  # beginning of the names of the files that are made of it
    version: FileVersion | None = None  # version of the file; None where it is missing
    status: str = ""  # one of the four above, as found; empty until the film was visited
    reason: str = ""  # why there is no knee, or why the film cannot be used
    size: tuple[int, int] | None = None  # (height, width) in pixels
    mm_per_px: float | None = None
    found: tuple[Detection, ...] = ()  # the knees as they were found
    knees: tuple[Detection, ...] = ()  # the knees as a reviewer left them, rejected ones included
    decisions: Mapping[str, Decision] = field(default_factory=dict)  # by half of the picture
    last_decision: int = 0  # number of the newest decision that `knees` takes into account
    made: Made = field(default_factory=dict)
    to_make: frozenset[str] | None = None  # kinds of files that its next visit makes; None: all
    gone: bool = False  # its file is no longer there
    missing: tuple[str, ...] = ()  # what could not be made of it in its last visit, and why
    thumbnail: bytes = b""  # as WebP
    set_aside: frozenset[str] = frozenset()  # halves with corrections that no longer hold

    @property
    def kept(self) -> tuple[Detection, ...]:
        """The knees that a reviewer did not reject."""
        return tuple(knee for knee in self.knees if knee.decision != REJECTED)

    @property
    def has_failed(self) -> bool:
        """Whether the film has no knee, neither found nor added, and a reason for it."""
        return self.status in (NO_KNEE, FAILED, UNREADABLE) and not self.knees

    def without_corrections(self) -> "FilmRecord":
        """Return a film whose file has changed; corrections were about the one before."""
        others = {side: d for side, d in self.decisions.items() if d.state != CORRECTED}
        return replace(self, decisions=others, set_aside=frozenset(self.decisions.keys() - others))

    def flagged(self) -> "FilmRecord":
        """Return a film whose knees are to be reviewed where corrections were set aside."""
        found = tuple(
            replace(knee, needs_review=True, reasons=(*knee.reasons, SET_ASIDE))
            if knee.side in self.set_aside and SET_ASIDE not in knee.reasons
            else knee
            for knee in self.found
        )
        return replace(self, found=found)
