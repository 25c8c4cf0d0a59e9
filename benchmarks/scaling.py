"""Measure `kneematch detect` end to end: films per second by the number of cores, or on a GPU.

Every run is the real command in a process of its own, tied to its cores by taskset, with one
worker process per core. The films are phantoms; `--distinct` of them are rendered, the others are
links to these, so that reading comes from the disk cache.

Columns:
    cores       CPU cores, and worker processes.
    films       number of films of the long run.
    seconds     wall time of the long run, start included.
    films/s     films / seconds: what a user waits for.
    after start (films - few) / (seconds - seconds of a run on a few films): start taken off.
    speed-up    of `after start`, against the first row.
    peak MB     largest VmHWM of a worker process (resident, shared pages included).

Commands:
    python benchmarks/scaling.py --cores 1 2
    python benchmarks/scaling.py --cores 1 2 4 8 16 --size 2048x2494 --films 500
    python benchmarks/scaling.py --cores 16 --device cuda --size 2048x2494 --films 4096
    python benchmarks/scaling.py --cores 2 --jpeg2000
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pydicom
from pydicom.encaps import encapsulate
from pydicom.uid import JPEG2000Lossless

from kneematch.synthetic.config import SynthConfig, parse_size
from kneematch.synthetic.dataset import synthesize

FEW_PER_CORE = 4  # films of the short run, per core
SAMPLE_S = 0.2


def main() -> None:
    """Print a table, a row for each number of cores."""
    options = _options()
    folder = options.work / f"{options.size}-{options.distinct}"
    if not folder.exists():
        synthesize(folder, SynthConfig(options.distinct, size=parse_size(options.size)))
        for path in folder.glob("*.dcm") if options.jpeg2000 else ():
            _compress(path)
    print("| cores | films | seconds | films/s | after start | speed-up | peak MB |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    first = None
    for cores in options.cores:
        count = max(options.films * cores // max(options.cores), options.fewest)
        few, long = links(folder, FEW_PER_CORE * cores), links(folder, count)
        short_s, _ = _run(few, cores, options)
        seconds, peak = _run(long, cores, options)
        rate = (count - FEW_PER_CORE * cores) / (seconds - short_s)
        first = first or rate
        print(
            f"| {cores} | {count} | {seconds:.1f} | {count / seconds:.1f} | {rate:.1f} "
            f"| {rate / first:.2f} | {peak:.0f} |",
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
    """Return a folder of `count` films, which are links to those of another folder."""
    films = sorted(folder.glob("*.dcm"))
    linked = folder.with_name(f"{folder.name}-links-{count}")
    linked.mkdir(exist_ok=True)
    for k in range(count):
        link = linked / f"{k:06d}.dcm"
        if not link.exists():
            link.symlink_to(films[k % len(films)].resolve())
    return linked


def _run(films: Path, cores: int, options: argparse.Namespace) -> tuple[float, float]:
    """Return the wall time of a run, in s, and the largest memory of a worker, in MB."""
    command = ["taskset", "-c", f"0-{cores - 1}", sys.executable, "-m", "kneematch", "detect"]
    command += [str(films), "-o", str(options.work / "out"), "--force", "--quiet"]
    command += ["--device", options.device, "--workers", str(cores)]
    return run_watched(command, _largest_mb)


def _largest_mb(processes: list[int]) -> float:
    return max(kilobytes(pid, "status", "VmHWM") for pid in processes[1:] or processes) / 1024


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


if __name__ == "__main__":
    main()
