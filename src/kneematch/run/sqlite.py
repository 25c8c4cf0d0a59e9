"""Open SQLite databases, and say what is wrong with them in a user's words."""

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote

from kneematch.errors import SettingsError
from kneematch.films.files import BROKEN, FILE_MODE, THUMBNAILS

BUSY_S: Final = 1.0  # time to wait for another process
# ERROR means tables, columns or a file format that kneematch does not make.
DAMAGED: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
NO_LINK: Final = getattr(os, "O_NOFOLLOW", 0)
SYSTEM_ERRORS: Final = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_IOERR: errno.EIO,
    sqlite3.SQLITE_CANTOPEN: errno.EACCES,
    sqlite3.SQLITE_READONLY: errno.EROFS,
    sqlite3.SQLITE_PERM: errno.EACCES,
}


class UnreadableRun(SettingsError):
    """The database of a run is damaged, or was written by another version of kneematch."""


def connect(path: Path, thumbnails: Path) -> sqlite3.Connection:
    """Open the database of a run, with that of its thumbnails attached under this name.

    Both are made if need be, for the owner's eyes only.
    """
    addresses = []
    journals = (Path(f"{file}-journal") for file in (path, thumbnails))
    for file in (path, thumbnails, *journals):  # SQLite would follow a link, and empty a journal
        if file.is_symlink() or (file.exists() and not file.is_file()):
            raise SettingsError(f"{file} is not a regular file. Remove it, or name another folder.")
    for file in (path, thumbnails):
        os.close(os.open(file, os.O_RDWR | os.O_CREAT | NO_LINK, FILE_MODE))
        addresses.append(f"file:{quote(os.fsencode(file.resolve()))}?mode=rw")
    sql = sqlite3.connect(
        addresses[0], BUSY_S, isolation_level=None, check_same_thread=False, uri=True
    )
    sql.text_factory = os.fsdecode  # names of files need not be UTF-8
    try:
        sql.execute("ATTACH ? AS thumbnails", addresses[1:])
    except sqlite3.Error:
        sql.close()
        raise
    return sql


@contextmanager
def user_errors(path: Path) -> Iterator[None]:
    """Turn errors of the database at a path into those that a user can do something about."""
    try:
        yield
    except BROKEN as error:
        raise _damaged(path) from error
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_MISUSE) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise SettingsError(
                f"Another process is working on {path.parent}, or its disk has no file locks. Wait "
                "for it, or name another folder."
            ) from error
        if code in DAMAGED:
            thumbnails = path.with_name(THUMBNAILS)
            if thumbnails.exists() and not _is_sound(thumbnails):
                raise UnreadableRun(
                    f"{thumbnails} is damaged. Remove it: no results and no decisions are in it, "
                    "only small pictures of the films, which pages will then lack."
                ) from error
            raise _damaged(path) from error
        if code not in SYSTEM_ERRORS:
            raise
        number = SYSTEM_ERRORS[code]
        raise OSError(number, os.strerror(number), str(path)) from error


def _damaged(path: Path) -> UnreadableRun:
    return UnreadableRun(
        f"{path} is damaged. The tables beside it are still good; review.csv has the decisions "
        "that were applied, and docs/outputs.md says how to save more. To start over, use --force."
    )


def _is_sound(path: Path) -> bool:
    """Return whether SQLite can read a database, which this process may have locked."""
    address = f"file:{quote(os.fsencode(path.resolve()))}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(address, uri=True)) as sql:
            return bool(sql.execute("PRAGMA quick_check").fetchall() == [("ok",)])
    except sqlite3.Error:
        return False
