"""Training films: split into halves once, cached on disk, and read again in every epoch.

A cached film is named by the SHA-256 of its file's content, so it is never out of date, whatever
happens to the file. Several runs may share the folder, and a run may be killed at any time.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import torch
from torch import Tensor

from kneematch.errors import KneematchError, NotARadiograph, SettingsError, Unreadable
from kneematch.films.files import content_hash, make_folder, remove_leftovers, write_file, writing
from kneematch.films.radiograph import LATERALITIES
from kneematch.films.read import is_dicom, read_isolated, to_film_error
from kneematch.knee.knee_images import film_tensor
from kneematch.paper.split import HALF_SIZE, SIDES, split
from kneematch.parallel import map_in_workers
from kneematch.training.config import CACHE_VARIABLE, cache_folder

FORMAT: Final = 2  # bump when preprocessing changes
SHAPE: Final = (len(SIDES), *HALF_SIZE)
DTYPE: Final = np.dtype("<u2")
WHITE: Final = np.float32(65535)
BYTES: Final = int(np.prod(SHAPE)) * DTYPE.itemsize  # size of a cached film, 1.6 MB
GPU_FRACTION: Final = 0.3  # share of the free GPU memory that films may fill
LOAD_BATCH: Final = 64  # films
ROOM_NEEDED: Final = (
    f"The cache needs 1.6 MB per film; choose another folder with --cache or ${CACHE_VARIABLE}."
)


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
        """Return halves as `Films` does."""
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
                np.divide(np.fromfile(entry, DTYPE).reshape(SHAPE), WHITE, out=target)
            except (OSError, ValueError) as error:
                raise SettingsError(
                    f"The cached film {entry} was deleted or damaged during the training. Run the "
                    "command again with --resume."
                ) from error
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

    The cache is `folder`, or "films" in `cache_folder()`; `side_margin` is that of `split`. A file
    named twice counts once, and `report` is called after each. 0 workers: in this process.

    Returns:
        The films, in order, and (path, reason) of those that cannot be used.
    """
    paths = list(dict.fromkeys(os.fspath(film) for film in films))
    shared = cache_folder() / "films" if folder is None else Path(folder)
    own = shared / f"halves-{FORMAT}-{side_margin}"
    with writing(own, ROOM_NEEDED):
        make_folder(own)
        remove_leftovers(own)
    keys, failures = dict[str, str](), dict[str, str]()
    work = partial(_prepare, own, side_margin)
    with closing(map_in_workers(work, paths, workers=workers)) as results:
        for path, result in results:
            if isinstance(result, SettingsError):
                raise result
            if isinstance(result, str):
                keys[path] = result
            else:
                reason = str(result)
                failures[path] = reason if path in reason else f"{path}: {reason}"
            report()
    good = tuple(path for path in paths if path in keys)
    cached = CachedFilms(own, good, tuple(keys[path] for path in good))
    return cached, [(path, failures[path]) for path in paths if path in failures]


def _prepare(own: Path, side_margin: float, path: str) -> str | KneematchError:
    """Store a film's halves unless the cache has them; return its key, or why there is none.

    Errors are returned rather than raised, which would end a worker process.
    """
    try:
        is_dicom(path)  # refuses folders, pipes and files that are too large
        key = content_hash(path)
        entry = _entry(own, key)
        if not entry.exists() or entry.stat().st_size != BYTES:
            radiograph = read_isolated(path)
            if radiograph.laterality in LATERALITIES:
                return NotARadiograph("The film shows one knee; training needs films of both.")
            halves = split(film_tensor(radiograph), side_margin=side_margin).pixels
            if content_hash(path) != key:
                return Unreadable("The file changed while it was read. Run the command again.")
            levels = np.rint(halves.clamp(0, 1).numpy() * WHITE)
            with writing(entry, ROOM_NEEDED):
                write_file(entry, levels.astype(DTYPE).tobytes())
    except KneematchError as error:
        return error
    except OSError as error:
        return Unreadable(error.strerror or str(error))
    except Exception as error:  # noqa: BLE001 - one film of 100,000 must not stop the others
        return to_film_error(path, error)
    return key


def _entry(own: Path, key: str) -> Path:
    return own / f"{key}.halves"
