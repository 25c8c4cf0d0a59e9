"""The films of a cohort on a Ray cluster: paths travel, CPUs read, GPUs search where there are any.

Every machine must find kneematch, the films and the template or model under the same paths.
"""

import json
import logging
import os
import signal
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Final

from safetensors.torch import load, save

from kneematch.batch.local_engine import read_films, search
from kneematch.batch.recipe import AUTO, Recipe
from kneematch.batch.row import Record, from_line, to_line
from kneematch.detection.prepare import Prepared
from kneematch.errors import SettingsError
from kneematch.geometry.view import View

MOST_BLOCKS: Final = 10_000  # tasks that Ray keeps track of; each is one batch or more
# Without GPUs a core is shared by a reader and a searcher, whichever has something to do.
SHARED_CPU: Final = 0.5

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Cluster:
    """What a cluster has to compute with."""

    cpus: int
    gpus: int

    @property
    def name(self) -> str:
        """For the reader."""
        return f"a Ray cluster of {self.cpus} CPUs and {self.gpus} GPUs"

    def device(self, wanted: str) -> str:
        """Where films are searched: on GPUs, unless there are none or others are wanted."""
        if wanted != AUTO:
            return wanted
        return "cuda" if self.gpus else "cpu"

    def search_batches(
        self, recipe: Recipe, films: Sequence[str], batches: Sequence[range], *, room: float
    ) -> Generator[list[Record]]:
        """The records of each batch of films, given by their numbers, in any order.

        What a machine that is lost had in hand is done again by another.
        """
        ray = _ray()
        recipe = replace(recipe, device=self.device(recipe.device))
        on_gpu = recipe.device.startswith("cuda")
        searchers = self.gpus if on_gpu else self.cpus
        rows = [_row(films, batch) for batch in batches]
        found = (
            ray.data.from_items(rows, override_num_blocks=min(len(rows), MOST_BLOCKS))
            .map(
                _read,
                fn_args=(room, os.getcwd()),  # noqa: PTH109 - a text travels
                num_cpus=1 if on_gpu else SHARED_CPU,
            )
            .map(
                _Search,
                fn_constructor_args=(recipe, os.getcwd()),  # noqa: PTH109
                compute=ray.data.ActorPoolStrategy(min_size=1, max_size=max(searchers, 1)),
                num_cpus=0 if on_gpu else SHARED_CPU,
                num_gpus=1 if on_gpu else 0,
            )
        )
        for row in found.iter_rows():
            yield [from_line(line) for line in row["records"].splitlines(keepends=True)]


@contextmanager
def connected(address: str | None) -> Iterator[Cluster]:
    """A cluster that runs, or one that is started on this machine and ends afterwards."""
    ray = _ray()
    if ray.is_initialized():
        yield _cluster(ray)
        return
    on_terminate = signal.getsignal(signal.SIGTERM)  # which Ray takes for itself
    try:
        ray.init(
            address=address,
            include_dashboard=False if address is None else None,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (ConnectionError, ValueError) as error:
        raise SettingsError(
            f"--ray-address {address}: no cluster ({error}); expected one that runs; check the "
            "address"
        ) from error
    try:
        signal.signal(signal.SIGTERM, on_terminate)
        yield _cluster(ray)
    finally:
        ray.shutdown()


def _ray() -> Any:
    """Ray, of which the type checker knows nothing: it is an extra."""
    try:
        import_module("ray.data")
        return import_module("ray")
    except ImportError as error:
        raise SettingsError(
            f"Ray is missing ({error}); expected the extra `ray`; install it with "
            "pip install 'kneematch[ray]'"
        ) from error


def _cluster(ray: Any) -> Cluster:
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    resources = ray.cluster_resources()
    return Cluster(int(resources.get("CPU", 1)), int(resources.get("GPU", 0)))


def _row(films: Sequence[str], batch: range) -> Row:
    # JSON escapes what Arrow's texts have no room for: names that are not UTF-8.
    named = [films[number] for number in batch]
    return {"batch": json.dumps([batch.start, batch.stop, named])}


def _batch(row: Row) -> tuple[range, list[str]]:
    start, stop, films = json.loads(row["batch"])
    return range(start, stop), films


def _read(row: Row, room: float, folder: str) -> Row:
    """Read a batch, in a process that may die of a film."""
    _enter(folder)
    _, films = _batch(row)
    read = list(read_films(films, room, workers=1, ahead=len(films)))
    facts = [
        film if isinstance(film, str) else [film.sides, film.size, film.mm_per_px] for film in read
    ]
    halves = {
        f"{number}.{name}": tensor
        for number, film in enumerate(read)
        if not isinstance(film, str)
        for name, tensor in (("pixels", film.halves.pixels), ("to_film", film.halves.to_film))
    }
    return {"batch": row["batch"], "facts": json.dumps(facts), "halves": save(halves)}


def _prepared(row: Row) -> list[Prepared | str]:
    """What was read, as it was before it travelled."""
    halves = load(row["halves"])

    def film(number: int, facts: Any) -> Prepared | str:
        if isinstance(facts, str):
            return facts
        sides, size, mm_per_px = facts
        view = View(halves[f"{number}.pixels"], halves[f"{number}.to_film"])
        return Prepared(view, tuple(sides), tuple(size), mm_per_px)

    return [film(number, facts) for number, facts in enumerate(json.loads(row["facts"]))]


class _Search:
    """An actor that keeps its detector."""

    def __init__(self, recipe: Recipe, folder: str) -> None:
        _enter(folder)
        self.detector = recipe.build()

    def __call__(self, row: Row) -> Row:
        batch, films = _batch(row)
        named = dict(zip(batch, films, strict=True))
        records = search(self.detector, named, batch, _prepared(row))
        return {"records": b"".join(map(to_line, records))}


def _enter(folder: str) -> None:
    """Relative paths mean what they mean where the command was given."""
    with suppress(OSError):  # a machine without it can still find absolute ones
        os.chdir(folder)
