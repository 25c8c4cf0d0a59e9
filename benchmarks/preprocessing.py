"""Measure reading and splitting a DICOM film into two 800 x 500 halves, against a plain script.

    python benchmarks/preprocessing.py [--height N --width N]

The plain script takes the same steps with pydicom, NumPy and scikit-image in double precision. One
row per bit depth. Columns: median times and their ratio, peak memory as a multiple of the film's
own bytes, and the mean absolute difference of the halves' pixels.
"""

import argparse
import multiprocessing
import os
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pydicom
import torch
from kneephantoms.phantom import phantom
from numpy.typing import NDArray
from pydicom.uid import ExplicitVRLittleEndian
from skimage.transform import resize

from films import table, timed
from kneematch.films.read import read
from kneematch.films.write import write_dicom
from kneematch.knee.knee_images import film_tensor
from kneematch.paper.split import split
from memory import kilobytes

FASTER = 5.0  # target: times faster than the plain script
MEMORY = 8.0  # target: at most this multiple of the film's own bytes
WARM_UP_SIZE = (320, 400)

Prepare = Callable[[Path], NDArray[np.floating]]


def prepare(path: Path) -> NDArray[np.floating]:
    """Return the halves (2, 800, 500) as kneematch computes them."""
    return split(film_tensor(read(path))).pixels.numpy()


def prepare_plainly(path: Path) -> NDArray[np.floating]:
    """Return the halves (2, 800, 500) by a direct transcription of the paper's Sect. 2."""
    dataset = pydicom.dcmread(path)
    film = dataset.pixel_array.astype(np.float64)
    film = film * float(dataset.RescaleSlope) + float(dataset.RescaleIntercept)
    film = (film - film.min()) / (film.max() - film.min())
    if dataset.PhotometricInterpretation == "MONOCHROME1":
        film = 1 - film
    height, width = film.shape
    axis = plain_axis(film)
    wide_left, wide_right = round(1.1 * axis), round(1.1 * (width - axis))
    halves = film[:, :wide_left][:, ::-1], film[:, width - wide_right :]
    wide = max(wide_left, wide_right)
    tall = max(height, round(1.6 * wide))
    wide = round(tall / 1.6)
    padded = [np.pad(half, _both_ends(half.shape, (tall, wide))) for half in halves]
    return np.stack([resize(half, (800, 500), anti_aliasing=True) for half in padded])


def plain_axis(film: NDArray[np.float64]) -> float:
    """Return the x about which the film is most similar to its mirror image."""
    height, width = film.shape
    small = resize(film, (round(height * 256 / width), 256), anti_aliasing=True)
    distances = {}
    for axis in range(96, 161):
        reach = min(axis, 256 - axis)
        difference = small[:, axis - reach : axis] - small[:, axis : axis + reach][:, ::-1]
        distances[axis] = np.sqrt(np.mean(difference**2))
    return min(distances, key=lambda axis: distances[axis]) * width / 256


def _both_ends(
    size: tuple[int, int], wanted: tuple[int, int]
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the padding before and after each axis that extends a size to another."""
    missing = [after - before for before, after in zip(size, wanted, strict=True)]
    return (missing[0] // 2, missing[0] - missing[0] // 2), (
        missing[1] // 2,
        missing[1] - missing[1] // 2,
    )


def write_films(folder: Path, size: tuple[int, int]) -> dict[int, Path]:
    """Write one film in 16 and in 8 bits per pixel; return the paths by bit depth."""
    pixels = phantom(1, size=size).radiograph.pixels
    paths = {bits: folder / f"{bits}_bits_{size[0]}.dcm" for bits in (16, 8)}
    write_dicom(paths[16], pixels, mm_per_px=0.14, laterality="B", bits=16)
    dataset = pydicom.dcmread(paths[16])
    dataset.BitsAllocated = dataset.BitsStored = 8
    dataset.HighBit = 7
    levels = np.rint(pixels * 255).astype(np.uint8).tobytes()
    dataset.add_new("PixelData", "OB", levels + b"\0" * (len(levels) % 2))
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset.save_as(paths[8])
    return paths


def milliseconds(methods: list[Prepare], path: Path, repeats: int) -> list[float]:
    """Return the median time of each method, the methods taking turns."""
    times = [[timed(partial(method, path))[1] for method in methods] for _ in range(repeats)]
    return [1000 * statistics.median(taken) for taken in zip(*times, strict=True)]


def peak_bytes(method: Prepare, small: Path, path: Path) -> int:
    """Return the peak memory of a film above what the process holds after a tiny one."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_measure, args=(theirs, method, small, path))
    child.start()
    peak: int = ours.recv()
    child.join()
    return peak


def _measure(out: Connection, method: Prepare, small: Path, path: Path) -> None:
    torch.set_num_threads(1)
    method(small)  # to load what is loaded on first use
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = kilobytes(os.getpid(), "status")["VmRSS"]
    method(path)
    out.send(1024 * (kilobytes(os.getpid(), "status")["VmHWM"] - before))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--height", type=int, default=2494)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=7, help="runs to take the median of")
    parser.add_argument("--threads", type=int, default=1, help="threads of PyTorch")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    methods: dict[str, Prepare] = {"kneematch": prepare, "plain": prepare_plainly}
    size = args.height, args.width
    print(f"Film of {size[1]} x {size[0]} pixels, median of {args.repeats} runs.\n")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        small = write_films(Path(folder), WARM_UP_SIZE)
        for bits, path in write_films(Path(folder), size).items():
            own = size[0] * size[1] * bits // 8
            for method in methods.values():
                method(small[bits])
            fast, slow = milliseconds(list(methods.values()), path, args.repeats)
            memory = [peak_bytes(method, small[bits], path) / own for method in methods.values()]
            difference = np.abs(prepare(path) - prepare_plainly(path)).mean()
            times = f"{fast:.0f}", f"{slow:.0f}", f"{slow / fast:.1f}"
            multiples = (f"{multiple:.1f} x" for multiple in memory)
            rows.append([f"{bits} bits", *times, *multiples, f"{difference:.4f}"])
    columns = ("kneematch ms", "plain ms", "times faster", "kneematch memory", "plain memory")
    table(("film", *columns, "mean difference"), rows)
    print(f"Target: {FASTER:g} times faster, below {MEMORY:g} times the film's own bytes.")


if __name__ == "__main__":
    main()
