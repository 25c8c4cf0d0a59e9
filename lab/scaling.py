"""Measure `kneematch detect` end to end: films per second and memory, by cores, device and version.

    python lab/scaling.py --cores 1 2 [--films 200] [--turns 3]
    python lab/scaling.py --cores 16 --device cuda --size 2048x2494 --films 4096 --distinct 160
    python lab/scaling.py --cores 2 --options "--crops --overlays" --source OLD/src --source src
    python lab/scaling.py --cores 1 2 --engine ray

Every run is the real command in a process of its own, tied to its cores, with a worker process per
core, and so is the Ray cluster of `--engine ray`. The films are links to `--distinct` phantoms, so
that they come from the disk cache. Versions, given by their source folders, take turns. Columns are
medians over the turns:
    cores        CPU cores, and worker processes.
    start        seconds of a run on one film.
    seconds      of the run on all films.
    films/s      films / seconds: what a user waits for.
    after start  films per second without the start: (films - 1) / (seconds - start).
    memory       peak of all processes together in MB, shared pages counted once.
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median

from films import table
from kneephantoms import SynthConfig, synthesize

SAMPLE_S = 0.1


def main() -> None:
    args = parse_arguments()
    with tempfile.TemporaryDirectory(dir=args.work) as folder:
        films, one = make_films(Path(folder), args)
        sources = args.source or [None]
        runs: dict[tuple[int, Path | None], list[tuple[float, float, float]]] = {}
        for _ in range(args.turns):
            for cores in args.cores:
                for source in sources:
                    start, _ = run(one, cores, source, args)
                    seconds, memory = run(films, cores, source, args)
                    runs.setdefault((cores, source), []).append((start, seconds, memory))
    rows = []
    for (cores, source), turns in runs.items():
        start, seconds, memory = (median(values) for values in zip(*turns, strict=True))
        rates = args.films / seconds, (args.films - 1) / (seconds - start)
        numbers = [f"{start:.1f}", f"{seconds:.1f}", *(f"{rate:.1f}" for rate in rates)]
        rows.append([str(source or "-"), str(cores), str(args.films), *numbers, f"{memory:.0f}"])
    columns = ("version", "cores", "films", "start", "seconds", "films/s", "after start")
    table((*columns, "memory, MB"), rows)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--size", default="1024x1247", help="height x width of the films")
    parser.add_argument("--films", type=int, default=120)
    parser.add_argument("--distinct", type=int, default=40, help="phantoms to render")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--engine", choices=["local", "ray"], default="local")
    parser.add_argument("--options", default="", help="further options of `kneematch detect`")
    parser.add_argument("--source", type=Path, action="append", help="source folder of a version")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--work", type=Path, help="folder for films and results")
    return parser.parse_args()


def make_films(folder: Path, args: argparse.Namespace) -> tuple[Path, Path]:
    """Render phantoms and link to them; return the folder of links, and one film."""
    height, width = map(int, args.size.split("x"))
    config = SynthConfig(args.distinct, size=(height, width), workers=os.cpu_count())
    synthesize(folder / "distinct", config)
    distinct = sorted((folder / "distinct").glob("*.dcm"))
    (folder / "films").mkdir()
    for k in range(args.films):
        (folder / "films" / f"{k:06d}.dcm").symlink_to(distinct[k % len(distinct)])
    return folder / "films", distinct[0]


def run(
    films: Path, cores: int, source: Path | None, args: argparse.Namespace
) -> tuple[float, float]:
    """Return the seconds of a run, and the peak memory of its processes in MB."""
    out = films.with_name("out")
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "kneematch", "detect", str(films), "-o", str(out), "--quiet"]
    command += ["--device", args.device, *shlex.split(args.options)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if source is not None:
        environment["PYTHONPATH"] = str(source.resolve())
    with engine(args.engine, cores) as options, tied(cores):
        started, peak = time.perf_counter(), 0.0
        process = subprocess.Popen([*command, *options], env=environment)
        while process.poll() is None:
            peak = max(peak, megabytes(family(process.pid)))
            with suppress(subprocess.TimeoutExpired):
                process.wait(SAMPLE_S)
        seconds = time.perf_counter() - started
    if process.returncode != 0:
        raise RuntimeError(f"{shlex.join(command)}: exit code {process.returncode}")
    return seconds, peak


@contextmanager
def tied(cores: int) -> Iterator[None]:
    """Tie the processes that are started here to the first cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(cores))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def engine(name: str, cores: int) -> Iterator[list[str]]:
    """Yield the options of an engine; for Ray, start a cluster."""
    if name == "local":
        yield ["--workers", str(cores)]
        return
    from ray.cluster_utils import Cluster

    with tied(cores):
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": cores})
    try:
        yield ["--engine", "ray", "--ray-address", cluster.address]
    finally:
        cluster.shutdown()


def family(pid: int) -> list[int]:
    """Return a process and all that it started."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for parent in found:
        found += [child for child, of in parents.items() if of == parent]
    return found


def megabytes(pids: list[int]) -> float:
    """Return the memory of processes, shared pages counted once."""
    total = 0
    for pid in pids:
        with suppress(OSError, StopIteration):  # it has ended
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines()
            total += int(next(line for line in lines if line.startswith("Pss:")).split()[1])
    return total / 1000


if __name__ == "__main__":
    main()
