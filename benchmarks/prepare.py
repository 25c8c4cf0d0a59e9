"""From a DICOM file to two 800 x 500 half images: time and memory, against a plain script.

The plain script takes the same steps with pydicom, NumPy and scikit-image in double precision.
Run it as `python benchmarks/prepare.py` (`--help` lists the options); it prints a Markdown table.
"""

import argparse
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pydicom
import torch
from numpy.typing import NDArray
from pydicom.uid import ExplicitVRLittleEndian
from skimage.transform import resize

from kneematch.geometry.split import split
from kneematch.io.read import read
from kneematch.io.write import write_dicom
from kneematch.synthetic.phantom import phantom

FASTER = 5.0  # how many times faster than the plain script kneematch should be
MEMORY = 8.0  # how many times the film's own bytes it may take at most
WARM_UP_SIZE = (320, 400)

Prepare = Callable[[Path], NDArray[np.floating]]


def prepare(path: Path) -> NDArray[np.floating]:
    """What kneematch does: (2, 800, 500)."""
    return split(read(path)).pixels.numpy()


def prepare_plainly(path: Path) -> NDArray[np.floating]:
    """The same steps as one would write them down from Sect. 2: (2, 800, 500)."""
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
    """The x about which the film is most alike its mirror image."""
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
    """Zeros before and after each axis that bring a size to the one wanted."""
    missing = [after - before for before, after in zip(size, wanted, strict=True)]
    return (missing[0] // 2, missing[0] - missing[0] // 2), (
        missing[1] // 2,
        missing[1] - missing[1] // 2,
    )


def write_films(folder: Path, size: tuple[int, int]) -> dict[int, Path]:
    """One film, stored in 16 and in 8 bits a pixel."""
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
    """The median time of each method, their runs taking turns."""
    times: list[list[float]] = [[] for _ in methods]
    for _ in range(repeats):
        for method, taken in zip(methods, times, strict=True):
            start = time.perf_counter()
            method(path)
            taken.append(1000 * (time.perf_counter() - start))
    return [statistics.median(taken) for taken in times]


def peak_bytes(method: Prepare, small: Path, path: Path) -> int:
    """How far the process's memory rises above what it holds after a film of no size."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_measure, args=(theirs, method, small, path))
    child.start()
    peak: int = ours.recv()
    child.join()
    return peak


def _measure(out: Connection, method: Prepare, small: Path, path: Path) -> None:
    torch.set_num_threads(1)
    method(small)  # loads what is loaded on first use
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak that the imports left
    before = _status_bytes("VmRSS")
    method(path)
    out.send(_status_bytes("VmHWM") - before)


def _status_bytes(field: str) -> int:
    """A size that Linux keeps of this process: VmRSS, held now, or VmHWM, the most so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (found,) = (line.split()[1] for line in lines if line.startswith(f"{field}:"))
    return 1024 * int(found)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--height", type=int, default=2494)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=7, help="runs of which the median counts")
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch, while timing")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    methods: dict[str, Prepare] = {"kneematch": prepare, "plain": prepare_plainly}
    size = options.height, options.width
    print(f"Film of {size[1]} x {size[0]} pixels, median of {options.repeats} runs.\n")
    print(
        "| film | kneematch ms | plain ms | times faster | kneematch memory | plain memory "
        "| mean difference |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        small = write_films(Path(folder), WARM_UP_SIZE)
        for bits, path in write_films(Path(folder), size).items():
            own = size[0] * size[1] * bits // 8
            for method in methods.values():
                method(small[bits])
            fast, slow = milliseconds(list(methods.values()), path, options.repeats)
            memory = [peak_bytes(method, small[bits], path) / own for method in methods.values()]
            difference = np.abs(prepare(path) - prepare_plainly(path)).mean()
            print(
                f"| {bits} bits | {fast:.0f} | {slow:.0f} | {slow / fast:.1f} "
                f"| {memory[0]:.1f} x | {memory[1]:.1f} x | {difference:.4f} |"
            )
    print(f"\nWanted: {FASTER:g} times faster, below {MEMORY:g} times the film's own bytes.")


if __name__ == "__main__":
    main()
