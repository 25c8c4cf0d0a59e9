"""Training films: read once, split into halves, and kept on disk or in the memory of a GPU."""

import hashlib
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from kneematch.errors import FilmError, NotARadiograph
from kneematch.films.files import writing
from kneematch.films.radiograph import LATERALITIES
from kneematch.films.read import read_isolated, to_film_error
from kneematch.knee.knee_images import film_tensor
from kneematch.paper.split import HALF_SIZE, SIDES, split
from kneematch.parallel import WorkerDied, map_in_workers

SHAPE: Final = (len(SIDES), *HALF_SIZE)
WHITE, MIDDLE = 65535, 32768  # levels of 16 bits, of which the middle is stored as 0
GPU_FRACTION: Final = 0.3  # share of the free GPU memory that films may fill
ROOM_NEEDED: Final = "A training keeps 1.6 MB per film on the disk of the model."


@dataclass(frozen=True, slots=True, eq=False)
class Films:
    """The training films u_1 ... u_N as `levels` (M, 2, H, W); `rows` (N,) are theirs."""

    levels: Tensor  # int16, on disk or on the device
    rows: Tensor
    device: str = "cpu"  # where halves are needed
    digest: str = ""  # SHA-256 of all pixels

    def __len__(self) -> int:
        return len(self.rows)

    def halves(self, numbers: Tensor) -> Tensor:
        """Return the halves (K, 2, H, W), float32, of films given by their numbers (K,)."""
        rows = self.rows[numbers.cpu()].to(self.levels.device)
        return (self.levels[rows].to(self.device).float() + MIDDLE) / WHITE


def to_levels(halves: Tensor) -> Tensor:
    """Return halves in [0, 1] as 16-bit levels, as `Films` keeps them."""
    return (halves.clamp(0, 1) * WHITE).round().sub(MIDDLE).to(torch.int16)


def prepare_films(
    films: Sequence[str | os.PathLike[str]],
    folder: Path,
    *,
    side_margin: float,
    device: str = "cpu",
    workers: int = 0,
    report: Callable[[], None] = lambda: None,
) -> tuple[Films, list[tuple[str, str]]]:
    """Read films that show both knees, and split them into halves.

    These are kept in a nameless file in `folder`, or on a GPU with enough memory. A film named
    twice counts once, and `report` is called after each. `side_margin` is that of `split`.

    Returns:
        The films, in order, and (path, reason) of those that cannot be used.
    """
    paths = list(dict.fromkeys(os.fspath(film) for film in films))
    digests, failures = dict[str, bytes](), dict[str, str]()
    with writing(folder, ROOM_NEEDED), tempfile.TemporaryFile(dir=folder) as file:
        work = partial(_prepare, side_margin)
        with closing(map_in_workers(work, paths, workers=workers)) as results:
            for path, result in results:
                if isinstance(result, FilmError | WorkerDied):
                    reason = str(result)
                    failures[path] = reason if path in reason else f"{path}: {reason}"
                else:
                    file.write(result)
                    digests[path] = hashlib.sha256(result).digest()
                report()
        file.flush()
        shape = len(digests), *SHAPE
        # Copy on write, since PyTorch takes no array that is read-only.
        levels = np.memmap(file, np.int16, "c", shape=shape) if digests else np.empty(shape, "i2")
    good = [path for path in paths if path in digests]
    order = {path: row for row, path in enumerate(digests)}
    rows = torch.tensor([order[path] for path in good], dtype=torch.long)
    digest = hashlib.sha256(b"".join(digests[path] for path in good)).hexdigest()
    stored = torch.from_numpy(levels)
    if device.startswith("cuda"):
        free, _ = torch.cuda.mem_get_info(torch.device(device))
        stored = stored.to(device) if levels.nbytes <= GPU_FRACTION * free else stored
    failed = [(path, failures[path]) for path in paths if path in failures]
    return Films(stored, rows, device, digest), failed


def _prepare(side_margin: float, path: str) -> bytes | FilmError:
    """Return the levels of a film's halves, or why there are none.

    Errors are returned rather than raised, which would end a worker process.
    """
    try:
        radiograph = read_isolated(path)
        if radiograph.laterality in LATERALITIES:
            return NotARadiograph("The film shows one knee; training needs films of both.")
        halves = split(film_tensor(radiograph), side_margin=side_margin).pixels
        levels: bytes = to_levels(halves).numpy().tobytes()
    except Exception as error:  # noqa: BLE001 - one film of 100,000 must not stop the others
        return to_film_error(path, error)
    return levels
