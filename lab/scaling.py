"""Measure `kneematch detect` end to end: films per second by the number of cores, or on a GPU.

Every run is the real command in a process of its own, tied to its cores, with one worker process
per core; so is the Ray cluster of `--engine ray`, with all its processes. The films are phantoms;
`--distinct` of them are rendered, the others are links to these, so that reading comes from the
disk cache.

Columns:
    cores       CPU cores, and worker processes.
    films       number of films.
    seconds     wall time of the command, start included.
    films/s     films / seconds: what a user waits for.
    after start films per second while the last three quarters of the films are done, so that all
                workers have started.
    speed-up    of `after start`, against the first row; both are medians over the `--turns`.
    compute     with --compute-only: searches per second of one film that is held in memory, by as
                many processes: what the machine itself gains from more cores.

Commands:
    python benchmarks/scaling.py --cores 1 2
    python benchmarks/scaling.py --cores 1 2 4 8 16 --size 2048x2494 --films 500
    python benchmarks/scaling.py --cores 16 --device cuda --size 2048x2494 --films 4096
    python benchmarks/scaling.py --cores 1 2 --jpeg2000
    python benchmarks/scaling.py --cores 1 2 --engine ray --films 400 --fewest 200 --turns 3
    python benchmarks/scaling.py --cores 1 2 4 8 16 --compute-only
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import pydicom
import torch
from kneephantoms.phantom import phantom
from pydicom.encaps import encapsulate
from pydicom.uid import JPEG2000Lossless

from kneematch.knee.detector import Detector
from kneephantoms.config import SynthConfig, parse_size
from kneephantoms.dataset import synthesize

SAMPLE_S = 0.02
COMPUTE_S = 6.0


def main() -> None:
    """Print a table, a row for each number of cores."""
    options = _options()
    if options.compute_only:
        _print_compute(options.cores)
        return
    folder = phantom_folder(options.work, options.size, options.distinct, options.jpeg2000)
    counts = [max(options.films * n // max(options.cores), options.fewest) for n in options.cores]
    turns = [
        [
            _run(links(folder, count), cores, options)
            for cores, count in zip(options.cores, counts, strict=True)
        ]
        for _ in range(options.turns)
    ]
    print("| cores | films | seconds | films/s | after start | speed-up |")
    print("|---:|---:|---:|---:|---:|---:|")
    for k, (cores, count) in enumerate(zip(options.cores, counts, strict=True)):
        seconds, rate = (median(turn[k][at] for turn in turns) for at in (0, 1))
        speed_up = median(turn[k][1] / turn[0][1] for turn in turns)
        print(
            f"| {cores} | {count} | {seconds:.1f} | {count / seconds:.1f} | {rate:.1f} "
            f"| {speed_up:.2f} |"
        )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--size", default="1024x1247", help="height x width of the films")
    parser.add_argument("--films", type=int, default=120, help="of the run on most cores")
    parser.add_argument("--fewest", type=int, default=40, help="films of any long run")
    parser.add_argument("--distinct", type=int, default=40, help="phantoms to render")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--engine", choices=["local", "ray"], default="local")
    parser.add_argument("--turns", type=int, default=1, help="runs of each number of cores")
    parser.add_argument("--jpeg2000", action="store_true", help="compress the films, lossless")
    parser.add_argument("--compute-only", action="store_true", help="the machine's own limit")
    parser.add_argument("--work", type=Path, default=Path("scaling-films"))
    return parser.parse_args()


def phantom_folder(work: Path, size: str, count: int, jpeg2000: bool = False) -> Path:
    """Return a folder of phantoms, which are rendered unless they are there."""
    folder = work / f"{size}-{'jpeg2000' if jpeg2000 else 'plain'}-{count}"
    if not folder.exists():
        synthesize(folder, SynthConfig(count, size=parse_size(size)))
        for path in folder.glob("*.dcm") if jpeg2000 else ():
            _compress(path)
    return folder


def _compress(path: Path) -> None:
    import imagecodecs

    film = pydicom.dcmread(path)
    pixels = film.pixel_array
    film.PixelData = encapsulate([imagecodecs.jpeg2k_encode(pixels, codecformat="J2K", level=0)])
    film.file_meta.TransferSyntaxUID = JPEG2000Lossless
    film["PixelData"].VR = "OB"
    film.save_as(path)


def links(folder: Path, count: int) -> Path:
    """Return a folder of `count` films."""
    films = sorted(folder.glob("*.dcm"))
    linked = folder.with_name(f"{folder.name}-links-{count}")
    linked.mkdir(exist_ok=True)
    for k in range(count):
        link = linked / f"{k:06d}.dcm"
        if not link.exists():
            link.symlink_to(films[k % len(films)].resolve())
    return linked


def _run(films: Path, cores: int, options: argparse.Namespace) -> tuple[float, float]:
    """Return the wall time of a run and its rate after the start."""
    out = options.work / "out"
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "kneematch", "detect", str(films), "-o", str(out), "--quiet"]
    command += ["--device", options.device]
    count = len(list(films.iterdir()))
    with _engine(options.engine, cores) as engine:
        started = time.perf_counter()
        with _tied(cores):
            process = subprocess.Popen(
                [*command, *engine], env={**os.environ, "OMP_NUM_THREADS": "1"}
            )
        rows: list[tuple[float, int]] = []  # when the journal had how many, from the first quarter
        while process.poll() is None:
            done = _rows(out / "journal.jsonl")
            if 4 * done >= count and (not rows or done > rows[-1][1]):
                rows.append((time.perf_counter(), done))
            time.sleep(SAMPLE_S)
        seconds = time.perf_counter() - started
    if process.returncode != 0 or len(rows) < 2 or rows[-1][1] != count:
        raise RuntimeError(f"{' '.join(command)}: exit code {process.returncode}")
    (first_s, first), (last_s, last) = rows[0], rows[-1]
    return seconds, (last - first) / (last_s - first_s)


@contextmanager
def _tied(cores: int) -> Iterator[None]:
    """Tie the processes that are started here to the first cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(cores))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def _engine(name: str, cores: int) -> Iterator[list[str]]:
    """Yield the options of an engine; for Ray, start a cluster."""
    if name == "local":
        yield ["--workers", str(cores)]
        return
    from ray.cluster_utils import Cluster

    with _tied(cores):
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": cores})
    try:
        yield ["--engine", "ray", "--ray-address", cluster.address]
    finally:
        cluster.shutdown()


def _rows(journal: Path) -> int:
    return journal.read_bytes().count(b'{"index"') if journal.exists() else 0


def _print_compute(cores: list[int]) -> None:
    print("| cores | searches/s | speed-up |")
    print("|---:|---:|---:|")
    first = None
    for count in cores:
        with ProcessPoolExecutor(count, get_context("spawn")) as pool:
            list(pool.map(_search, [0.5] * count))  # started
            rate = sum(pool.map(_search, [COMPUTE_S] * count, chunksize=1))
        first = first or rate
        print(f"| {count} | {rate:.1f} | {rate / first:.2f} |", flush=True)


def _search(seconds: float) -> float:
    """Return how often a second one process searches a film."""
    torch.set_num_threads(1)
    detector = Detector.load(device="cpu")
    (film,) = detector.prepare([phantom(0, size=(512, 640)).radiograph])
    detector.find([film])
    started, count = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        detector.find([film])
        count += 1
    return count / (time.perf_counter() - started)


if __name__ == "__main__":
    main()
