"""Detect on a GPU that has too little memory, and compare the results with an undisturbed run's.

    python benchmarks/gpu_memory.py [--films N] [--batch-size B]

The memory that a batch of B films and one of a single film take is measured first, as PyTorch
reserves it on the card: with what lies between its tensors, which limits count as well. Then the
same films are searched with limits in between: "limit" by PyTorch's own limit, "full card" by a
tensor that leaves no more than that free. Columns: the memory, how the batches were halved (by the
messages of the run), rows of detections.csv, and their largest distance from the undisturbed run's,
in pixels. At last one film does not fit: the command must end with one line, and its repetition
without a limit with the same rows. Exits with 1 if a row is missing or differs by more than 0.05
px, or if nothing was ever halved.
"""

import argparse
import csv
import gc
import io
import logging
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from films import table
from kneematch.cli.main import main as kneematch
from kneematch.errors import KneematchError
from kneematch.knee.detector import Detector
from kneematch.run.config import DetectConfig
from kneematch.run.pipeline import detect_folder
from kneephantoms.config import SynthConfig
from kneephantoms.dataset import synthesize

SHARES = (0.05, 0.1, 0.2, 0.35, 0.5, 0.7)  # of the way from the memory of one film to a batch's
LARGEST_PX = 0.05
TOO_MANY = re.compile(r"^(\d+) films do not fit into the memory")
MEGABYTE = 1 << 20
DEVICE = "cuda"

Rows = dict[tuple[str, str], NDArray[np.float64]]  # film and side to its columns in pixels


class Messages(logging.Handler):
    """Keep what kneematch logs."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@contextmanager
def limited(size: float) -> Iterator[None]:
    """Let PyTorch take at most `size` bytes of the card."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(size / total)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@contextmanager
def full_card(size: float) -> Iterator[None]:
    """Fill the card but for `size` bytes."""
    filler = torch.empty(int(torch.cuda.mem_get_info()[0] - size), dtype=torch.uint8, device=DEVICE)
    try:
        yield
    finally:
        del filler
        free_memory()


def free_memory() -> None:
    """Give memory of earlier runs back."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def run(films: Path, out: Path, batch_size: int) -> tuple[Rows, list[str], int]:
    """Detect in this process; return rows, messages and the most memory that PyTorch reserved."""
    messages = Messages()
    logger = logging.getLogger("kneematch")
    logger.addHandler(messages)
    try:
        config = DetectConfig(device=DEVICE, batch_size=batch_size, workers=0)
        detect_folder(films, out, config)
    finally:
        logger.removeHandler(messages)
    peak = torch.cuda.max_memory_reserved()
    free_memory()
    return read_rows(out), messages.lines, peak


def read_rows(out: Path) -> Rows:
    """Return the positions in detections.csv."""
    with (out / "detections.csv").open(newline="") as file:
        return {
            (row["film"], row["side"]): np.array(
                [float(cell) for name, cell in row.items() if name.endswith(("_x_px", "_y_px"))]
            )
            for row in csv.DictReader(file)
        }


def distance(rows: Rows, expected: Rows) -> float:
    """Return the largest distance in pixels; infinite where a row is missing."""
    if rows.keys() != expected.keys():
        return float("inf")
    return max(float(np.abs(rows[key] - expected[key]).max()) for key in expected)


def memory_of_networks() -> int:
    """Return the memory that is taken before the first film."""
    detector = Detector.load(device=DEVICE)
    taken = torch.cuda.max_memory_reserved()
    del detector
    free_memory()
    return taken


def one_film_too_large(films: Path, out: Path, size: float, expected: Rows) -> list[str]:
    """Run the command where no film fits, then once more; return what is wrong."""
    command = ["detect", str(films), "-o", str(out), "--device", DEVICE, "--workers", "0"]
    said = io.StringIO()
    with limited(size), redirect_stderr(said):
        code = kneematch([*command, "--quiet", "--batch-size", "2"])
    print(f"With {size / MEGABYTE:.0f} MB, exit code {code}: {said.getvalue()}")
    free_memory()
    last = said.getvalue().splitlines()[-1:]
    wrong = [] if code == 2 and "memory" in "".join(last) else ["message of one film"]
    with redirect_stdout(io.StringIO()):
        kneematch([*command, "--quiet"])
    return wrong + ["repetition"] * (distance(read_rows(out), expected) > LARGEST_PX)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--films", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        films, runs = Path(temporary) / "films", Path(temporary)
        synthesize(films, SynthConfig(args.films, size=(320, 400), framing="any"))
        networks = memory_of_networks()
        _, _, small = run(films, runs / "single", 1)
        expected, _, large = run(films, runs / "undisturbed", args.batch_size)
        sizes = [size / MEGABYTE for size in (networks, small, large)]
        print(
            "Memory of the networks {:.0f} MB; with one film {:.0f}; a batch {:.0f}".format(*sizes)
        )
        cells, wrong = [], list[str]()
        for way in (limited, full_card):
            for share in SHARES:
                size = small + share * (large - small)
                out = runs / f"{way.__name__}-{share}"
                rows, lines = Rows(), list[str]()
                try:
                    with way(size):
                        rows, lines, _ = run(films, out, args.batch_size)
                except (KneematchError, RuntimeError) as error:
                    wrong.append(f"{out.name}: {error!r}")
                far = distance(rows, expected)
                wrong += [out.name] * (far > LARGEST_PX)
                too_many = [found[1] for line in lines if (found := TOO_MANY.match(line))]
                row = [out.name, f"{size / MEGABYTE:.0f}", ", ".join(too_many), str(len(rows))]
                cells.append([*row, f"{far:.3f}"])
                print(*cells[-1], sep=" | ", file=sys.stderr, flush=True)
        too_small = networks + 0.1 * (small - networks)
        wrong += one_film_too_large(films, runs / "none", too_small, expected)
    if not any(row[2] for row in cells):
        wrong.append("no batch was halved")
    print(f"{args.films} films, batches of {args.batch_size}, {torch.cuda.get_device_name()}.\n")
    table(["memory", "MB", "did not fit, films", "rows", "largest distance, px"], cells)
    print("Rows and messages: " + ("; ".join(wrong) or "as expected") + ".")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
