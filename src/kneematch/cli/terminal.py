"""Messages, tables and progress on the terminal, exit codes, and what Ctrl-C does."""

import logging
import os
import signal
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

import typer

from kneematch.errors import SettingsError
from kneematch.films.files import FILE_MODE, check_suffix, remove_unfinished
from kneematch.films.files import writing as writing

if TYPE_CHECKING:
    from kneematch.evaluation.scores import Table
    from kneematch.progress import Advance, Progress

FAILED: Final = 2  # exit code of errors that the user can correct
SOME_FAILED: Final = 1  # exit code of a run that finished, but not with every film
INTERRUPTED: Final = 130  # as shells report after Ctrl-C
ON_STDOUT: Final = 1  # level of lines that only a log file repeats
LOG_SUFFIX: Final = ".log"
STDERR: Final = 2  # its file descriptor
SHOW_CURSOR: Final = "\r\x1b[K\x1b[?25h"  # which a progress bar hides; clears its line
PIPE_WIDTH: Final = 160  # characters, for tables that are not printed on a terminal

logger = logging.getLogger("kneematch")


def print_error(message: str) -> None:
    """Print one line on stderr."""
    logger.error(message)


def print_hint(message: str) -> None:
    """Print one line on stderr that is no error, beside a result on stdout."""
    logger.warning(message)


def print_first_errors(
    reasons: Sequence[str], total: int, rest: str, *, what: str = "films"
) -> None:
    """Print reasons on stderr and, if there are more of `what`, how many and `rest`."""
    for reason in reasons:
        print_error(reason)
    if total > len(reasons):
        print_error(f"{total - len(reasons)} more {what} {rest}")


def print_result(line: str) -> None:
    """Print one line on stdout."""
    typer.echo(line)
    logger.log(ON_STDOUT, line)


class _StderrHandler(logging.Handler):
    """Write log records as lines on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        typer.echo(f"kneematch: {_one_line(record)}", err=True)


class _OneLine(logging.Formatter):
    """Put the time and a message on one line."""

    def format(self, record: logging.LogRecord) -> str:
        return f"{self.formatTime(record)} {_one_line(record)}"


def _one_line(record: logging.LogRecord) -> str:
    return shown(" ".join(record.getMessage().splitlines()))


@contextmanager
def log_to_stderr() -> Iterator[None]:
    """Show the messages that the library logs, one line each, while a command runs."""
    before, handlers = logger.level, list(logger.handlers)
    logger.addHandler(_StderrHandler(logging.INFO))
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        for handler in logger.handlers[len(handlers) :]:
            logger.removeHandler(handler)
            handler.close()
        logger.setLevel(before)


def choose_messages(
    *, quiet: bool = False, verbose: bool = False, log: Path | None = None
) -> "Progress":
    """Choose which messages are printed and whether a file gets all of them.

    Args:
        quiet: print only what failed, and no progress bar.
        verbose: print how films are searched, too.
        log: file that all messages are appended to, with the time; its name ends in .log.

    Returns:
        The progress display.
    """
    from kneematch.progress import no_progress

    if quiet and verbose:
        raise SettingsError("--quiet and --verbose contradict each other; leave one out.")
    level = logging.WARNING if quiet else logging.DEBUG if verbose else logging.INFO
    for handler in logger.handlers:
        if isinstance(handler, _StderrHandler):
            handler.setLevel(level)
    logger.setLevel(level)
    if log is not None:
        check_suffix(log, LOG_SUFFIX, "a log")
        with writing(log):
            log.touch(FILE_MODE)
            file = logging.FileHandler(log, encoding="utf-8", errors="backslashreplace")
        file.setFormatter(_OneLine())
        logger.addHandler(file)
        logger.setLevel(ON_STDOUT)
    return no_progress if quiet else progress_bar


def shown(path: str | os.PathLike[str]) -> str:
    """Return a path or a message without characters that a terminal cannot print."""
    return "".join(sign if sign.isprintable() else "?" for sign in str(path))


def print_table(table: "Table", titles: Collection[str] | None = None) -> None:
    """Print a table, or some of its columns, on stdout."""
    from rich import box
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid(box=box.SIMPLE_HEAD)
    chosen = [k for k, title in enumerate(table.columns) if titles is None or title in titles]
    for title, decimals in table.columns.items():
        if titles is None or title in titles:
            grid.add_column(title, justify="left" if decimals is None else "right")
    for row in table.shown():
        grid.add_row(*(Text(row[k]) for k in chosen))  # as Text, in which [ and ] are no markup
    wide = None if Console().is_terminal else PIPE_WIDTH
    Console(width=wide).print(grid)


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
    advice: str = ""
    asked: bool = False  # by a first signal
    said: bool = False

    def line(self) -> str:
        if self.kept is None or not self.kept.exists():
            return "stopped"
        return f"stopped; what is done is in {shown(self.kept)}; {self.advice}"

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Unwind the stack; the second time, and in an import, end the program at once.

        An exception in an import can be lost, or turned into another one.
        """
        if not self.asked and not _is_importing(frame):
            self.asked = True
            raise KeyboardInterrupt
        if not self.said:
            clean = SHOW_CURSOR if os.isatty(STDERR) else ""
            os.write(STDERR, f"{clean}kneematch: {self.line()}\n".encode(errors="replace"))
        remove_unfinished()
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
    _stop.said = True


@contextmanager
def stopping_cleanly(
    kept: Path, advice: str = "continue with the same command and --resume"
) -> Iterator[None]:
    """Let a program that is stopped here say how to continue from the file that is kept."""
    _stop.kept, _stop.advice = kept, advice
    yield
    _stop.kept = None


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False
