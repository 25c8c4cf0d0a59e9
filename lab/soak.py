"""Run `kneematch detect` on very many films with faults among them, and watch time and memory.

    python benchmarks/soak.py [--films N] [--distinct D] [--workers W] [--seed S]

The films are links to D small phantoms of one knee; one in twenty is faulty: cut short, not a
picture, missing, of one grey, or spoilt at random. The run is divided into twenty parts; columns:
films done, milliseconds and processor time per film of this part, and the memory of all processes
together at its end (shared pages counted once, where the system has smaps_rollup).

Exits with 1 unless memory and processor time per film are steady (the medians of five early and
of five late parts differ by less than 10 %), the journal has one line per film, detections.csv has
the rows of every good film in order, the same for all links to a phantom, and failures.csv has
every faulty film.
"""

import argparse
import csv
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import numpy as np

from films import table
from kneematch.films.write import write_png16
from kneephantoms.config import SynthConfig
from kneephantoms.dataset import synthesize
from memory import kilobytes

FAULTY_SHARE = 0.05
PARTS = 20
EARLY, LATE = slice(2, 7), slice(14, 19)  # parts to compare: neither the start nor the end
STEADY = 0.1  # largest relative difference of their medians
SPOILT = 20  # films with random bytes in their headers
KNEES_SHARE = 0.95  # of the good films on which a knee must be found; they are very small
SIZE = (200, 160)  # (height, width) of the films


def make_faults(folder: Path, good: list[Path], rng: random.Random) -> list[Path]:
    """Write films that cannot be used."""
    whole = good[0].read_bytes()
    (folder / "cut.dcm").write_bytes(whole[: len(whole) // 2])
    (folder / "text.dcm").write_bytes(b"not a picture")
    write_png16(folder / "grey.png", np.full((64, 64), 0.5, np.float32))
    (folder / "missing.dcm").symlink_to(folder / "nowhere.dcm")
    for number in range(SPOILT):
        spoilt = bytearray(whole[:2000])
        for at in rng.sample(range(132, 2000), 60):
            spoilt[at] = rng.randrange(256)
        (folder / f"spoilt-{number}.dcm").write_bytes(spoilt)
    kinds = "cut.dcm", "text.dcm", "grey.png", "missing.dcm"
    return [*(folder / name for name in kinds), *sorted(folder.glob("spoilt-*.dcm"))]


def make_films(folder: Path, count: int, distinct: int, seed: int) -> dict[str, Path]:
    """Make a folder of links; return the name of each link and the film that it means."""
    rng = random.Random(seed)
    synthesize(folder / "distinct", SynthConfig(distinct, size=SIZE, framing="single", workers=0))
    good = sorted((folder / "distinct").glob("*.dcm"))
    bad = make_faults(folder / "distinct", good, rng)
    (folder / "films").mkdir()
    films = {}
    for number in range(count):
        name = f"{number:06d}.dcm"
        films[name] = rng.choice(bad if rng.random() < FAULTY_SHARE else good)
        (folder / "films" / name).symlink_to(films[name])
    return films


def is_good(film: Path) -> bool:
    """Tell phantoms from faulty films."""
    return film.name.startswith("phantom-")


def watch(process: "subprocess.Popen[bytes]", journal: Path, count: int) -> list[list[float]]:
    """Return a row for every part of the run."""
    rows: list[list[float]] = []
    done, last, last_cpu = 0, time.monotonic(), 0.0
    while process.poll() is None and len(rows) < PARTS:
        time.sleep(0.2)
        now = journal.read_bytes().count(b'{"index"') if journal.exists() else 0
        if now > done and now >= count * (len(rows) + 1) // PARTS:
            found, seconds = family(process.pid), time.monotonic()
            cpu = sum(map(cpu_seconds, found))
            times = [1000 * spent / (now - done) for spent in (seconds - last, cpu - last_cpu)]
            rows.append([now, *times, megabytes(found)])
            print(*(f"{value:.0f}" for value in rows[-1]), file=sys.stderr, flush=True)
            done, last, last_cpu = now, seconds, cpu
    return rows


def family(pid: int) -> list[int]:
    """Return a process and all that it started."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for parent in found:
        found += [child for child, of in parents.items() if of == parent]
    return found


def megabytes(pids: list[int]) -> float:
    """Return the memory of processes."""
    shared_once = sum(kilobytes(pid, "smaps_rollup")["Pss"] for pid in pids)
    return (shared_once or sum(kilobytes(pid, "status")["VmRSS"] for pid in pids)) / 1000


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process and of its children that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def check(folder: Path, films: dict[str, Path]) -> list[str]:
    """Return what is wrong with the files of the run."""
    out = folder / "out"
    lines = map(json.loads, (out / "journal.jsonl").read_bytes().splitlines())
    indices = [line["index"] for line in lines if "index" in line]
    rows, failed = (read_rows(out / name) for name in ("detections.csv", "failures.csv"))
    found = [Path(name).name for name, _ in rows]
    missed = [Path(name).name for name, _ in failed]
    results: dict[str, list[tuple[str, ...]]] = {}
    for name, (_, row) in zip(found, rows, strict=True):
        results.setdefault(name, []).append(row)
    alike: dict[Path, set[tuple[tuple[str, ...], ...]]] = {}
    for name, knees in results.items():
        alike.setdefault(films[name], set()).add(tuple(knees))
    faulty = {name for name, film in films.items() if not is_good(film)}
    right = {
        "journal": sorted(indices) == list(range(len(films))),
        "order of the tables": found == sorted(found) and missed == sorted(missed),
        "faulty films": faulty <= set(missed),
        "every film once": sorted([*results, *missed]) == sorted(films),
        "knees on good films": len(results) > KNEES_SHARE * (len(films) - len(faulty)),
        "same rows for the same film": all(len(different) == 1 for different in alike.values()),
    }
    return [name for name, is_right in right.items() if not is_right]


def read_rows(path: Path) -> list[tuple[str, tuple[str, ...]]]:
    """Return the film of every row of a table, and its other cells."""
    with path.open(newline="") as file:
        return [(row.pop("film"), tuple(row.values())) for row in csv.DictReader(file)]


def unsteady(rows: list[list[float]]) -> list[str]:
    """Return which columns of parts changed during the run."""
    if len(rows) < LATE.stop:
        return ["parts of the run (too few to judge)"]
    changed = []
    for name, column in (("processor time per film", 2), ("memory", 3)):
        early, late = (statistics.median(row[column] for row in rows[at]) for at in (EARLY, LATE))
        change = late / early - 1
        print(f"{name}: {change:+.1%} from early to late parts.")
        if abs(change) > STEADY:
            changed.append(name)
    return changed


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--films", type=int, default=20_000)
    parser.add_argument("--distinct", type=int, default=200)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        films = make_films(folder, args.films, args.distinct, args.seed)
        command = [sys.executable, "-m", "kneematch", "detect", "films", "-o", "out", "--quiet"]
        command += ["--device", "cpu", "--workers", str(args.workers)]
        errors = folder / "stderr"
        with (
            errors.open("wb") as said,
            subprocess.Popen(command, cwd=folder, stderr=said) as process,
        ):
            rows = watch(process, folder / "out" / "journal.jsonl", args.films)
        wrong = check(folder, films) if process.returncode == 1 else [errors.read_text()[-2000:]]
    faulty = sum(not is_good(film) for film in films.values())
    print(f"{args.films} films, {faulty} of them faulty, {args.workers} workers.\n")
    columns = ["films", "ms per film", "CPU ms per film", "memory, MB"]
    table(columns, [[f"{value:.0f}" for value in row] for row in rows])
    wrong += unsteady(rows)
    print("Journal, tables, time and memory: " + ("; ".join(wrong) or "as expected") + ".")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
