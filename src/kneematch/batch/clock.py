"""When a run began, and how long its parts took."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from time import monotonic


@dataclass(frozen=True, slots=True)
class Clock:
    """Started when it is made."""

    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    ticks: list[tuple[str, float]] = field(default_factory=lambda: [("", monotonic())])

    def tick(self, part: str) -> None:
        """A part is over."""
        self.ticks.append((part, monotonic()))

    def parts(self) -> dict[str, float]:
        """Their names and seconds."""
        return {part: end - start for (_, start), (part, end) in pairwise(self.ticks)}
