"""Run `kneematch detect` on very many films with faults among them, and watch time and memory.

    python benchmarks/soak.py [--films N] [--distinct D] [--workers W] [--seed S]

The films are links to D small phantoms of one knee; one in twenty is faulty: cut short, not a
picture, missing, of one grey, or spoilt at random. The run is divided into twenty parts; columns:
films done, milliseconds and processor time per film of this part, and the memory of all processes
together (shared pages counted once) at its end. Afterwards the journal has one line per film,
detections.csv the rows of every good film in order, and failures.csv every faulty one. Exits with 1
if not.
"""

import argparse
import csv
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from films import table
from kneematch.io.write import write_png16
from kneematch.synthetic.config import SynthConfig
from kneematch.synthetic.dataset import synthesize
from scaling import kilobytes

FAULTY_SHARE = 0.05
PARTS = 20
KNEES_SHARE = 0.95  # of the good films on which a knee must be found; they are very small
SIZE = (200, 160)  # (height, width) of the films


def make_faults(folder: Path, good: list[Path], rng: random.Random) -> list[Path]:
    """Write films that cannot be used."""
    whole = good[0].read_bytes()
    (folder / "cut.dcm").write_bytes(whole[: len(whole) // 2])
    (folder / "text.dcm").write_bytes(b"not a picture")
    write_png16(folder / "grey.png", np.full((64, 64), 0.5, np.float32))
    (folder / "missing.dcm").symlink_to(folder / "nowhere.dcm")
    spoilt = bytearray(whole[:2000])
    for at in rng.sample(range(132, 2000), 60):
        spoilt[at] = rng.randrange(256)
    (folder / "spoilt.dcm").write_bytes(spoilt)
    return [
        folder / name for name in ("cut.dcm", "text.dcm", "grey.png", "missing.dcm", "spoilt.dcm")
    ]


def make_films(folder: Path, count: int, distinct: int, seed: int) -> int:
    """Make a folder of links; return how many of them are faulty."""
    rng = random.Random(seed)
    synthesize(folder / "distinct", SynthConfig(distinct, size=SIZE, framing="single", workers=0))
    good = sorted((folder / "distinct").glob("*.dcm"))
    bad = make_faults(folder / "distinct", good, rng)
    (folder / "films").mkdir()
    faulty = 0
    for number in range(count):
        is_bad = rng.random() < FAULTY_SHARE
        faulty += is_bad
        link = folder / "films" / f"{number:06d}.dcm"
        link.symlink_to(rng.choice(bad) if is_bad else rng.choice(good))
    return faulty


def watch(process: "subprocess.Popen[bytes]", journal: Path, count: int) -> list[list[str]]:
    """Return a row for every part of the run."""
    rows: list[list[str]] = []
    done, last, last_cpu = 0, time.monotonic(), 0.0
    while process.poll() is None and len(rows) < PARTS:
        time.sleep(0.5)
        now = journal.read_bytes().count(b'{"index"') if journal.exists() else 0
        if now > done and now >= count * (len(rows) + 1) // PARTS:
            found, seconds = family(process.pid), time.monotonic()
            cpu = sum(map(cpu_seconds, found))
            memory = sum(kilobytes(one, "smaps_rollup", "Pss") for one in found) / 1000
            times = [1000 * spent / (now - done) for spent in (seconds - last, cpu - last_cpu)]
            rows.append([str(now), *(f"{value:.0f}" for value in (*times, memory))])
            print(" ".join(rows[-1]), file=sys.stderr, flush=True)
            done, last, last_cpu = now, seconds, cpu
    return rows


def family(pid: int) -> list[int]:
    """Return a process and all that it started."""
    found = [pid]
    for parent in found:
        children = Path(f"/proc/{parent}/task/{parent}/children")
        if children.exists():
            found += map(int, children.read_text().split())
    return found


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process and of its children that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def check(folder: Path, count: int, faulty: int) -> list[str]:
    """Return what is wrong with the files of the run."""
    out = folder / "out"
    lines = map(json.loads, (out / "journal.jsonl").read_bytes().splitlines())
    indices = [line["index"] for line in lines if "index" in line]
    with (out / "detections.csv").open(newline="") as file:
        films = [row["film"] for row in csv.DictReader(file)]
    with (out / "failures.csv").open(newline="") as file:
        failed = [row["film"] for row in csv.DictReader(file)]
    found = {
        "journal": sorted(indices) == list(range(count)),
        "order of detections.csv": films == sorted(films) and failed == sorted(failed),
        "failures.csv": len(set(failed)) == len(failed) >= faulty,
        "every film once": len(set(films)) + len(failed) == count,
        "knees on good films": len(set(films)) > KNEES_SHARE * (count - faulty),
    }
    return [name for name, right in found.items() if not right]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--films", type=int, default=20_000)
    parser.add_argument("--distinct", type=int, default=200)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        faulty = make_films(folder, args.films, args.distinct, args.seed)
        command = [sys.executable, "-m", "kneematch", "detect", "films", "-o", "out", "--quiet"]
        command += ["--device", "cpu", "--workers", str(args.workers)]
        with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE) as process:
            rows = watch(process, folder / "out" / "journal.jsonl", args.films)
            _, said = process.communicate()
        wrong = check(folder, args.films, faulty) if process.returncode == 1 else [said.decode()]
    print(f"{args.films} films, {faulty} of them faulty, {args.workers} workers.\n")
    table(["films", "ms per film", "CPU ms per film", "memory, MB"], rows)
    print("Journal and tables: " + ("; ".join(wrong) or "as expected") + ".")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
