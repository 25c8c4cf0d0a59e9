"""Compare the speed of `kneematch detect` with that of a HOG and SVM detector like KneeLocalizer.

    pip install '.[benchmark]'; python benchmarks/peers.py [--films N] [--turns N] [--work FOLDER]

KneeLocalizer (A. Tiulpin et al., "A novel method for automatic localization of joint area on knee
plain radiographs", SCIA 2017; github.com/Oulu-IMEDS/KneeLocalizer) is not packaged for pip, and its
code needs NumPy before 1.24. So a program that does the same amount of work is written here anew
with OpenCV: the same preparation of films, the same number and sizes of windows (759 on a film of
2048 x 2494) and the same descriptors. None of its code is used. The SVM's weights are random: only
the time means anything, not where this program sees knees. OpenCV must be older than 5, which has
no HOG descriptor.

Both tools work on the same phantoms (uncompressed DICOM) with two processes of one thread each, and
take turns. The time per film is the difference between a run on all films and a run on two, divided
by the other films, so that starts are taken off. Columns: medians over the turns of the wall time
per film, the CPU time of all processes per film, which says more on a busy machine, and the wall
time of the start. Below: the median of the turns' ratios, and their range.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, median

import cv2
import numpy as np
import pydicom
from numpy.typing import NDArray

SIZE = "2048x2494"  # height x width
PROCESSES = 2
PERCENTILES = 5, 99  # of the grey levels, which become 0 and 255
SMOOTHED_ROWS = 11
ROW_SHARE, ROW_STEP = 0.05, 10  # every tenth of the rows (5 %) of the steepest brightness
COLUMN_STEP = 95  # px
SIDES = 3.2, 3.3, 3.4, 3.6, 3.8  # the film's height, divided by the side of a window
PATCH = 64, 64
HOG = cv2.HOGDescriptor(PATCH, (16, 16), (8, 8), (8, 8), 9)  # window, block, stride, cell, bins
WEIGHTS = np.random.default_rng(0).normal(size=HOG.getDescriptorSize()).astype(np.float32)
# Runs a command and prints its CPU seconds; as a "subreaper" (prctl 36) it also inherits, and so
# counts, the processes that outlive those that started them.
RUN_AND_COUNT = """
import ctypes, os, resource, subprocess, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
subprocess.run(sys.argv[1:], check=True)
try:
    while True:
        os.wait()
except ChildProcessError:
    print(sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]))
"""

Grey = NDArray[np.uint8]
Window = tuple[int, int, int]  # x and y of the upper left corner, side


def find_by_hog(path: Path) -> int:
    """Find the best window of each half of a film; return how many windows were tried."""
    grey = _read(path)
    middle = grey.shape[1] // 2
    tried = 0
    for first, last in ((0, middle), (middle, grey.shape[1])):
        scores = {window: _score(grey, window, first > 0) for window in _windows(grey, first, last)}
        max(scores, key=lambda window: scores[window])
        tried += len(scores)
    return tried


def _read(path: Path) -> Grey:
    """Return a film (H, W), its grey levels clipped at two percentiles, bones bright."""
    film = pydicom.dcmread(path)
    pixels = np.frombuffer(film.PixelData, np.uint16).reshape(film.Rows, film.Columns)
    grey = pixels.astype(np.float64)
    if film.PhotometricInterpretation == "MONOCHROME1":
        grey = grey.max() - grey
    low, high = np.percentile(grey, PERCENTILES)
    return ((grey.clip(low, high) - low) * (255 / (high - low))).astype(np.uint8)


def _windows(grey: Grey, first: int, last: int) -> Iterator[Window]:
    """Yield the windows around the rows, columns and sizes where the joint of a half may be."""
    height, width = grey.shape
    top, third = height // 4, (last - first) // 3
    middle = grey[top : height - top, first + third : last - third]
    kernel = np.full(SMOOTHED_ROWS, 1 / SMOOTHED_ROWS)
    change = np.abs(np.convolve(np.diff(middle.sum(1, dtype=np.float64)), kernel, mode="same"))
    rows = top + np.argsort(-change)[: int(ROW_SHARE * height) : ROW_STEP]
    quarter, centre = (last - first) // 4, (first + last) // 2
    columns = range(centre - quarter, centre + quarter + 1, COLUMN_STEP)
    for y, x, divisor in product(rows, columns, SIDES):
        side = int(height / divisor)
        if side // 2 <= x < width - side // 2:
            yield x - side // 2, int(y) - side // 2, side


def _score(grey: Grey, window: Window, mirrored: bool) -> float:
    x, y, side = window
    patch = cv2.resize(grey[y : y + side, x : x + side], PATCH)
    descriptor = HOG.compute(cv2.flip(patch, 1) if mirrored else patch)
    return float(WEIGHTS @ descriptor.ravel())


def _find_all(films: Sequence[Path]) -> None:
    with get_context("spawn").Pool(PROCESSES, cv2.setNumThreads, (1,)) as pool:
        tried = list(pool.imap_unordered(find_by_hog, films))
        pool.close()
        pool.join()
    print(f"{mean(tried):.0f} windows per film")


def _commands(out: Path) -> dict[str, list[str]]:
    """Return the command of each tool, without its films."""
    detect = ["-m", "kneematch", "detect", "-o", str(out), "--force", "--device", "cpu"]
    return {
        "HOG and SVM": [sys.executable, __file__, "--hog"],
        "kneematch": [sys.executable, *detect, "--workers", str(PROCESSES), "--quiet"],
    }


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of a tool, from files to results."""

    wall: float  # per film
    cpu: float  # per film, all processes
    start: float


def _measure(command: Sequence[str], films: Sequence[Path]) -> Times:
    few_wall, few_cpu = _run(command, films[:PROCESSES])
    wall, cpu = _run(command, films)
    further = len(films) - PROCESSES
    per_film = (wall - few_wall) / further
    return Times(per_film, (cpu - few_cpu) / further, few_wall - per_film)


def _run(command: Sequence[str], films: Sequence[Path]) -> tuple[float, float]:
    """Return the wall and the CPU seconds of a command on films."""
    run = [sys.executable, "-c", RUN_AND_COUNT, *command, *map(str, films)]
    started = time.perf_counter()
    printed = subprocess.check_output(run, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return time.perf_counter() - started, float(printed.splitlines()[-1])


def main() -> None:
    """Print a row for each tool."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--films", type=int, default=60)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--work", type=Path, default=Path("peers-films"))
    parser.add_argument("--hog", type=Path, nargs="+", help="films: run the HOG and SVM detector")
    args = parser.parse_args()
    if args.hog:
        _find_all(args.hog)
        return
    folder = args.work / f"{SIZE}-plain-{args.films}"
    if not folder.exists():
        synth = ["synth", "-n", str(args.films), "--size", SIZE, "-o", str(folder)]
        subprocess.run([sys.executable, "-m", "kneematch", *synth], check=True, capture_output=True)
    films = sorted(folder.glob("*.dcm"))
    _print_table(_commands(args.work / "out"), films, args.turns)


def _print_table(tools: dict[str, list[str]], films: Sequence[Path], turns: int) -> None:
    times = [[_measure(tool, films) for tool in tools.values()] for _ in range(turns + 1)][1:]
    print(f"{len(films)} films of {SIZE}, {turns} turns.\n")
    print("| tool | wall ms per film | CPU ms per film | start, s |\n|---|---:|---:|---:|")
    for name, each in zip(tools, zip(*times, strict=True), strict=True):
        wall, cpu, start = (median(getattr(turn, at) for turn in each) for at in Times.__slots__)
        print(f"| {name} | {1000 * wall:.1f} | {1000 * cpu:.1f} | {start:.1f} |")
    for at in ("wall", "cpu"):
        ratios = sorted(getattr(ours, at) / getattr(theirs, at) for theirs, ours in times)
        print(
            f"\nkneematch / HOG and SVM, {at} time: {median(ratios):.2f} "
            f"({ratios[0]:.2f} to {ratios[-1]:.2f})."
        )


if __name__ == "__main__":
    main()
