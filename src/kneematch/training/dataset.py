"""Films as training reads them, again and again: their halves, prepared once and kept on disk."""

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from kneematch.errors import FilmError, NotARadiograph, SettingsError, Unreadable
from kneematch.geometry.split import HALF_SIZE, SIDES, split
from kneematch.io.atomic import write_aside
from kneematch.io.read import is_dicom, read
from kneematch.parallel.pool import Died, apply_in_order
from kneematch.training.cache_folder import VARIABLE, cache_folder
from kneematch.training.known import Stamp, known_films, stamp

FORMAT: Final = 1  # to be raised when a film's halves come to be others
SHAPE: Final = (len(SIDES), *HALF_SIZE)
DTYPE: Final = np.dtype("<u2")
WHITE: Final = np.float32(65535)
BYTES: Final = int(np.prod(SHAPE)) * DTYPE.itemsize  # 1.6 MB
HALVES, REASON = ".halves", ".reason"  # suffixes
ONE_KNEE: Final = ("L", "R")
AHEAD: Final = 8  # films a process, of which the results may wait for an earlier one
ABANDONED_S: Final = 86_400  # after which a file that was never renamed belongs to no one


@dataclass(frozen=True, slots=True)
class PreparedFilms:
    """Halves on disk, of which only those that are asked for are read."""

    folder: Path
    films: tuple[str, ...]  # their paths
    keys: tuple[str, ...]  # the hashes of their content

    def __len__(self) -> int:
        return len(self.films)

    def halves(self, indices: Sequence[int] | Tensor) -> Tensor:
        """The halves of some films, (N, 2, 800, 500) in float32."""
        numbers = [int(index) for index in indices]
        halves = np.empty((len(numbers), *SHAPE), np.float32)
        for row, number in zip(halves, numbers, strict=True):
            entry = _entry(self.folder, self.keys[number])
            try:
                stored = np.memmap(entry, DTYPE, mode="r", shape=SHAPE)
            except (OSError, ValueError) as error:
                raise SettingsError(
                    f"{entry}: gone or cut short since {self.films[number]} was prepared; expected "
                    f"{BYTES} bytes; run the command again"
                ) from error
            np.divide(stored, WHITE, out=row)
        return torch.from_numpy(halves)


@dataclass(frozen=True, slots=True)
class _Made:
    """What became of a film."""

    key: str = ""  # the hash of its content
    failure: str | None = None  # why it is left out
    seen: Stamp | None = None  # of the file that was hashed


def films_folder() -> Path:
    """Where prepared films are kept unless another folder is named."""
    return cache_folder() / "films"


def prepare_films(
    films: Iterable[str | os.PathLike[str]],
    folder: str | os.PathLike[str] | None = None,
    *,
    room: float,
    workers: int,
    report: Callable[[], None] = lambda: None,
) -> tuple[PreparedFilms, list[tuple[str, str]]]:
    """Prepare films that show both knees, but for those that the folder has already.

    The folder may be shared with other runs, and a run may be killed at any time.

    Args:
        films: their files; one that is named twice counts once.
        folder: where halves are kept, 1.6 MB a film, by the film's content.
        room: beside the film, as `split` has it.
        workers: processes that read; 0 reads in this one.
        report: called after each film.

    Returns:
        The films, in order, and those left out: (path, reason).
    """
    paths = list(dict.fromkeys(os.fspath(film) for film in films))
    shared = films_folder() if folder is None else Path(folder)
    own = shared / f"halves-{FORMAT}-{room}"
    _make(own)
    known = known_films(shared / "known.jsonl")
    made = {}
    for film in paths:
        kept = _kept(own, film, known.find(film))
        if kept is not None:
            made[film] = kept
            report()
    unknown = [film for film in paths if film not in made]
    work, ahead = partial(_prepare, own, room), AHEAD * max(workers, 1)
    with closing(apply_in_order(work, unknown, workers=workers, ahead=ahead)) as new:
        for film, result in zip(unknown, new, strict=True):
            one = _Made(failure=result.told_of(film)) if isinstance(result, Died) else result
            made[film] = one
            if one.seen is not None:
                with _writing(own):
                    known.add(film, one.seen, one.key)
            report()
    good = tuple(film for film in paths if made[film].failure is None)
    prepared = PreparedFilms(own, good, tuple(made[film].key for film in good))
    reasons = ((film, made[film].failure) for film in paths)
    return prepared, [(film, reason) for film, reason in reasons if reason is not None]


def _prepare(own: Path, room: float, film: str) -> _Made:
    """Hash a film and, unless its content was met before, make its halves."""
    try:
        is_dicom(film)  # which refuses folders, pipes and what is too large
        seen = stamp(Path(film).stat())
        key = _digest(film)
        kept = _kept(own, film, key)
        if kept is None:
            halves = _halves(film, room)
            if stamp(Path(film).stat()) != seen:
                raise Unreadable(
                    f"{film}: changed while it was read; expected it to stay; run the command again"
                )
            _keep(own, key, halves)
            kept = _kept(own, film, key)
    except FilmError as error:
        return _Made(failure=str(error))
    except OSError as error:
        return _Made(failure=f"{film}: {error.strerror or error}; expected a film; check the file")
    return replace(kept or _Made(key), seen=seen)


def _halves(film: str, room: float) -> Tensor | str:
    """The halves (2, 800, 500) of a film, or why there are none and will never be."""
    try:
        radiograph = read(film)
        if radiograph.laterality in ONE_KNEE:
            return (
                f"a film of one knee (laterality {radiograph.laterality}); expected both, to train "
                "on; leave it out"
            )
        return split(radiograph, room=room).pixels
    except NotARadiograph as error:
        told = str(error)
        raise NotARadiograph(told if told.startswith(film) else f"{film}: {told}") from error
    except FilmError:
        raise
    except Exception as error:  # one film of 100,000 must not stop the others
        raise FilmError(
            f"{film}: {type(error).__name__}: {error}; expected a film or a known fault; "
            "report this as a bug of kneematch"
        ) from error


def _keep(own: Path, key: str, halves: Tensor | str) -> None:
    """Write halves in 16 bits, or the reason why there are none."""
    entry = _entry(own, key)
    with _writing(own):
        entry.parent.mkdir(exist_ok=True)
        if isinstance(halves, str):
            with write_aside(entry.with_suffix(REASON)) as aside:
                aside.write_text(halves, encoding="utf-8")
        else:
            with write_aside(entry) as aside:
                levels = np.rint(halves.clamp(0, 1).numpy() * WHITE)
                aside.write_bytes(levels.astype(DTYPE).tobytes())


def _kept(own: Path, film: str, key: str | None) -> _Made | None:
    """What was made of a film's content before, if anything; what is not whole is nothing."""
    if key is None:
        return None
    entry = _entry(own, key)
    with suppress(OSError):
        if entry.stat().st_size == BYTES:
            return _Made(key)
    with suppress(OSError):
        reason = entry.with_suffix(REASON).read_text(encoding="utf-8")
        return _Made(key, f"{film}: {reason}") if reason else None
    return None


def _entry(own: Path, key: str) -> Path:
    return own / key[:2] / f"{key}{HALVES}"


def _digest(film: str) -> str:
    with Path(film).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _make(own: Path) -> None:
    """Make the folder; clear away what runs that were killed did not finish."""
    with _writing(own):
        own.mkdir(parents=True, exist_ok=True)
        for aside in own.glob("*/.*"):
            with suppress(FileNotFoundError):  # another run has finished it, or cleared it away
                if aside.stat().st_mtime < time.time() - ABANDONED_S:
                    aside.unlink()


@contextmanager
def _writing(own: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SettingsError(
            f"{own}: cannot be written ({error.strerror or error}); expected a folder with 1.6 MB "
            f"a film to spare; name another one with ${VARIABLE}"
        ) from error
