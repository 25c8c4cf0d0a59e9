"""Measure how long kneematch takes to start, side by side with another version.

    python benchmarks/startup.py --other PYTHON [--turns N]

`--other` is the Python of another environment with kneematch in it. Both take turns in processes of
their own; the first turn warms up, and writes bytecode where it is missing. Columns: the median
wall time of each, and their ratio. The first row is what PyTorch takes by itself, which every other
row includes.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Without bytecode, an editable installation would be compiled at every start, and another not.
ENVIRONMENT = {key: text for key, text in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
LOAD = ["-c", "import kneematch; kneematch.Detector.load()"]
SIZES = ["1024x1024", "2494x2048"]  # height and width


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--other", required=True, help="Python of another environment")
    parser.add_argument("--turns", type=int, default=7)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        commands = {"import torch": ["-c", "import torch"], "Detector.load()": LOAD}
        for size in SIZES:
            films = Path(folder, size)
            synth = ["-m", "kneematch", "synth", "-n", "1", "-o", str(films), "--size", size]
            subprocess.run([sys.executable, *synth], check=True, capture_output=True)
            film = str(next(films.glob("*.dcm")))
            detect = ["-m", "kneematch", "detect", film, "-o", f"{folder}/out", "--force"]
            commands[f"detect, one film of {size}"] = detect
        print("| what | other, s | this, s | ratio |\n|---|---:|---:|---:|")
        for name, command in commands.items():
            seconds: dict[str, list[float]] = {args.other: [], sys.executable: []}
            for _ in range(args.turns + 1):
                for python, taken in seconds.items():
                    started = time.perf_counter()
                    subprocess.run(
                        [python, *command], check=True, capture_output=True, env=ENVIRONMENT
                    )
                    taken.append(time.perf_counter() - started)
            other, this = (statistics.median(taken[1:]) for taken in seconds.values())
            print(f"| {name} | {other:.2f} | {this:.2f} | {this / other:.2f} |", flush=True)


if __name__ == "__main__":
    main()
