"""Run: the state of a run, in OUT/run.sqlite; tables, report and pages are queries over it.

Thumbnails are in OUT/thumbnails.sqlite, so that the state of 500,000 films stays small. Both are
written in one transaction for every batch of films, with a rollback journal, and are on disk when
it ends.
"""

import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, Self

from kneematch.errors import SettingsError
from kneematch.films.files import DETECTIONS, FOLDERS, RUN_DATABASE, THUMBNAILS, FileVersion
from kneematch.knee.decision import Decision
from kneematch.knee.detection import CORRECTED, REJECTED, Detection
from kneematch.knee.quality import OUTLIER, judge_match, run_limit
from kneematch.run.artifacts import Artifact
from kneematch.run.config import Fingerprint, differences
from kneematch.run.film_record import FILES, SETTINGS, FilmRecord, Made, film_names
from kneematch.run.sqlite import UnreadableRun, connect, user_errors

FORMAT: Final = 1  # bump when the tables change
REVIEW_BUSY_MS: Final = 60_000  # time that a page waits for `apply`
SCHEMA: Final = """
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE films (
    id INTEGER PRIMARY KEY,
    path TEXT NOT NULL UNIQUE,             -- perhaps not UTF-8, and so are name and reason
    name TEXT NOT NULL UNIQUE,             -- beginning of the names of its files
    bytes INTEGER, modified_ns INTEGER,
    status TEXT NOT NULL DEFAULT '',       -- empty until the film was visited
    reason TEXT NOT NULL DEFAULT '',
    height INTEGER, width INTEGER, mm_per_px REAL,
    last_decision INTEGER NOT NULL DEFAULT 0,  -- the newest decision that its knees include
    made TEXT NOT NULL DEFAULT '{}',       -- its files by kind, as JSON
    gone INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE knees (
    id INTEGER PRIMARY KEY,
    film INTEGER NOT NULL REFERENCES films,
    side TEXT NOT NULL,
    found TEXT,                            -- as JSON; NULL where no knee was found
    decided TEXT,                          -- as a reviewer left it; NULL without a decision
    decision INTEGER REFERENCES decisions, -- the newest one that was not revoked
    state TEXT NOT NULL DEFAULT '',        -- of that decision, if it applies to the knee
    loss REAL, needs_review INTEGER, reasons TEXT,  -- as found
    UNIQUE (film, side)
);
CREATE TABLE decisions (                   -- rows are only added
    id INTEGER PRIMARY KEY,
    knee INTEGER NOT NULL REFERENCES knees,
    time TEXT NOT NULL,
    content TEXT NOT NULL,                 -- as JSON
    revokes INTEGER REFERENCES decisions   -- the decision that this row revokes
);
CREATE INDEX decisions_by_knee ON decisions (knee);
CREATE INDEX revocations ON decisions (revokes) WHERE revokes IS NOT NULL;
CREATE INDEX films_by_status ON films (status) WHERE status != 'ok';
"""
# The orders of the review page, made when it is first opened: they would slow a run down. The last
# columns are its filters. NULL, that is NaN, comes first.
REVIEW_INDICES: Final = """
CREATE INDEX IF NOT EXISTS knees_by_doubt
    ON knees (-needs_review, -loss, film, side, state, needs_review, loss);
CREATE INDEX IF NOT EXISTS knees_by_film ON knees (film, side, state, needs_review);
CREATE INDEX IF NOT EXISTS decided_knees ON knees (state, needs_review) WHERE state != '';
"""
THUMBNAIL_SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS thumbnails.films (id INTEGER PRIMARY KEY, jpeg BLOB NOT NULL)"
)
HOLDS: Final = "revokes IS NULL AND NOT EXISTS (SELECT 1 FROM decisions r WHERE r.revokes = d.id)"
RECORDS: Final = """
SELECT f.id, f.path, f.name, f.bytes, f.modified_ns, f.status, f.reason, f.height, f.width,
    f.mm_per_px, f.last_decision, f.made, f.gone, k.side, k.found, k.decided, d.content
FROM films f LEFT JOIN knees k ON k.film = f.id LEFT JOIN decisions d ON d.id = k.decision
WHERE {} ORDER BY f.id, k.side
"""
# Types of settings, and of the first columns of RECORDS, to tell a damaged database
SETTING_TYPES: Final = {
    **dict.fromkeys(("config", "fingerprint", "landmarks", "run"), dict),
    "folder": str,
}
NUMBER: Final = int | float | None
FILM_TYPES: Final = (int, str, str, *[NUMBER] * 2, str, str, *[NUMBER] * 3, int, str, int)


class Run:
    """The films of a run, the knees found on them, and the decisions about these."""

    def __init__(self, out: Path, *, create: bool = False, exclusive: bool = True) -> None:
        """Open the database of a run.

        Args:
            out: folder of the run.
            create: make the database if it is not there.
            exclusive: let no other process read or write it until it is closed.

        Raises:
            SettingsError: there is none, another process is using it, or it is damaged.
        """
        self.out, self.path = out, out / RUN_DATABASE
        if not self.path.exists() and not create:
            raise SettingsError(
                f"{out} holds no run. Name the folder that `kneematch detect` has filled."
            )
        if not self.path.exists() and (out / DETECTIONS).exists():
            raise SettingsError(
                f"{out} holds results without a {RUN_DATABASE} to continue. Detect into another "
                "folder, or replace them with --force."
            )
        for folder in FOLDERS:  # files are written to these, and removed
            if (out / folder).is_symlink():
                raise SettingsError(f"{out / folder} is a link. Remove it, or name another folder.")
        with user_errors(self.path):
            self.sql = connect(self.path, out / THUMBNAILS)
            try:
                self._prepare(exclusive=exclusive)
            except BaseException:
                self.sql.close()
                raise

    def _prepare(self, *, exclusive: bool) -> None:
        if exclusive:
            self.sql.execute("PRAGMA locking_mode = EXCLUSIVE")
        for schema in ("main", "thumbnails"):
            self.sql.execute(f"PRAGMA {schema}.synchronous = FULL")
        with self._transaction():
            (version,) = self.sql.execute("PRAGMA user_version").fetchone()
            if version not in (0, FORMAT):
                raise UnreadableRun(
                    f"{self.path} was written by another version of kneematch. Use that version, "
                    "or name another folder."
                )
            if version == 0:
                for statement in SCHEMA.split(";\n"):
                    self.sql.execute(statement)
                self.sql.execute(f"PRAGMA user_version = {FORMAT}")
            self.sql.execute(THUMBNAIL_SCHEMA)
            for statement in REVIEW_INDICES.split(";\n") if not exclusive else ():
                self.sql.execute(statement)
        if not exclusive:  # from now on, wait until `apply` has ended
            self.sql.execute(f"PRAGMA busy_timeout = {REVIEW_BUSY_MS}")

    def close(self) -> None:
        """Close the database, so that others can open it."""
        self.sql.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Commit what is written inside, or nothing of it."""
        with user_errors(self.path):
            self.sql.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.sql.execute("COMMIT")
            except BaseException:
                if self.sql.in_transaction:
                    self.sql.execute("ROLLBACK")
                raise

    def query(self, statement: str, *values: object) -> list[Any]:
        """Return the rows of a query."""
        with user_errors(self.path):
            return self.sql.execute(statement, values).fetchall()

    # Settings

    def setting(self, name: str) -> Any:
        """Return a setting as it was stored; None if there is none."""
        rows = self.query("SELECT value FROM settings WHERE name = ?", name)
        with user_errors(self.path):
            value = json.loads(rows[0][0]) if rows else None
            if rows and not isinstance(value, SETTING_TYPES[name]):
                raise TypeError("a setting of another type")
        return value

    def store(self, **settings: Any) -> None:
        """Store settings, which are JSON values; paths become texts."""
        values = [(name, json.dumps(value, default=str)) for name, value in settings.items()]
        with self._transaction():
            self.sql.executemany("INSERT OR REPLACE INTO settings VALUES (?, ?)", values)

    def film_folder(self, root: Path | None = None) -> Path:
        """Return the folder of films with relative paths: `root`, or where `detect` was called."""
        folder = root or Path(self.setting("folder") or "")
        return Path() if folder == Path.cwd() else folder

    @property
    def noun(self) -> str:
        """What texts about the run call what it looks for."""
        return "area" if any(self.setting("landmarks") or ()) else "knee"

    @property
    def landmarks(self) -> dict[str, list[str]]:
        """The names of the landmarks by the name of their template, "" for knees."""
        with user_errors(self.path):
            return dict(self.setting("landmarks"))

    def check(self, fingerprint: Fingerprint) -> None:
        """Raise SettingsError unless a run is new or began with the settings rows depend on."""
        before = self.setting("fingerprint")
        if before is not None and "outlines" in {*before} ^ {*fingerprint}:
            if "outlines" in before:
                raise SettingsError(f"The knees of {self.out} were measured. Add --measure again.")
            before["outlines"] = fingerprint["outlines"]  # they are measured now
        different = differences(before or fingerprint, fingerprint)
        if different:
            raise SettingsError(
                f"{self.out} holds a run with other settings: {', '.join(different)[:150]}. Repeat "
                "those, start over with --force, or name another folder."
            )
        self.store(fingerprint=dict(fingerprint))

    # Films

    def count(self, where: str = "1") -> int:
        """Return the number of films that fulfil a condition."""
        return int(self.query(f"SELECT COUNT(*) FROM films WHERE {where}")[0][0])  # noqa: S608

    def add(self, paths: Sequence[str]) -> list[int]:
        """Return the ids of films; those that are not in the run are added to it.

        Films are the same if their absolute paths are; they keep the path by which they came.
        """
        rows = self.query("SELECT id, path, name FROM films ORDER BY id")
        known = {absolute_path(path): number for number, path, _ in rows}
        absolute = [absolute_path(path) for path in paths]
        new = [path for path, place in zip(paths, absolute, strict=True) if place not in known]
        names = film_names(new, {name.casefold() for _, _, name in rows})
        first = rows[-1][0] + 1 if rows else 1
        added = list(zip(range(first, first + len(new)), new, names, strict=True))
        with self._transaction():
            self.sql.executemany(
                "INSERT INTO films (id, path, name) VALUES (?, CAST(? AS TEXT), CAST(? AS TEXT))",
                ((number, os.fsencode(path), os.fsencode(name)) for number, path, name in added),
            )
        known |= {absolute_path(path): number for number, path, _ in added}
        return [known[place] for place in absolute]

    def versions(self) -> dict[int, FileVersion | None]:
        """Return the versions of the files that were visited, by film; None for missing files."""
        rows = self.query("SELECT id, bytes, modified_ns FROM films WHERE status != ''")
        return {number: _version(*version) for number, *version in rows}

    def paths(self) -> list[tuple[int, str]]:
        """Return ids and paths of all films, in their order."""
        return self.query("SELECT id, path FROM films ORDER BY id")

    def outdated(self, artifacts: Sequence[Artifact]) -> dict[int, frozenset[str]]:
        """Return films of which files are missing or were made with other settings.

        By film, the kinds of these files.
        """
        there = {each.kind: set(os.listdir(self.out / each.kind)) for each in artifacts}  # noqa: PTH208
        outdated: dict[int, frozenset[str]] = {}
        rows = self.query("SELECT id, made FROM films WHERE status != ''") if artifacts else []
        for number, text in rows:
            made = self._made(text)
            kinds = frozenset(
                each.kind
                for each in artifacts
                if each.kind not in made
                or made[each.kind].get(SETTINGS) != each.settings
                or not there[each.kind].issuperset(made[each.kind][FILES])
            )
            if kinds:
                outdated[number] = kinds
        return outdated

    def forget_made(self, outdated: Mapping[int, Collection[str]]) -> None:
        """Note that kinds of films' files are about to be made again.

        After a kill in between, it is unknown with which settings they were made.
        """
        with self._transaction():
            for film, kinds in outdated.items():
                for kind in kinds:
                    self.sql.execute(
                        "UPDATE films SET made = json_remove(made, ?) WHERE id = ?",
                        (f'$."{kind}"', film),
                    )

    def mark_gone(self, films: Iterable[int]) -> None:
        """Note which films are no longer there."""
        with self._transaction():
            self.sql.execute("UPDATE films SET gone = 0 WHERE gone")
            self.sql.executemany("UPDATE films SET gone = 1 WHERE id = ?", ((k,) for k in films))

    def records(self) -> Iterator[FilmRecord]:
        """Yield what is known of all films that were visited, in their order."""
        yield from self._records("f.status != ''")

    def record(self, film: int) -> FilmRecord:
        """Return what is known of a film."""
        (found,) = self._records("f.id = ?", film)
        return found

    def _records(self, where: str, *values: object) -> Iterator[FilmRecord]:
        with user_errors(self.path):
            rows = self.sql.execute(RECORDS.format(where), values)
            for _, group in groupby(rows, key=itemgetter(0)):
                yield self._record(list(group))

    def _record(self, rows: list[tuple[Any, ...]]) -> FilmRecord:
        if not all(map(isinstance, rows[0], FILM_TYPES)):
            raise TypeError("a film with values of other types")
        number, path, name, *version, status, reason = rows[0][:7]
        height, width, mm_per_px, last_decision, made, gone = rows[0][7:13]
        self._check_names([name])
        found = [Detection.from_json(row[14]) if row[14] else None for row in rows]
        decided = [Detection.from_json(row[15]) if row[15] else None for row in rows]
        current = [new or old for new, old in zip(decided, found, strict=True)]
        decisions = {row[13]: Decision.from_json(row[16]) for row in rows if row[16]}
        return FilmRecord(
            number,
            path,
            name,
            _version(*version),
            status,
            reason,
            None if height is None else (height, width),
            mm_per_px,
            tuple(knee for knee in found if knee is not None),
            tuple(knee for knee in current if knee is not None),
            decisions,
            last_decision,
            made=self._made(made),
            gone=bool(gone),
        )

    def names(self) -> list[str]:
        """Return the beginnings of the names of all films' files."""
        names = [name for (name,) in self.query("SELECT name FROM films")]
        self._check_names(names)
        return names

    def _made(self, text: str) -> Made:
        """Return what was made of a film."""
        with user_errors(self.path):
            made: Made = json.loads(text)
            self._check_names([file for kind in made for file in made[kind][FILES]])
            if not made.keys() <= set(FOLDERS):
                raise KeyError("no kind of files")
        return made

    def _check_names(self, names: Iterable[str]) -> None:
        """Raise SettingsError for names of files that leave their folder: they will be removed."""
        if any(os.path.basename(name) != name or "\0" in name for name in names):  # noqa: PTH119
            raise SettingsError(
                f"{self.path} holds a name that leaves its folder. Detect into another folder."
            )

    def to_visit(self, films: Iterable[int]) -> Iterator[FilmRecord]:
        """Yield films, in their order; their next visit takes all decisions into account."""
        newest = dict(
            self.query(
                "SELECT k.film, MAX(d.id) FROM decisions d JOIN knees k ON k.id = d.knee GROUP BY 1"
            )
        )
        chosen = "f.id IN (SELECT value FROM json_each(?))"
        for film in self._records(chosen, json.dumps([*films])):
            yield replace(film, last_decision=newest.get(film.id, 0))

    def decided(self) -> list[int]:
        """Return the films with decisions that their knees do not take into account yet."""
        rows = self.query(
            "SELECT DISTINCT f.id FROM decisions d JOIN knees k ON k.id = d.knee "
            "JOIN films f ON f.id = k.film WHERE d.id > f.last_decision"
        )
        return [number for (number,) in rows]

    def unmeasured(self) -> list[int]:
        """Return the films with knees that were not measured, such as before the run was to."""
        rows = self.query(
            "SELECT DISTINCT film FROM knees WHERE found IS NOT NULL AND "
            "json_extract(found, '$.measures') IS NULL AND json_extract(found, '$.template') = ''"
        )
        return [number for (number,) in rows]

    def save(self, records: Iterable[FilmRecord]) -> None:
        """Write down what visits have found; it is on disk when this returns."""
        with self._transaction():
            for film in records:
                self._save(film)

    def _save(self, film: FilmRecord) -> None:
        last_decision = max(film.last_decision, *self._set_aside(film))
        version = (None, None) if film.version is None else film.version
        height, width = film.size or (None, None)
        self.sql.execute(
            "UPDATE films SET bytes = ?, modified_ns = ?, status = ?, "
            "reason = CAST(? AS TEXT), height = ?, width = ?, mm_per_px = ?, last_decision = ?, "
            "made = ? WHERE id = ?",
            (
                *(*version, film.status, os.fsencode(film.reason), height, width, film.mm_per_px),
                *(last_decision, json.dumps(film.made), film.id),
            ),
        )
        self.sql.execute(
            "UPDATE knees SET found = NULL, decided = NULL, state = '', loss = NULL, "
            "needs_review = NULL, reasons = NULL WHERE film = ?",
            (film.id,),
        )
        current = {knee.side: knee for knee in film.knees}
        found = {knee.side: knee for knee in film.found}
        for side in {**found, **current}:
            self._save_knee(film.id, side, found.get(side), current.get(side))
        if film.thumbnail:
            self.sql.execute(
                "INSERT OR REPLACE INTO thumbnails.films VALUES (?, ?)", (film.id, film.thumbnail)
            )

    def _set_aside(self, film: FilmRecord) -> list[int]:
        """Revoke corrections that no longer hold; return the rows' numbers."""
        rows = [
            row
            for side in film.set_aside
            for row in self.query(
                "SELECT k.id, d.content, d.id FROM knees k JOIN decisions d ON d.knee = k.id WHERE "  # noqa: S608
                f"k.film = ? AND k.side = ? AND json_extract(content, '$.state') = ? AND {HOLDS}",
                *(film.id, side, CORRECTED),
            )
        ]
        return [0, *(self._add_decision(*row) for row in rows)]

    def _save_knee(
        self, film: int, side: str, found: Detection | None, current: Detection | None
    ) -> None:
        state = current.decision if current is not None else ""
        decided = _json(current) if state else None
        as_found: tuple[Any, ...] = (None, None, None)
        if found is not None:
            as_found = found.loss, found.needs_review, json.dumps(found.review_reasons)
        self.sql.execute(
            "INSERT INTO knees (film, side, found, decided, state, loss, needs_review, reasons) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET found = excluded.found, "
            "decided = excluded.decided, state = excluded.state, loss = excluded.loss, "
            "needs_review = excluded.needs_review, reasons = excluded.reasons",
            (film, side, _json(found), decided, state, *as_found),
        )

    def flag_outliers(self) -> None:
        """Flag areas of other parts than knees that match worse than others of their template."""
        templates = [name for name in self.landmarks if name]
        rows = (
            self.query("SELECT id, found FROM knees WHERE found IS NOT NULL") if templates else []
        )
        found = {key: Detection.from_json(text) for key, text in rows}
        for template in templates:
            areas = {key: area for key, area in found.items() if area.template == template}
            limit = run_limit([area.match_back or 0.0 for area in areas.values()])
            judged = {key: judge_match(area, limit, OUTLIER) for key, area in areas.items()}
            with self._transaction():
                self.sql.executemany(
                    "UPDATE knees SET found = ?, needs_review = ?, reasons = ? WHERE id = ?",
                    (
                        (_json(area), area.needs_review, json.dumps(area.review_reasons), key)
                        for key, area in judged.items()
                        if area.reasons != areas[key].reasons
                    ),
                )

    def thumbnail(self, film: int) -> bytes | None:
        """Return the thumbnail of a film as JPEG; None if there is none."""
        rows = self.query("SELECT jpeg FROM thumbnails.films WHERE id = ?", film)
        return rows[0][0] if rows else None

    # Decisions

    def decide(self, film: int, side: str, decision: Decision, time: str | None = None) -> int:
        """Record a decision about the knee in one half of a film; return the knee's id."""
        (knee,) = self.decide_all([(film, side, decision, time)])
        return knee

    def decide_all(self, decisions: Iterable[tuple[int, str, Decision, str | None]]) -> list[int]:
        """Record all of some decisions, given like those of `decide`, or none of them."""
        knees = []
        with self._transaction():
            for *place, decision, time in decisions:
                self.sql.execute("INSERT OR IGNORE INTO knees (film, side) VALUES (?, ?)", place)
                ((knee,),) = self.query("SELECT id FROM knees WHERE film = ? AND side = ?", *place)
                self._add_decision(knee, json.dumps(decision.to_dict()), time=time)
                knees.append(int(knee))
        return knees

    def revoke(self) -> int | None:
        """Revoke the newest decision that holds; return its knee, or None if there is none."""
        with self._transaction():
            newest = self.newest_decision()
            if newest is None:
                return None
            number, knee, content = newest
            self._add_decision(knee, content, number)
        return knee

    def newest_decision(self) -> tuple[int, int, str] | None:
        """Return id, knee and content of the newest decision that holds; None without one."""
        rows = self.query(
            f"SELECT id, knee, content FROM decisions d WHERE {HOLDS} ORDER BY id DESC LIMIT 1"  # noqa: S608
        )
        return rows[0] if rows else None

    def _add_decision(
        self, knee: int, content: str, revokes: int | None = None, time: str | None = None
    ) -> int:
        """Add a row to the decisions, and return its number."""
        now = time or datetime.now(UTC).isoformat(timespec="seconds")
        added = self.sql.execute(
            "INSERT INTO decisions (knee, time, content, revokes) VALUES (?, ?, ?, ?)",
            (knee, now, content, revokes),
        )
        self.sql.execute(
            "UPDATE knees SET decision = (SELECT MAX(d.id) FROM decisions d WHERE d.knee = "  # noqa: S608
            f"knees.id AND {HOLDS}) WHERE id = ?",
            (knee,),
        )
        ((found, holds),) = self.query(
            "SELECT k.found, d.content FROM knees k LEFT JOIN decisions d ON d.id = k.decision "
            "WHERE k.id = ?",
            knee,
        )
        state = "" if holds is None else _applied_state(found, holds)
        self.sql.execute("UPDATE knees SET state = ? WHERE id = ?", (state, knee))
        return int(added.lastrowid or 0)

    def decisions(self) -> Iterator[tuple[str, str, str, Decision, bool]]:
        """Yield time, film, side and decision in the order made, and whether the row revokes it."""
        rows = self.query(
            "SELECT d.time, f.path, k.side, d.content, d.revokes FROM decisions d JOIN knees k ON "
            "k.id = d.knee JOIN films f ON f.id = k.film ORDER BY d.id"
        )
        for time, path, side, content, revokes in rows:
            decision = Decision.from_json(content)
            yield time, path, side, decision, revokes is not None

    def count_outdated_decisions(self) -> int:
        """Return how many decisions are about areas that have moved or are gone."""
        rows = self.query(
            "SELECT k.found, d.content FROM knees k JOIN decisions d ON d.id = k.decision "
            "WHERE k.state = ''"
        )
        decisions = [(found, Decision.from_json(text)) for found, text in rows]
        # Without a knee, a rejection says what is true anyway.
        return sum(bool(found) or each.state != REJECTED for found, each in decisions)


def _applied_state(found: str | None, content: str) -> str:
    """Return the state of a decision, or "" if it does not apply to the knee that was found."""
    decision = Decision.from_json(content)
    knee = Detection.from_json(found) if found else None
    return decision.state if decision.applies_to(knee) else ""


def _version(size: int | None, modified_ns: int) -> FileVersion | None:
    return None if size is None else FileVersion(size, modified_ns)


def _json(knee: Detection | None) -> str | None:
    return None if knee is None else json.dumps(knee.to_dict())


def absolute_path(film: str) -> str:
    """Return what tells a film of a run from others: the run keeps the path by which it came."""
    return os.path.abspath(film)  # noqa: PTH100 - Path is slower
