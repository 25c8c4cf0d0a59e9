"""How long-running functions report progress to whoever calls them."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
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
