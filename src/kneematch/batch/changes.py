"""Which films of an archive that grows are to be searched."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kneematch.io.files import FileVersion, file_versions

if TYPE_CHECKING:
    from kneematch.batch.journal import Journal

logger = logging.getLogger("kneematch")


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """What is left to do, by the indices of films in the journal."""

    versions: dict[int, FileVersion | None]  # of the files of all named films
    search: list[int]  # films without a row of their present version
    changed: list[int]  # those among them that have a row of another version


def compare_films(
    journal: "Journal", films: Sequence[str], versions: Sequence[FileVersion | None]
) -> Work:
    """Add the named films to a run, and find out which are to be searched.

    Films that are no longer there keep their rows, and those with detections are marked. `versions`
    are those of the named files, None where there is none.
    """
    named = dict(zip(journal.add(films), versions, strict=True))
    done = [k for k in named if journal.is_done(k)]
    changed = [k for k in done if not _is_same(journal.version(k), named[k])]
    others = [k for k in range(journal.count) if k not in named and journal.is_done(k)]
    found = file_versions([journal.films[k] for k in others])
    present = named | dict(zip(others, found, strict=True))
    gone = [k for k, version in present.items() if version is None and journal.version(k)]
    journal.mark_gone(gone)
    if done or gone:
        logger.info(
            "%s films: %s done before, %s new%s%s",
            f"{len(named):,}",
            f"{len(done):,}",
            f"{len(named) - len(done):,}",
            f", {len(gone):,} gone (kept in the table, marked)" if gone else "",
            f", {len(changed):,} changed" if changed else "",
        )
    return Work(named, sorted({*named} - {*done} | {*changed}), changed)


def _is_same(before: FileVersion | None, now: FileVersion | None) -> bool:
    """Return whether a film need not be searched again; one that is gone cannot be."""
    return now is None or (before is not None and before.is_same(now))
