"""Messages and progress on the terminal, exit codes, and what Ctrl-C does."""

import logging
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from kneematch.progress import no_progress

if TYPE_CHECKING:
    from kneematch.progress import Advance, Progress

FAILED: Final = 2  # exit code of errors that the user can correct
SOME_FAILED: Final = 1  # exit code of a run that finished, but not with every film
INTERRUPTED: Final = 130  # as shells report after Ctrl-C
STDERR: Final = 2  # its file descriptor
SHOW_CURSOR: Final = "\r\x1b[K\x1b[?25h"  # which a progress bar hides; clears its line

# Parameters that several commands have.
FinishedRun = Annotated[
    Path, Parameter(metavar="FOLDER", help="Output folder of `kneematch detect`.")
]
Root = Annotated[
    Path | None,
    Parameter(
        metavar="FOLDER",
        help="Folder of films with relative paths.",
        show_default="where detect was called",
    ),
]
Quiet = Annotated[bool, Parameter(alias="-q", help="Print only what failed.")]

logger = logging.getLogger("kneematch")


def print_error(message: str) -> None:
    """Print one line on stderr."""
    logger.error(message)


def print_first_errors(
    reasons: Sequence[str], total: int, rest: str, *, what: str = "films"
) -> None:
    """Print reasons on stderr and, if there are more of `what`, how many and `rest`."""
    for reason in reasons:
        print_error(reason)
    if total > len(reasons):
        print_error(f"{total - len(reasons)} more {what} {rest}")


class _StderrHandler(logging.Handler):
    """Write log records as lines on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        text = shown(" ".join(record.getMessage().splitlines()))
        print(f"kneematch: {text}", file=sys.stderr, flush=True)


@contextmanager
def log_to_stderr() -> Iterator[None]:
    """Show the messages that the library logs, one line each, while a command runs."""
    before, handler = logger.level, _StderrHandler()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def choose_messages(*, quiet: bool) -> "Progress":
    """Return the progress display; if quiet, none, and only what failed is printed."""
    if not quiet:
        return progress_bar
    logger.setLevel(logging.WARNING)
    return no_progress


def shown(path: str | os.PathLike[str]) -> str:
    """Return a path or a message without characters that a terminal cannot print."""
    return "".join(sign if sign.isprintable() else "?" for sign in str(path))


@contextmanager
def progress_bar(label: str, total: int, done: int = 0) -> Iterator["Advance"]:
    """Show a progress bar on stderr, if that is a terminal (see `kneematch.progress`)."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    texts = TextColumn("{task.description}"), TextColumn("{task.fields[note]}")
    columns = texts[0], BarColumn(), MofNCompleteColumn(), texts[1], TimeRemainingColumn()
    hidden = not console.is_terminal
    with Bars(*columns, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task(label, total=total, completed=done, note="")
        started, count = time.monotonic(), 0

        def advance(note: str) -> None:
            nonlocal count
            count += 1
            rate = count / max(time.monotonic() - started, 1e-9)
            bar.update(task, advance=1, note=note or f"{rate:.1f} films/s")

        yield advance


@dataclass(slots=True)
class _Stop:
    """What Ctrl-C and SIGTERM do."""

    kept: Path | None = None  # where the work is that was done, if it exists
    asked: bool = False  # by a first signal

    def line(self) -> str:
        if self.kept is None or not self.kept.exists():
            return "Stopped."
        return f"Stopped. What is done is in {shown(self.kept)}. Continue with the same command."

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Unwind the stack; the second time, and in an import, end the program at once.

        An exception in an import can be lost, or turned into another one.
        """
        if not self.asked and not _is_importing(frame):
            self.asked = True
            raise KeyboardInterrupt
        clean = SHOW_CURSOR if os.isatty(STDERR) else ""
        os.write(STDERR, f"{clean}kneematch: {self.line()}\n".encode(errors="replace"))
        os._exit(INTERRUPTED)


_stop = _Stop()


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the program, with one line and exit code 130; then ignore them."""
    numbers = signal.SIGINT, signal.SIGTERM
    for number in numbers:
        signal.signal(number, _stop.on_signal)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)


def print_stopped() -> None:
    """Print that the program was stopped and, if work is kept, how to continue."""
    print_error(_stop.line())


@contextmanager
def stopping_cleanly(kept: Path) -> Iterator[None]:
    """Let a program that is stopped here say how to continue from the file that is kept."""
    _stop.kept = kept
    yield
    _stop.kept = None


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False
