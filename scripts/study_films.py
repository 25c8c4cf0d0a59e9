"""Find the paper's films in copies of OAI and MOST, and split them into training and test films."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np

from kneematch.errors import FilmError, SettingsError
from kneematch.films.discovery import (
    CSV_SUFFIX,
    LIST_SIGN,
    find_films,
    in_series,
    refuse_unlistable,
    resolve_listed_path,
)
from kneematch.films.read import is_dicom
from reproduce_config import ReproduceConfig

ARCHIVE = ".tar.gz"  # in which a series may be packed
STACK = 8  # files; a folder with more is an MRI series, of which only the first is looked at


@dataclass(frozen=True, slots=True)
class Study:
    """How a study's films are laid out, and the results that the paper printed for it."""

    name: str
    visits: tuple[str, ...]  # name patterns of the baseline's folders
    participant: str  # regular expression of the names of participants' folders
    series: str  # part of the series description of bilateral frontal films
    views: tuple[str, ...]  # names of folders that hold these films and no others, best first
    skipped: str  # regular expression of the names of folders that hold none, such as MRI series
    train: int  # number of films; 0 where the paper trained on another study
    test: int
    table: str
    printed: Mapping[str, float] = field(hash=False)  # left + right loss by method


OAI = Study(
    name="OAI",
    visits=("00m", "0.[A-E].*"),
    participant=r"9\d{6}",
    series="Bilateral PA Fixed Flexion",
    views=(),
    skipped=r"1\d{7}",
    train=500,
    test=400,
    table="Table 1",
    printed={"sliding": 0.221, "neural": 0.159, "neural+sharpen": 0.141},
)
MOST = Study(
    name="MOST",
    visits=("V0",),
    participant=r"(M[BI]?\d{4,5})(_\w+)?",
    series="Bilateral PA Fixed Flexion",
    views=("PA10", "PA05", "PA15"),
    skipped="",
    train=0,
    test=400,
    table="Table 2",
    printed={"sliding": 0.249, "neural": 0.224, "neural+sharpen": 0.157},
)
STUDIES = {study.name.lower(): study for study in (OAI, MOST)}


Films = list[tuple[str, str]]  # participants and paths


@dataclass(frozen=True, slots=True)
class Split:
    """Paths of the films to train and to test on; no participant is in both."""

    train: tuple[str, ...]
    test: tuple[str, ...]


def find_study_films(
    study: Study, root: Path, config: ReproduceConfig = ReproduceConfig()
) -> Films:
    """Find one bilateral film of every participant at the visit, sorted by participant.

    Where a participant has several films, the first is taken, by view and then by path.
    Participants are known by the names of folders, not by DICOM headers.

    Raises:
        SettingsError: no film was found.
    """
    study = _as_configured(study, config)
    if config.films is not None:
        films = _listed_films(config.films, root, study)
    else:
        found = _search(study, root)
        named = ((_participant(film, root, study), film) for film in found)
        films = [(participant, film) for participant, film in named if participant is not None]
        if not films:
            raise SettingsError(_nothing_found(study, root, len(found)))
    return sorted(dict(reversed(films)).items())  # the first film of each participant


def split_films(
    study: Study,
    root: Path,
    config: ReproduceConfig = ReproduceConfig(),
    annotated: Path | None = None,
) -> Split:
    """Choose the films to train and to test on: the lists that are given, else a random draw.

    The participant of `annotated`, the film that the template is drawn on, is never tested on.

    Raises:
        SettingsError: there are too few films, or a participant is in both lists.
    """
    lists, layout = (config.train_list, config.test_list), _as_configured(study, config)
    train, test = ([] if path is None else _listed_films(path, root, layout) for path in lists)
    both = {participant for participant, _ in train} & {participant for participant, _ in test}
    if both:
        raise SettingsError(
            f"{len(both)} participants in both --train-list and --test-list; expected nobody in "
            "both; take them out of one"
        )
    drawn_on = None if annotated is None else _participant(str(annotated), root, layout)
    if annotated is not None and any(
        participant == drawn_on or os.path.realpath(film) == os.path.realpath(annotated)
        for participant, film in test
    ):
        raise SettingsError(
            f"{config.test_list}: lists the participant whose film the template was drawn on; "
            "expected others; take the film out, or draw the template on another"
        )
    to_train = (config.train or study.train) if study.train and not train else 0
    to_test = 0 if test else config.test or study.test
    if to_train or to_test:
        taken = {participant for participant, _ in (*train, *test)}
        if not to_train and drawn_on is not None:
            taken.add(drawn_on)
        pool = [film for film in find_study_films(study, root, config) if film[0] not in taken]
        if len(pool) < to_train + to_test:
            raise SettingsError(
                f"{root}: {len(pool)} participants with a film of {study.name} to draw from; "
                f"expected {to_train} to train and {to_test} to test; check --root and --series, "
                f"or ask for fewer with --train and --test{_archive_hint(root)}"
            )
        order = [pool[k] for k in np.random.default_rng(config.seed).permutation(len(pool))]
        if to_train:
            order.sort(key=lambda film: film[0] != drawn_on)  # the annotated one is trained on
        train, test = train or order[:to_train], test or order[to_train : to_train + to_test]
    return Split(tuple(path for _, path in train), tuple(path for _, path in test))


def relative_path(film: str, root: Path) -> str:
    """Return a film's path from the study's root, which is the same on every machine."""
    path = Path(film)
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else film


def _as_configured(study: Study, config: ReproduceConfig) -> Study:
    """Return the study as it is laid out on this machine."""
    if config.visit is not None:
        study = replace(study, visits=(config.visit,))
    if config.series is not None:
        study = replace(study, series=config.series, views=(), skipped="")
    return replace(study, participant=config.participant or study.participant)


def _search(study: Study, root: Path) -> list[str]:
    """Return all bilateral frontal films of the visit, sorted by view and then by path.

    They are known by a folder's name, or else by the DICOM header.
    """
    if not root.is_dir():
        raise SettingsError(
            f"{root}: no such folder; expected the films of {study.name}; check --root"
        )
    found, others = [], []
    for path in _files(root, study.visits, study.skipped):
        folders = path.relative_to(root).parts[:-1]
        if not set(study.views).isdisjoint(folders):
            found += [str(path)] if _is_dicom(path) else []
        elif not path.name.endswith(ARCHIVE):
            others.append(str(path))

    def view_and_path(film: str) -> tuple[int, str]:
        folders = Path(film).parts
        return next((k for k, view in enumerate(study.views) if view in folders), 0), film

    return sorted([*found, *in_series(others, study.series)], key=view_and_path)


def _files(root: Path, visits: Sequence[str], skipped: str) -> Iterator[Path]:
    """Yield the files in folders of the visit; where one is found, its siblings are others'."""
    above = root.resolve().name
    for folder, folders, files in os.walk(root, onerror=refuse_unlistable):
        folders[:] = [
            name for name in folders if name[0] != "." and not re.fullmatch(skipped, name)
        ]
        inside = (above, *Path(folder).relative_to(root).parts)
        if any(_matches(name, visits) for name in inside):
            seen = sorted(name for name in files if name[0] != ".")
            paths = [Path(folder, name) for name in (seen if len(seen) <= STACK else seen[:1])]
            yield from (path for path in paths if path.is_file())
        else:
            folders[:] = [name for name in folders if _matches(name, visits)] or folders


def _participant(film: str, root: Path, study: Study) -> str | None:
    """Return the participant of a film, from the first folder whose name matches."""
    pattern = re.compile(study.participant)
    for name in Path(relative_path(film, root)).parts[:-1]:
        found = pattern.fullmatch(name)
        if found:
            return str(found[1] if pattern.groups else found[0])
    return None


def _listed_films(path: Path, root: Path, study: Study) -> Films:
    """Return all films of a list, whose paths may be relative to the root.

    A film of an unknown participant counts as a participant of its own.
    """
    sign = "" if path.suffix.lower() == CSV_SUFFIX else LIST_SIGN
    films = [resolve_listed_path(name, root) for name in find_films([f"{sign}{path}"])]
    return [(_participant(film, root, study) or film, film) for film in films]


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _is_dicom(path: Path) -> bool:
    try:
        return is_dicom(path)
    except FilmError:
        return False


def _nothing_found(study: Study, root: Path, found: int) -> str:
    """Explain why no film of any participant was found."""
    if found:
        return (
            f"{root}: {found} films, none in a folder of a participant; expected its name to be "
            f"like {study.participant}; name another pattern with --participant"
        )
    views = f" or in {', '.join(study.views)}" if study.views else ""
    return (
        f"{root}: no film of {study.name}; expected, in a folder {' or '.join(study.visits)}, "
        f"DICOM described as {study.series}{views}; check --root, --visit and --series"
        f"{_archive_hint(root)}"
    )


def _archive_hint(root: Path) -> str:
    """Return a hint to unpack archives, if there are any."""
    archive = next(root.rglob(f"*{ARCHIVE}"), None) if root.is_dir() else None
    if archive is None:
        return ""
    return f"; there are archives ({archive.name}): unpack them as docs/reproduce.md says"
