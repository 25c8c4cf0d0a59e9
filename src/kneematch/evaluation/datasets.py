"""The paper's data: which films of OAI and of MOST, and which of them to train on."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from kneematch.errors import FilmError, SettingsError
from kneematch.io.discovery import CSV_SUFFIX, LIST_SIGN, find_films
from kneematch.io.read import is_dicom
from kneematch.io.series import in_series

ARCHIVE: Final = ".tar.gz"  # what a series may be packed in
SHORT: Final = 8  # files; a longer folder is a stack of slices, for which its first one speaks


@dataclass(frozen=True, slots=True)
class Study:
    """How a study's films are distributed, and what the paper printed of it."""

    name: str
    visits: tuple[str, ...]  # patterns of the names of the baseline's folders
    participant: str  # the same of a participant's folder, as a regular expression
    series: str  # in the description of bilateral frontal films
    views: tuple[str, ...]  # patterns of the names of folders that hold these films and no others
    train: int  # films; 0 where the paper trained on another study
    test: int
    table: str
    printed: Mapping[str, float] = field(hash=False)  # left + right loss, by method


OAI: Final = Study(
    name="OAI",
    visits=("00m", "0.[A-E].*"),
    participant=r"9\d{6}",
    series="Bilateral PA Fixed Flexion",
    views=(),
    train=500,
    test=400,
    table="Table 1",
    printed={"sliding": 0.221, "neural": 0.159, "neural+sharpen": 0.141},
)
MOST: Final = Study(
    name="MOST",
    visits=("V0",),
    participant=r"(M[BI]?\d{4,5})(_\w+)?",
    series="Bilateral PA Fixed Flexion",
    views=("PA05", "PA10", "PA15"),
    train=0,
    test=400,
    table="Table 2",
    printed={"sliding": 0.249, "neural": 0.224, "neural+sharpen": 0.157},
)
STUDIES: Final = {study.name.lower(): study for study in (OAI, MOST)}


@dataclass(frozen=True, slots=True)
class Choice:
    """Which films are meant, where that is not as the study has it."""

    visit: str | None = None  # a pattern of folders' names
    series: str | None = None  # only this counts then, whatever the folders' names
    participant: str | None = None  # a regular expression
    films: Path | None = None  # a list of films to choose from, whatever lies in the root
    train: int | None = None  # how many
    test: int | None = None
    train_list: Path | None = None  # which
    test_list: Path | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what is no pattern."""
        try:
            re.compile(self.participant or "")
        except re.error as error:
            raise SettingsError(
                f"--participant {self.participant}: {error}; expected a regular expression of "
                "folders' names; correct it"
            ) from error


@dataclass(frozen=True, slots=True)
class Film:
    """One film, and whose."""

    path: str
    participant: str


@dataclass(frozen=True, slots=True)
class Split:
    """No participant is on both sides."""

    train: tuple[str, ...]
    test: tuple[str, ...]


def find_study_films(study: Study, root: Path, choice: Choice | None = None) -> list[Film]:
    """One bilateral film of every participant at the visit, by participant.

    The first by path where there are several. Participants are told by folders, not by headers.

    Raises:
        SettingsError: there is none.
    """
    choice = choice or Choice()
    if choice.films is not None:
        found = _listed(choice.films, root)
    else:
        visits = study.visits if choice.visit is None else (choice.visit,)
        if not root.is_dir():
            raise SettingsError(
                f"{root}: no such folder; expected the films of {study.name}; check --root"
            )
        inside = _matches(root.resolve().name, visits)
        found = sorted(_of_view(_files(root, visits, inside), study, choice, root))
    films: dict[str, Film] = {}
    for film in found:
        whose = _participant(film, root, study, choice)
        if whose is None and choice.films is not None:
            whose = film  # somebody's own list: each film counts as a participant
        if whose is not None:
            films.setdefault(whose, Film(film, whose))
    if not films:
        raise SettingsError(_nothing(study, root, choice, len(found)))
    return [films[whose] for whose in sorted(films)]


def split_films(study: Study, root: Path, choice: Choice | None = None) -> Split:
    """The films to train on and to test on: as listed, else drawn at random from the rest.

    Raises:
        SettingsError: there are too few, or a participant is in both lists.
    """
    choice = choice or Choice()
    train, test = (
        _given(path, root, study, choice) for path in (choice.train_list, choice.test_list)
    )
    both = {film.participant for film in train} & {film.participant for film in test}
    if both:
        raise SettingsError(
            f"{len(both)} participants in both --train-list and --test-list; expected nobody in "
            "both; take them out of one"
        )
    wanted = (choice.train or study.train) if study.train else 0
    counts = (0 if train else wanted), (0 if test else choice.test or study.test)
    if any(counts):
        known = {film.participant for film in (*train, *test)}
        found = find_study_films(study, root, choice)
        pool = [film for film in found if film.participant not in known]
        drawn = _drawn(pool, counts, study, root, choice.seed)
        train, test = train or drawn[0], test or drawn[1]
    return Split(tuple(film.path for film in train), tuple(film.path for film in test))


def from_root(film: str, root: Path) -> str:
    """A film's path as it is on every machine that has the study."""
    path = Path(film)
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else film


def _drawn(
    pool: list[Film], counts: tuple[int, int], study: Study, root: Path, seed: int
) -> tuple[list[Film], list[Film]]:
    import numpy as np

    if len(pool) < sum(counts):
        raise SettingsError(
            f"{root}: {len(pool)} participants with a film of {study.name} to draw from; expected "
            f"{counts[0]} to train and {counts[1]} to test; check --root and --series, or ask for "
            f"fewer with --train and --test{_packed(root)}"
        )
    order = [pool[k] for k in np.random.default_rng(seed).permutation(len(pool))]
    return order[: counts[0]], order[counts[0] : sum(counts)]


def _files(folder: Path, visits: tuple[str, ...], inside: bool) -> Iterator[Path]:
    """The files of the visit; where a folder is called as it is, those beside it are others."""
    try:
        with os.scandir(folder) as entries:  # which tells files from folders without a look at each
            seen = sorted((entry for entry in entries if entry.name[0] != "."), key=_name)
    except OSError as error:
        raise SettingsError(
            f"{folder}: {error.strerror}; expected a folder that can be listed; check its "
            "permissions"
        ) from error
    folders = [entry for entry in seen if entry.is_dir(follow_symlinks=False)]
    if inside:
        files = [Path(entry) for entry in seen if entry.is_file()]
        yield from files if len(files) <= SHORT else files[:1]
    else:
        named = [entry for entry in folders if _matches(entry.name, visits)]
        folders, inside = (named, True) if named else (folders, False)
    for entry in folders:
        yield from _files(Path(entry), visits, inside)


def _name(entry: os.DirEntry[str]) -> str:
    return entry.name


def _of_view(files: Iterable[Path], study: Study, choice: Choice, root: Path) -> Iterator[str]:
    """The bilateral frontal films: as a folder's name says, else as the header does."""
    others = []
    for path in files:
        folders = path.relative_to(root).parts[:-1]
        if choice.series is None and any(_matches(name, study.views) for name in folders):
            if _is_dicom(path):
                yield str(path)
        elif not path.name.endswith(ARCHIVE):
            others.append(str(path))
    yield from in_series(others, choice.series or study.series)


def _participant(film: str, root: Path, study: Study, choice: Choice) -> str | None:
    """Whose a film is, as the first folder that is called so says."""
    pattern = re.compile(choice.participant or study.participant)
    for name in Path(from_root(film, root)).parts[:-1]:
        found = pattern.fullmatch(name)
        if found:
            return str(found[1] if pattern.groups else found[0])
    return None


def _given(path: Path | None, root: Path, study: Study, choice: Choice) -> list[Film]:
    """The films of a list, all of them."""
    names = [] if path is None else _listed(path, root)
    return [Film(name, _participant(name, root, study, choice) or name) for name in names]


def _listed(path: Path, root: Path) -> list[str]:
    """The films of a list, whose paths may begin at the root."""
    sign = "" if path.suffix.lower() == CSV_SUFFIX else LIST_SIGN
    return [
        str(root / name) if not os.path.lexists(name) and os.path.lexists(root / name) else name
        for name in find_films([f"{sign}{path}"])
    ]


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _is_dicom(path: Path) -> bool:
    try:
        return is_dicom(path)
    except FilmError:
        return False


def _nothing(study: Study, root: Path, choice: Choice, found: int) -> str:
    """Why there are no films."""
    if found:
        wanted = choice.participant or study.participant
        return (
            f"{root}: {found} films, none in a folder of a participant; expected its name to be "
            f"like {wanted}; name another pattern with --participant"
        )
    visits = choice.visit or " or ".join(study.visits)
    views = "" if choice.series or not study.views else f" or in {', '.join(study.views)}"
    return (
        f"{root}: no film of {study.name}; expected, in a folder {visits}, DICOM described as "
        f"{choice.series or study.series}{views}; check --root, --visit and --series{_packed(root)}"
    )


def _packed(root: Path) -> str:
    """Whether the films may still be in archives."""
    packed = next(root.rglob(f"*{ARCHIVE}"), None) if root.is_dir() else None
    if packed is None:
        return ""
    return f"; there are archives ({packed.name}): unpack them as docs/reproduce.md says"
