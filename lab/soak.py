"""Run `kneematch detect` on very many films with faults among them, and watch its memory.

    python lab/soak.py [--films N] [--distinct D] [--workers W] [--seed S]
    python lab/soak.py --database [--films N]

The films are links to D small phantoms of one knee; one in twenty is faulty: cut short, not a
picture, missing, of one grey, or spoilt at random. Prints the memory of all processes together
(shared pages counted once) over twenty equal parts of the run's time, and what is wrong.

Exits with 1 unless memory is steady (the medians of five early and of five late parts differ by
less than 10 %), detections.csv has the rows of every good film in order, the same for all links to
a phantom, and failures.csv has every faulty film.

With --database, the database of a run is filled with made-up films of two knees, in batches as
`detect` saves them, and its times and size are printed.
"""

import argparse
import csv
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from films import table
from kneematch import Detection
from kneematch.run.database import Run
from kneematch.run.film_record import FilmRecord
from kneephantoms import SynthConfig, synthesize, write_png16
from scaling import family, megabytes

FAULTY_SHARE = 0.05
PARTS = 20
BATCH = 64  # films in a commit
SAMPLE_S = 0.5
EARLY, LATE = slice(2, 7), slice(14, 19)  # parts to compare: neither the start nor the end
STEADY = 0.1  # largest relative difference of their medians
SPOILT = 20  # films with random bytes in their headers
KNEES_SHARE = 0.95  # of the good films on which a knee must be found
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


def watch(process: "subprocess.Popen[bytes]") -> list[float]:
    """Return the memory of a run in MB, the median in each part of its time."""
    samples = []
    while process.poll() is None:
        samples.append(megabytes(family(process.pid)))
        time.sleep(SAMPLE_S)
    parts = np.array_split(np.array(samples), PARTS)
    return [float(np.median(part)) for part in parts if len(part)]


def check(folder: Path, films: dict[str, Path]) -> list[str]:
    """Return what is wrong with the files of the run."""
    out = folder / "out"
    rows, failed = (read_rows(out / name) for name in ("detections.csv", "failures.csv"))
    found = [Path(name).name for name, _ in rows]
    missed = [Path(name).name for name, _ in failed]
    results: dict[str, list[tuple[str, ...]]] = {}
    for name, (_, row) in zip(found, rows, strict=True):
        results.setdefault(name, []).append(row)
    alike: dict[Path, set[tuple[tuple[str, ...], ...]]] = {}
    for name, knees in results.items():
        alike.setdefault(films[name], set()).add(tuple(knees))
    faulty = {name for name, film in films.items() if not film.name.startswith("phantom-")}
    right = {
        "order of the tables": found == sorted(found) and missed == sorted(missed),
        "faulty films": faulty <= set(missed),
        "every film once": sorted([*results, *missed]) == sorted(films),
        "knees on good films": len(results) > KNEES_SHARE * (len(films) - len(faulty)),
        "same rows for the same film": all(len(different) == 1 for different in alike.values()),
    }
    return [name for name, is_right in right.items() if not is_right]


def read_rows(path: Path) -> list[tuple[str, tuple[str, ...]]]:
    with path.open(newline="") as file:
        return [(row.pop("film"), tuple(row.values())) for row in csv.DictReader(file)]


def unsteady(memory: list[float]) -> list[str]:
    """Return whether memory changed during the run."""
    if len(memory) < LATE.stop:
        return ["parts of the run (too few to judge)"]
    early, late = (statistics.median(memory[at]) for at in (EARLY, LATE))
    print(f"Memory: {late / early - 1:+.1%} from early to late parts.")
    return ["memory"] if abs(late / early - 1) > STEADY else []


def database(films: int) -> None:
    """Print times and size of the database of a run with made-up films of two knees."""
    rng, rows = np.random.default_rng(0), []
    margins = {"plateau_medial": (0.7, 0.0), "plateau_lateral": (-0.7, 0.0)}
    knees = [
        Detection.from_matrix(
            np.array([[100 + rng.random(), 2.0, x], [-2.0, 100 + rng.random(), 500], [0, 0, 1]]),
            margins,
            side=side,
            method="locator",
            loss=rng.random(),
            energy=0.2,
            needs_review=bool(rng.random() < 0.1),
        )
        for _ in range(BATCH)
        for side, x in (("left", 300.0), ("right", 900.0))
    ]
    pairs = list(zip(knees[::2], knees[1::2], strict=True))

    def timed(label: str, do: Callable[[], object], repeats: int = 1) -> None:
        started, cpu = time.perf_counter(), time.process_time()
        for _ in range(repeats):
            do()
        spent = time.perf_counter() - started, time.process_time() - cpu
        rows.append([label, *(f"{seconds / repeats:.4f}" for seconds in spent)])

    with tempfile.TemporaryDirectory() as folder, Run(Path(folder), create=True) as run:
        ids: list[int] = []
        paths = [f"films/{k % 1000:03d}/{k:06d}.dcm" for k in range(films)]
        timed("add all films", lambda: ids.extend(run.add(paths)))

        def save() -> None:
            for first in range(0, films, BATCH):
                batch = zip(ids[first : first + BATCH], pairs, strict=False)
                run.save(
                    FilmRecord(k, "", "", status="ok", found=two, knees=two) for k, two in batch
                )

        timed(f"save them, {BATCH} in each commit", save)
        page = "SELECT * FROM knees k JOIN films f ON f.id = k.film WHERE {} LIMIT 48"
        timed("a page of the gallery", lambda: run.query(page.format(f"k.id > {films}")), 100)
        worst = page.format("k.needs_review ORDER BY k.loss DESC")
        timed("a page of the highest losses to review", lambda: run.query(worst), 5)
        ordered = "SELECT * FROM films f JOIN knees k ON k.film = f.id ORDER BY f.id, k.side"
        timed("all rows in order", lambda: sum(1 for _ in run.sql.execute(ordered)))
        timed("all records in order", lambda: sum(1 for _ in run.records()))
        megabytes_on_disk = run.path.stat().st_size / 1e6
    print(f"{films:,} films, {2 * films:,} knees, {megabytes_on_disk:.0f} MB.\n")
    table(("database", "seconds", "CPU seconds"), rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--films", type=int, default=20_000)
    parser.add_argument("--distinct", type=int, default=200)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--database", action="store_true", help="only the database, made up")
    args = parser.parse_args()
    if args.database:
        database(args.films)
        return 0
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
            memory = watch(process)
        wrong = check(folder, films) if process.returncode == 1 else [errors.read_text()[-2000:]]
    faulty = sum(not film.name.startswith("phantom-") for film in films.values())
    print(f"{args.films} films, {faulty} of them faulty, {args.workers} workers.\n")
    table(("part", "memory, MB"), ([str(k + 1), f"{mb:.0f}"] for k, mb in enumerate(memory)))
    wrong += unsteady(memory)
    print("Tables and memory: " + ("; ".join(wrong) or "as expected") + ".")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
