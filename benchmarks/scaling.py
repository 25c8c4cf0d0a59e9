"""Measure `kneematch detect` end to end: films per second by the number of cores, or on a GPU.

Every run is the real command in a process of its own, tied to its cores by taskset, with one
worker process per core. The films are phantoms; `--distinct` of them are rendered, the others are
links to these, so that reading comes from the disk cache.

Columns:
    cores       CPU cores, and worker processes.
    films       number of films.
    seconds     wall time of the command, start included.
    films/s     films / seconds: what a user waits for.
    after start films per second from the first rows in the journal to the last.
    speed-up    of `after start`, against the first row.
    private MB  largest private memory of a worker (pages that it shares with no other process).
    compute     with --compute-only: searches per second of one film that is held in memory, by as
                many processes: what the machine itself gains from more cores.

Commands:
    python benchmarks/scaling.py --cores 1 2
    python benchmarks/scaling.py --cores 1 2 4 8 16 --size 2048x2494 --films 500
    python benchmarks/scaling.py --cores 16 --device cuda --size 2048x2494 --films 4096
    python benchmarks/scaling.py --cores 2 --jpeg2000
    python benchmarks/scaling.py --cores 1 2 4 8 16 --compute-only
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path

import pydicom
import torch
from pydicom.encaps import encapsulate
from pydicom.uid import JPEG2000Lossless

from kneematch.detection.detector import Detector
from kneematch.detection.preparation import prepare
from kneematch.synthetic.config import SynthConfig, parse_size
from kneematch.synthetic.dataset import synthesize
from kneematch.synthetic.phantom import phantom

SAMPLE_S = 0.02
MEMORY_EVERY = 25  # samples
COMPUTE_S = 6.0


def main() -> None:
    """Print a table, a row for each number of cores."""
    options = _options()
    if options.compute_only:
        _print_compute(options.cores)
        return
    kind = "jpeg2000" if options.jpeg2000 else "plain"
    folder = options.work / f"{options.size}-{kind}-{options.distinct}"
    if not folder.exists():
        synthesize(folder, SynthConfig(options.distinct, size=parse_size(options.size)))
        for path in folder.glob("*.dcm") if options.jpeg2000 else ():
            _compress(path)
    print("| cores | films | seconds | films/s | after start | speed-up | private MB |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    first = None
    for cores in options.cores:
        count = max(options.films * cores // max(options.cores), options.fewest)
        seconds, rate, private = _run(links(folder, count), count, cores, options)
        first = first or rate
        print(
            f"| {cores} | {count} | {seconds:.1f} | {count / seconds:.1f} | {rate:.1f} "
            f"| {rate / first:.2f} | {private:.0f} |",
            flush=True,
        )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--size", default="1024x1247", help="height x width of the films")
    parser.add_argument("--films", type=int, default=120, help="of the run on most cores")
    parser.add_argument("--fewest", type=int, default=40, help="films of any long run")
    parser.add_argument("--distinct", type=int, default=40, help="phantoms to render")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jpeg2000", action="store_true", help="compress the films, lossless")
    parser.add_argument("--compute-only", action="store_true", help="the machine's own limit")
    parser.add_argument("--work", type=Path, default=Path("scaling-films"))
    return parser.parse_args()


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


def _run(
    films: Path, count: int, cores: int, options: argparse.Namespace
) -> tuple[float, float, float]:
    """Return the wall time of a run, its rate after the start, and a worker's memory in MB."""
    out = options.work / "out"
    shutil.rmtree(out, ignore_errors=True)
    command = ["taskset", "-c", f"0-{cores - 1}", sys.executable, "-m", "kneematch", "detect"]
    command += [str(films), "-o", str(out), "--quiet"]
    command += ["--device", options.device, "--workers", str(cores)]
    started = time.perf_counter()
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
    rows: list[tuple[float, int]] = []  # when the journal had how many
    private = 0.0
    while process.poll() is None:
        done = _rows(out / "journal.jsonl")
        if done and (not rows or done > rows[-1][1]):
            rows.append((time.perf_counter(), done))
        if len(rows) % MEMORY_EVERY == 1:
            private = max([private, *map(_private_mb, _descendants(process.pid))])
        time.sleep(SAMPLE_S)
    seconds = time.perf_counter() - started
    if process.returncode != 0 or len(rows) < 2 or rows[-1][1] != count:
        raise RuntimeError(f"{' '.join(command)}: exit code {process.returncode}")
    (first_s, first), (last_s, last) = rows[0], rows[-1]
    return seconds, (last - first) / (last_s - first_s), private


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
    film = prepare(phantom(0, size=(512, 640)).radiograph, detector.preparation)
    detector.find([film])
    started, count = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        detector.find([film])
        count += 1
    return count / (time.perf_counter() - started)


def run_watched(command: list[str], memory: Callable[[list[int]], float]) -> tuple[float, float]:
    """Run a command with one thread per process.

    Args:
        command: the program and its arguments.
        memory: returns what is measured, given the ids of the program's process and of all
            processes below it.

    Returns:
        The seconds and the largest memory of all samples.
    """
    started, peak = time.perf_counter(), 0.0
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
    while process.poll() is None:
        peak = max(peak, memory([process.pid, *_descendants(process.pid)]))
        with suppress(subprocess.TimeoutExpired):
            process.wait(SAMPLE_S)
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: exit code {process.returncode}")
    return time.perf_counter() - started, peak


def _descendants(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    children = [int(child) for child in text.split()]
    return children + [deeper for child in children for deeper in _descendants(child)]


def kilobytes(pid: int, file: str, field: str) -> int:
    """Return a field of a process's file in /proc, 0 if the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{field}:")), 0)


def _private_mb(pid: int) -> float:
    fields = ("Private_Clean", "Private_Dirty")
    return sum(kilobytes(pid, "smaps_rollup", field) for field in fields) / 1024


if __name__ == "__main__":
    main()
