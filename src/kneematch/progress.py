"""How long-running functions report progress to whoever calls them, and time their stages."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from time import monotonic
from typing import Protocol

Advance = Callable[[str], None]
"""Called once per finished item, with a short note to show beside the bar (may be empty)."""


class Progress(Protocol):
    """Open a progress display.

    Args:
        label: what is being done, such as "detecting".
        total: number of items.
        done: number of items that an earlier run finished already.

    Returns:
        A context manager; entering it gives the function to call after every item.
    """

    def __call__(
        self, label: str, total: int, done: int = 0
    ) -> AbstractContextManager[Advance]: ...


def no_progress(label: str, total: int, done: int = 0) -> AbstractContextManager[Advance]:
    """Show nothing."""
    return nullcontext(lambda note: None)


class Clock:
    """The time that the stages of a run take."""

    def __init__(self) -> None:
        self.started, self._last = datetime.now(UTC), monotonic()
        self.seconds: dict[str, float] = {}  # by stage

    def end(self, stage: str) -> None:
        """Note the seconds since the last stage ended."""
        now = monotonic()
        self.seconds[stage], self._last = now - self._last, now
