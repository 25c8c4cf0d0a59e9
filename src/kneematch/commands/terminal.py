"""What all commands show alike: complaints, paths and progress."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import typer

from kneematch.errors import SettingsError

if TYPE_CHECKING:
    from rich.progress import Progress

FAILED: Final = 2  # the exit code of everything that a user can mend


def complain(message: str) -> None:
    """One line on stderr."""
    typer.echo(f"kneematch: {' '.join(message.splitlines())}", err=True)


def shown(path: str | os.PathLike[str]) -> str:
    """A path on one line that any terminal can print."""
    return "".join(sign if sign.isprintable() else "?" for sign in str(path))


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Name the file that was to be written, and not the one it was written to aside."""
    try:
        yield
    except OSError as error:
        raise SettingsError(
            f"{path}: cannot be written ({error.strerror or error}); expected a folder that is "
            "there, writable and not full; name another one"
        ) from error


def progress() -> "Progress":
    """A bar on stderr, or nothing where stderr is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    console = Console(stderr=True)
    columns = BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
