"""Queue: films that were accepted and objects to deliver, on disk until each is done.

A film is on disk before it is acknowledged, and what became of it is one commit: after a crash it
either waits still, or is done and its objects wait. Of a film's header, the database holds nothing
but a hash of its instance UID, by which a film that is sent again is recognised.
"""

import hashlib
import logging
import secrets
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from kneematch.errors import SettingsError
from kneematch.films.files import DICOM, FILE_MODE, make_out_folder, write_file

MOST_WAITING: Final = 1000  # films; senders of more are told to try again later
LEAST_FREE: Final = 1 << 30  # bytes of disk that must be free to accept a film
PAUSE_S: Final = 10.0  # before the database is tried again
MOST_TRIES: Final = 10  # for an object that is refused, after 1, 2, 4 s and so on
READ_PAUSES_S: Final = (10.0, 60.0, 360.0)  # before a film that could not be read is read again

OWN: Final = "own"  # state of an object of this program that came back

# A film is waiting, taken, and then ok, no_knee, failed or own, or else waiting for another try.
# An object is waiting, and then sent or failed.
# A write-ahead log needs one flush for a commit; locked, it needs no shared memory, either.
SCHEMA: Final = """
PRAGMA locking_mode = EXCLUSIVE;
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
CREATE TABLE IF NOT EXISTS films (
    id INTEGER PRIMARY KEY, instance TEXT UNIQUE, file TEXT, received REAL, finished REAL,
    state TEXT DEFAULT 'waiting', reason TEXT DEFAULT '',
    tries INTEGER DEFAULT 0, due REAL DEFAULT 0);
CREATE TABLE IF NOT EXISTS objects (
    id INTEGER PRIMARY KEY, receiver TEXT, file TEXT, tries INTEGER DEFAULT 0, due REAL DEFAULT 0,
    state TEXT DEFAULT 'waiting', reason TEXT DEFAULT '');
CREATE INDEX IF NOT EXISTS waiting_films ON films (id) WHERE state = 'waiting';
CREATE INDEX IF NOT EXISTS waiting_objects ON objects (receiver, id) WHERE state = 'waiting';
CREATE INDEX IF NOT EXISTS waiting_files ON objects (file) WHERE state = 'waiting';
UPDATE films SET state = 'waiting' WHERE state = 'taken';
"""
KNOWN: Final = """
SELECT file FROM films WHERE state = 'waiting' UNION
SELECT file FROM objects WHERE state = 'waiting'
"""
ADD: Final = """
INSERT INTO films (instance, file, received) VALUES (?, ?, ?) ON CONFLICT (instance) DO UPDATE
SET file = excluded.file, received = excluded.received, finished = NULL, state = 'waiting',
    reason = '', tries = 0, due = 0
WHERE state = 'failed' RETURNING id
"""
TAKE: Final = """
UPDATE films SET state = 'taken'
WHERE id = (SELECT id FROM films WHERE state = 'waiting' AND due <= ? ORDER BY id LIMIT 1)
RETURNING id, file, tries
"""
DUE: Final = """
SELECT id, file, tries FROM objects
WHERE state = 'waiting' AND receiver = ? AND due <= ? ORDER BY id LIMIT 1
"""


logger = logging.getLogger("kneematch")


class QueueFull(Exception):
    """Too many films wait, or there is too little room on the disk."""


class Entry(NamedTuple):
    """A film to examine or an object to deliver."""

    id: int
    path: Path
    tries: int = 0


class Queue:
    """The database and the files of a queue; any thread may call it."""

    def __init__(self, folder: Path) -> None:
        """Open a queue, or make it.

        Raises:
            SettingsError: the folder cannot be used, or another process uses it.
        """
        self.films, self.objects = folder / "films", folder / DICOM
        for each in (folder, self.films, self.objects):
            make_out_folder(each)
        self._changed = threading.Condition()
        path, files = folder / "queue.sqlite", [*self.films.iterdir(), *self.objects.iterdir()]
        if files and not path.exists():
            raise SettingsError(f"{folder} has files of another origin. Name a new folder.")
        path.touch(FILE_MODE)
        try:
            self._sql = sqlite3.connect(path, timeout=0, check_same_thread=False)
            self._sql.executescript(SCHEMA)
            known = {name for (name,) in self.query(KNOWN)}
        except sqlite3.DatabaseError as error:
            reason = "Another process uses it, or it is damaged"
            raise SettingsError(f"{path} cannot be opened ({error}). {reason}.") from error
        for file in files:
            if file.name not in known:
                file.unlink()

    def query(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run one statement as a transaction and return its rows."""
        rows: list[tuple[Any, ...]] = self._transact((text, values))
        return rows

    def _transact(self, *statements: tuple[str, Sequence[Any]]) -> Any:
        """Run statements as one transaction and return the rows of the last, once it succeeds."""
        while True:
            try:
                with self._changed, self._sql:
                    return [self._sql.execute(*each).fetchall() for each in statements][-1]
            except sqlite3.OperationalError as error:  # such as a full disk
                logger.warning("The queue cannot be used (%s). It is tried again.", error)
            time.sleep(PAUSE_S)

    def wait(self) -> None:
        """Wait until a film or an object is added, at most a second."""
        with self._changed:
            self._changed.wait(1.0)

    def new_film(self) -> Path:
        """Return a path for a film, with a random name."""
        return self.films / secrets.token_hex(16)

    def add(self, instance: str, content: bytes) -> None:
        """Store a film until it is examined, unless its instance was stored before and not failed.

        Raises:
            QueueFull, OSError: the film is not stored, and should be sent again later.
        """
        key = hashlib.sha256(instance.encode()).hexdigest()
        if self.query("SELECT 1 FROM films WHERE instance = ? AND state != 'failed'", key):
            return
        ((waiting,),) = self.query("SELECT count(*) FROM films WHERE state = 'waiting'")
        if waiting >= MOST_WAITING or shutil.disk_usage(self.films).free < LEAST_FREE:
            raise QueueFull
        path = self.new_film()
        write_file(path, content)
        if not self.query(ADD, key, path.name, time.time()):
            path.unlink()  # another association sent the same film meanwhile
        with self._changed:
            self._changed.notify_all()

    def take(self) -> Entry | None:
        """Return the next film to examine."""
        rows = self.query(TAKE, time.time())
        return next((Entry(number, self.films / name, n) for number, name, n in rows), None)

    def postpone(self, film: Entry, reason: str) -> bool:
        """Let a film that could not be read wait again; return whether it has a try left."""
        if film.tries == len(READ_PAUSES_S):
            return False
        change = "UPDATE films SET state = 'waiting', tries = ?, due = ?, reason = ? WHERE id = ?"
        due = time.time() + READ_PAUSES_S[film.tries]
        self.query(change, film.tries + 1, due, reason, film.id)
        return True

    def finish(
        self, film: Entry, state: str, reason: str, objects: Iterable[str], receivers: Sequence[str]
    ) -> None:
        """Note what became of a film; its objects (names of files) wait now, and its file goes."""
        insert = "INSERT INTO objects (receiver, file) VALUES (?, ?)"
        rows = [(insert, (goal, name)) for name in objects for goal in receivers]
        update = "UPDATE films SET state = ?, reason = ?, finished = ? WHERE id = ?"
        self._transact((update, (state, reason, time.time(), film.id)), *rows)
        film.path.unlink(missing_ok=True)
        with self._changed:
            self._changed.notify_all()

    def due(self, receiver: str) -> Entry | None:
        """Return the first object that is to be delivered to a receiver now."""
        rows = self.query(DUE, receiver, time.time())
        return next((Entry(number, self.objects / name, n) for number, name, n in rows), None)

    def settle(self, item: Entry, state: str = "sent", reason: str = "") -> None:
        """Note that an object was delivered or given up; its file goes with the last receiver."""
        self.query("UPDATE objects SET state = ?, reason = ? WHERE id = ?", state, reason, item.id)
        others = "SELECT 1 FROM objects WHERE file = ? AND state = 'waiting'"
        if not self.query(others, item.path.name):
            item.path.unlink(missing_ok=True)

    def refused(self, item: Entry, reason: str) -> bool:
        """Note that an object was refused; return whether it will be tried again."""
        if item.tries + 1 >= MOST_TRIES:
            self.settle(item, "failed", reason)
            return False
        change = "UPDATE objects SET tries = tries + 1, due = ?, reason = ? WHERE id = ?"
        self.query(change, time.time() + 2.0**item.tries, reason, item.id)
        return True

    def close(self) -> None:
        """Close the database."""
        with self._changed:
            self._sql.close()
