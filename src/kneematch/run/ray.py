"""Visit films on a Ray cluster: batches of films travel, actors visit them.

Every machine must find kneematch, the films, the output folder and the template or model under the
same paths.
"""

import logging
import os
import signal
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from kneematch.errors import SettingsError, missing_extra
from kneematch.parallel import keep_memory
from kneematch.run.film_record import FilmRecord
from kneematch.run.visit import Visit
from kneematch.run.workers import Films, chunks, load_worker, visit_in_worker

MAX_BLOCKS: Final = 10_000  # tasks that Ray keeps track of; each holds one batch or more
LOCAL: Final = "local"  # in place of an address: a cluster of this machine alone
ACTORS_PER_GPU: Final = 4  # each takes about 2.7 GB on the GPU


@dataclass(frozen=True, slots=True)
class Batch:
    """Films that travel together; Ray would take a list apart."""

    films: Films


@dataclass(frozen=True, slots=True)
class Cluster:
    """The CPUs and GPUs of a cluster."""

    cpus: int
    gpus: int

    @property
    def name(self) -> str:
        """Describe it for run.json and the report."""
        return f"a Ray cluster of {self.cpus} CPUs and {self.gpus} GPUs"

    def device(self, wanted: str) -> str:
        """Return where films are searched: on GPUs if there are any, unless another is wanted."""
        if wanted != "auto":
            return wanted
        return "cuda" if self.gpus else "cpu"

    def actors(self, device: str) -> tuple[int, float]:
        """Return how many actors there are for a device, and the share of a GPU of each."""
        if device == "cpu":
            return max(self.cpus, 1), 0.0
        actors = max(min(self.cpus, ACTORS_PER_GPU * self.gpus), 1)
        return actors, min(max(self.gpus, 1) / actors, 1.0)

    def map_visits(self, visit: Visit, films: Films) -> Generator[list[FilmRecord]]:
        """Yield the films after their visits, some at a time, in any order.

        What a machine that is lost had in hand is done again by another.
        """
        if not films:  # Ray does not make a dataset of nothing
            return
        ray = _ray()
        actors, gpus = self.actors(visit.config.device)
        items = [{"batch": Batch(some)} for some in chunks(films, actors, visit.config)]
        found = ray.data.from_items(items, override_num_blocks=min(len(items), MAX_BLOCKS)).map(
            _Actor,
            fn_constructor_args=(visit, os.getcwd()),  # noqa: PTH109 - a text travels
            compute=ray.data.ActorPoolStrategy(min_size=1, max_size=actors),
            num_cpus=1,
            num_gpus=gpus,
        )
        for item in found.iter_rows():
            yield list(item["batch"].films)


class _Actor:
    """A process of the cluster that keeps its detector."""

    def __init__(self, visit: Visit, folder: str) -> None:
        # Relative paths mean what they mean where the command was given; a machine without that
        # folder can still find absolute ones.
        with suppress(OSError):
            os.chdir(folder)
        keep_memory()
        load_worker(visit)

    def __call__(self, item: dict[str, Any]) -> dict[str, Any]:
        result = visit_in_worker(item["batch"].films)
        if isinstance(result, Exception):
            raise result
        return {"batch": Batch(result)}


@contextmanager
def connect(address: str) -> Iterator[Cluster]:
    """Connect to a running cluster, or start a local one that ends afterwards."""
    ray = _ray()
    if ray.is_initialized():
        yield _cluster(ray)
        return
    on_terminate = signal.getsignal(signal.SIGTERM)  # which Ray takes for itself
    try:
        ray.init(
            address=address,
            include_dashboard=False if address == LOCAL else None,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (ConnectionError, ValueError) as error:
        raise SettingsError(
            f"No Ray cluster runs at --ray {address} ({str(error)[:100]})."
        ) from error
    except Exception as error:  # Ray raises it as such where a process of its own does not start
        reason = str(error).split("\n", 1)[0][:150]
        raise SettingsError(
            f"Ray did not start: {reason}. Try again when the machine is less busy, or leave out "
            "--ray."
        ) from error
    try:
        signal.signal(signal.SIGTERM, on_terminate)
        yield _cluster(ray)
    finally:
        ray.shutdown()


def _ray() -> Any:
    """Import Ray, which is an extra and has no type stubs."""
    try:
        import_module("ray.data")
        return import_module("ray")
    except ImportError as error:
        raise missing_extra(f"--ray needs Ray ({error})", "ray") from error


def _cluster(ray: Any) -> Cluster:
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    resources = ray.cluster_resources()
    return Cluster(int(resources.get("CPU", 1)), int(resources.get("GPU", 0)))
