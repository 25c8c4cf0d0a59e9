"""Training films: split into halves once, cached on disk, and read again in every epoch."""

import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import torch
from torch import Tensor

from kneematch.errors import FilmError, NotARadiograph, SettingsError, Unreadable
from kneematch.films.files import content_hash, is_abandoned, make_folder, write_file, writing
from kneematch.films.radiograph import LATERALITIES
from kneematch.films.read import is_dicom, read_isolated, to_film_error
from kneematch.knee.knee_images import film_tensor
from kneematch.paper.split import HALF_SIZE, SIDES, split
from kneematch.parallel import WorkerDied, map_in_workers
from kneematch.training.config import CACHE_VARIABLE, cache_folder

FORMAT: Final = 1  # bump when preprocessing changes
SHAPE: Final = (len(SIDES), *HALF_SIZE)
DTYPE: Final = np.dtype("<u2")
WHITE: Final = np.float32(65535)
BYTES: Final = int(np.prod(SHAPE)) * DTYPE.itemsize  # of a cached film, 1.6 MB
HALVES_SUFFIX, REASON_SUFFIX = ".halves", ".reason"
INDEX: Final = "known.jsonl"
SETTLED_NS: Final = 3_000_000_000  # a second change within a clock tick leaves no trace in a stamp
GPU_FRACTION: Final = 0.3  # of the free GPU memory, which films may fill
LOAD_BATCH: Final = 64  # films

ROOM_NEEDED: Final = (
    f"The cache needs 1.6 MB per film; choose another folder with --cache or ${CACHE_VARIABLE}."
)

Stamp = tuple[int, int, int]  # file size, time of modification, time of status change (ns)


class Films(Protocol):
    """The training films u_1 ... u_N."""

    def __len__(self) -> int: ...

    def halves(self, rows: Tensor) -> Tensor:
        """Return the halves (K, 2, H, W), float32, of films given by their indices (K,)."""


@dataclass(frozen=True, slots=True, eq=False)
class FilmsInMemory:
    """Films in the memory of a device."""

    pixels: Tensor  # (N, 2, H, W)

    def __len__(self) -> int:
        return len(self.pixels)

    def halves(self, rows: Tensor) -> Tensor:
        """Return the halves (K, 2, H, W), float32, of films given by their indices (K,)."""
        return self.pixels[rows.to(self.pixels.device)].float()


@dataclass(frozen=True, slots=True)
class CachedFilms:
    """Films in the cache folder, of which a batch is read when it is needed."""

    folder: Path
    paths: tuple[str, ...]
    keys: tuple[str, ...]  # SHA-256 of the files' content
    device: str = "cpu"  # where halves are sent to

    def __len__(self) -> int:
        return len(self.paths)

    def halves(self, rows: Sequence[int] | Tensor) -> Tensor:
        """Return the halves (K, 2, 800, 500), float32, of films given by their indices (K,)."""
        numbers = torch.as_tensor(rows).tolist()
        halves = np.empty((len(numbers), *SHAPE), np.float32)
        for target, number in zip(halves, numbers, strict=True):
            entry = _entry(self.folder, self.keys[number])
            try:
                stored = np.memmap(entry, DTYPE, mode="r", shape=SHAPE)
            except (OSError, ValueError) as error:
                raise SettingsError(
                    f"{entry}: gone or cut short since {self.paths[number]} was prepared; expected "
                    f"{BYTES} bytes; run the command again"
                ) from error
            np.divide(stored, WHITE, out=target)
        return torch.from_numpy(halves).to(self.device)


def to_device(films: CachedFilms, device: str) -> Films:
    """Load films into the memory of a GPU if they fit, or else send batches there."""
    where = torch.device(device)
    if where.type == "cuda":
        free, _ = torch.cuda.mem_get_info(where)
        if 4 * len(films) * int(np.prod(SHAPE)) <= GPU_FRACTION * free:
            batches = torch.split(torch.arange(len(films)), LOAD_BATCH)
            return FilmsInMemory(torch.cat([films.halves(rows).to(where) for rows in batches]))
    return replace(films, device=device)


def prepare_films(
    films: Iterable[str | os.PathLike[str]],
    folder: str | os.PathLike[str] | None = None,
    *,
    side_margin: float,
    workers: int,
    report: Callable[[], None] = lambda: None,
) -> tuple[CachedFilms, list[tuple[str, str]]]:
    """Split films that show both knees into halves, except those that the cache already holds.

    Several runs may share the folder, and a run may be killed at any time.

    Args:
        films: their files; a file named twice counts once.
        folder: the cache, 1.6 MB per film; None is "films" in `cache_folder()`.
        side_margin: margin beside the film, as in `split`.
        workers: number of worker processes; 0 works in this process.
        report: called after each film.

    Returns:
        The films, in order, and (path, reason) of those that cannot be used.
    """
    paths = list(dict.fromkeys(os.fspath(film) for film in films))
    shared = cache_folder() / "films" if folder is None else Path(folder)
    own = shared / f"halves-{FORMAT}-{side_margin}"
    _make_folder(own)
    index, hashes = shared / INDEX, read_index(shared / INDEX)
    entries: dict[str, _Entry] = {}
    for path in paths:
        entry = _find_entry(own, path, hashes.get(_identity(path)))
        if entry is not None:
            entries[path] = entry
            report()
    unknown = [path for path in paths if path not in entries]
    work = partial(_prepare, own, side_margin)
    with closing(map_in_workers(work, unknown, workers=workers)) as results:
        for path, result in results:
            if isinstance(result, SettingsError):
                raise result
            new = _Entry(failure=f"{path}: {result}") if isinstance(result, WorkerDied) else result
            entries[path] = new
            if new.stamp is not None:
                with writing(own, ROOM_NEEDED):
                    append_to_index(index, path, new.stamp, new.key)
            report()
    good = tuple(path for path in paths if entries[path].failure is None)
    failures = [(path, entries[path].failure) for path in paths]
    cached = CachedFilms(own, good, tuple(entries[path].key for path in good))
    return cached, [(path, reason) for path, reason in failures if reason is not None]


@dataclass(frozen=True, slots=True)
class _Entry:
    """The cache's knowledge of a film: its halves, or why it has none."""

    key: str = ""  # SHA-256 of the file's content
    failure: str | None = None
    stamp: Stamp | None = None  # of the file when it was hashed


def _prepare(own: Path, side_margin: float, path: str) -> _Entry | SettingsError:
    """Hash a film and, unless the cache has its content, store its halves.

    An error of the cache is returned rather than raised, which would end a worker process.
    """
    try:
        is_dicom(path)  # refuses folders, pipes and files that are too large
        stamp = _stamp(path)
        key = content_hash(path)
        entry = _find_entry(own, path, key)
        if entry is None:
            halves = _split(path, side_margin)
            if _stamp(path) != stamp:
                raise Unreadable(
                    f"{path}: changed while it was read; expected it to stay; run the command again"
                )
            _store(own, key, halves)
            entry = _find_entry(own, path, key)
    except SettingsError as error:
        return error
    except FilmError as error:
        return _Entry(failure=str(error))
    except OSError as error:
        return _Entry(failure=f"{path}: {error.strerror or error}; expected a film; check the file")
    return replace(entry or _Entry(key), stamp=stamp)


def _split(path: str, side_margin: float) -> Tensor | str:
    """Return the halves (2, 800, 500) of a film, or a lasting reason why it cannot be used."""
    try:
        radiograph = read_isolated(path)
        if radiograph.laterality in LATERALITIES:
            return (
                f"a film of one knee (laterality {radiograph.laterality}); expected both, to train "
                "on; leave it out"
            )
        return split(film_tensor(radiograph), side_margin=side_margin).pixels
    except NotARadiograph as error:
        text = str(error)
        raise NotARadiograph(text if text.startswith(path) else f"{path}: {text}") from error
    except FilmError:
        raise
    except Exception as error:  # one film of 100,000 must not stop the others
        raise to_film_error(path, error) from error


def _store(own: Path, key: str, halves: Tensor | str) -> None:
    """Write halves as 16-bit integers, or the reason why there are none."""
    path = _entry(own, key)
    with writing(own, ROOM_NEEDED):
        make_folder(path.parent)
        if isinstance(halves, str):
            write_file(path.with_suffix(REASON_SUFFIX), halves.encode())
        else:
            levels = np.rint(halves.clamp(0, 1).numpy() * WHITE)
            write_file(path, levels.astype(DTYPE).tobytes())


def _find_entry(own: Path, path: str, key: str | None) -> _Entry | None:
    """Return the cache's entry for a film's content; an incomplete file does not count."""
    if key is None:
        return None
    file = _entry(own, key)
    with suppress(OSError):
        if file.stat().st_size == BYTES:
            return _Entry(key)
    with suppress(OSError):
        reason = file.with_suffix(REASON_SUFFIX).read_text(encoding="utf-8")
        return _Entry(key, f"{path}: {reason}") if reason else None
    return None


def _entry(own: Path, key: str) -> Path:
    return own / key[:2] / f"{key}{HALVES_SUFFIX}"


def _stamp(path: str) -> Stamp:
    """Return what changes when a file's content does."""
    about = Path(path).stat()
    return about.st_size, about.st_mtime_ns, about.st_ctime_ns


def _identity(path: str) -> tuple[str, Stamp] | None:
    try:
        return str(Path(path).absolute()), _stamp(path)
    except OSError:
        return None


def read_index(index: Path) -> dict[tuple[str, Stamp] | None, str]:
    """Return the known hashes of files, by absolute path and stamp; skip torn lines."""
    hashes: dict[tuple[str, Stamp] | None, str] = {}
    for line in index.read_bytes().splitlines() if index.exists() else ():
        with suppress(ValueError, TypeError, RecursionError):
            path, size, modified, changed, key = json.loads(line)
            hashes[path, (size, modified, changed)] = str(key)
    return hashes


def append_to_index(index: Path, path: str, stamp: Stamp, key: str) -> None:
    """Remember the hash of a file, unless the file is so new that it may still change."""
    if max(stamp[1:]) > time.time_ns() - SETTLED_NS:
        return
    line = json.dumps([str(Path(path).absolute()), *stamp, key]) + "\n"
    # A single write at the end of the file, so that the lines of two processes do not mix.
    descriptor = os.open(index, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def _make_folder(own: Path) -> None:
    """Create the cache folder, and remove temporary files of runs that were killed."""
    with writing(own, ROOM_NEEDED):
        make_folder(own)
        for temporary in own.glob("*/.*"):
            with suppress(FileNotFoundError):  # another run has finished or removed it
                if is_abandoned(temporary):
                    temporary.unlink()
