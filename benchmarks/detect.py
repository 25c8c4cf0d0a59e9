"""Measure `kneematch detect` end to end: time per film, its parts, and memory.

    python benchmarks/detect.py [--films N] [--method METHOD]

Films are phantom DICOMs of 2494 x 2048 pixels, written once to a temporary folder. "decode",
"split" and "find" are medians of single calls on one core; "overlapped" is their sum divided by the
cores, the time per film if all cores were busy; "end to end" is the program's wall-clock time.
Memory is the peak of all its processes together, shared pages counted once.
"""

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from films import table, timed
from kneematch.films.read import read
from kneematch.knee.detector import Detector
from kneematch.search.settings import NEURAL
from kneephantoms.config import SynthConfig
from kneephantoms.dataset import synthesize
from memory import run_watched

SIZE = (2494, 2048)
MEASURED = 24  # films whose parts are timed
OVERHEAD = 1.15  # target of end to end over the overlapped parts


def parts(detector: Detector, paths: Sequence[Path]) -> dict[str, float]:
    """Return the seconds per film of each part on one core."""
    torch.set_num_threads(1)
    detector.detect(paths[0])  # to warm up
    times = []
    for k in range(MEASURED):
        film, decode = timed(partial(read, paths[k % len(paths)]))
        (prepared,), split = timed(partial(detector.prepare, [film]))
        _, find = timed(partial(detector.find, [prepared]))
        times.append((decode, split, find))
    medians = (statistics.median(part) for part in zip(*times, strict=True))
    return dict(zip(("decode", "split", "find"), medians, strict=True))


def run(films: Path, settings: Sequence[str]) -> tuple[float, float]:
    """Run the program; return its seconds and the peak memory of all processes, in MB."""
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "kneematch", "detect", str(films), "-o", f"{out}/out"]
        seconds, memory = run_watched([*command, "--quiet", *settings])
    return seconds, memory.total


def end_to_end(paths: Sequence[Path], method: str, settings: Sequence[str]) -> None:
    """Print the parts and the whole."""
    cores, template = os.cpu_count() or 1, paths[0].with_name("template.json")
    detector = Detector.load(template=None if method in NEURAL else template, method=method)
    each = parts(detector, paths)
    start_up, _ = run(paths[0], settings)
    whole, peak_mb = run(paths[0].parent, settings)
    a_film = whole / len(paths)
    without_start = (whole - start_up) / (len(paths) - 1)
    overlapped = sum(each.values()) / cores
    rows = {
        **each,
        f"overlapped: their sum / {cores}": overlapped,
        "end to end": a_film,
        "end to end without the program's start": without_start,
    }
    print(f"{len(paths)} films of {SIZE[1]} x {SIZE[0]} pixels, {method}, {cores} cores.\n")
    table(["part", "ms per film"], [[name, f"{1000 * value:.1f}"] for name, value in rows.items()])
    print(
        f"Start of the program {start_up:.1f} s. End to end / overlapped: "
        f"{without_start / overlapped:.2f}, and {a_film / overlapped:.2f} with the start "
        f"(target: at most {OVERHEAD}). Peak memory {peak_mb:.0f} MB.\n"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--films", type=int, default=200)
    parser.add_argument("--method", default="neural+sharpen")
    args = parser.parse_args()
    folder = Path(tempfile.gettempdir()) / f"kneematch-{args.films}-films-{SIZE[0]}x{SIZE[1]}"
    if not (folder / "truth.csv").exists():
        synthesize(folder, SynthConfig(args.films, size=SIZE, force=True))
    settings = ["--method", args.method]
    if args.method not in NEURAL:  # the networks bring their own template
        settings += ["--template", str(folder / "template.json")]
    end_to_end(sorted(folder.glob("*.dcm")), args.method, settings)


if __name__ == "__main__":
    main()
