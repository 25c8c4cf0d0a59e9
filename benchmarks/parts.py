"""Measure the CPU time of reading, splitting and searching a film, one thread, in several versions.

    python benchmarks/parts.py [--films N] [--size 2048x2494] [--other PYTHON]

`--other` is the Python of another environment, in which 0.1.0 or a later version is installed; both
versions take turns, film by film sets, on the same phantoms. Columns: the median over the turns of
the CPU milliseconds per film.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

TURNS = 5
PARTS = ("read", "split", "find")
# Runs in either version: the modules of 0.1.0 had other names.
MEASURE = """
import json, sys, time
import torch
torch.set_num_threads(1)
import kneematch
try:
    from kneematch.knee.loading import load
    from kneematch.knee.preparation import prepare as prepare_films
    def prepare(film, how):
        return prepare_films([load(film, how.device)], how)[0]
except ImportError:
    from kneematch.knee.preparation import prepare
detector = kneematch.Detector.load(device="cpu")
how = detector.preparation if hasattr(detector, "preparation") else detector.room
def timed(work):
    started = time.process_time()
    done = [work(item) for item in items]
    return done, 1000 * (time.process_time() - started) / len(items)
for turn in range(2):  # the first warms up
    items = sys.argv[1:]
    items, read = timed(kneematch.read)
    items, split = timed(lambda film: prepare(film, how))
    found, find = timed(lambda film: detector.find([film]))
print(json.dumps([kneematch.__version__, read, split, find]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--films", type=int, default=12)
    parser.add_argument("--size", default="2048x2494", help="height x width")
    parser.add_argument("--other", help="Python of another environment")
    args = parser.parse_args()
    pythons = [python for python in (args.other, sys.executable) if python]
    with tempfile.TemporaryDirectory() as folder:
        synth = ["-m", "kneematch", "synth", "-n", str(args.films), "--size", args.size]
        subprocess.run([sys.executable, *synth, "-o", folder], check=True, capture_output=True)
        films = [str(path) for path in sorted(Path(folder).glob("*.dcm"))]
        runs: dict[str, list[list[float]]] = {}
        for _ in range(TURNS):
            for python in pythons:
                printed = subprocess.check_output([python, "-c", MEASURE, *films], text=True)
                version, *times = json.loads(printed)
                runs.setdefault(version, []).append(times)
    print(f"| version | {' | '.join(PARTS)} | sum |")
    print("|---|---:|---:|---:|---:|")
    for version, times in runs.items():
        medians = [statistics.median(part) for part in zip(*times, strict=True)]
        cells = [f"{each:.1f}" for each in (*medians, sum(medians))]
        print(f"| {version} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
