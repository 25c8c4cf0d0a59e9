"""Measure whole jobs of `kneematch detect`: seconds by part, films per second, MB written, memory.

    python lab/job.py [--cores 1 2] [--films 120] [--turns 3] [--source OLD/src --source src]
    python lab/job.py --cores 16 --size 2494x2048 --films 1024 --jobs detect pictures all
    python lab/job.py --cores 16 --size 2494x2048 --films 4096 --device cuda

Every run is the real command in a process of its own, tied to its cores, with a worker process per
core. The films are links to `--distinct` phantoms, so that they come from the disk cache. Versions,
given by their source folders, and jobs take turns.
Columns are medians over the turns, in seconds where no unit is named:
    job       what is asked for: see JOBS.
    start     until the first film is visited: imports, networks, database.
    visits    until the last film was visited.
    tables    until all tables are written.
    rest      launch of the program, report, and end.
    all       of these together: what a user waits for.
    films/s   films / seconds of the visits.
    written   size of the results in MB.
    memory    peak of all processes together in MB, shared pages counted once.
"""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path
from statistics import median

from films import table
from kneephantoms import SynthConfig, synthesize

SAMPLE_S = 0.1
JOBS = {
    "detect": "",
    "crops": "--crops",
    "overlays": "--overlays",
    "pictures": "--crops --overlays",
    "measure": "--measure",
    "dicom": "--export dicom",
    "all": "--crops --overlays --measure --export dicom",
}
PARTS = ("start", "visits", "tables", "rest", "all")


def main() -> None:
    args = parse_arguments()
    runs: dict[tuple[str, int, Path | None], list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory(dir=args.work) as folder:
        films = make_films(Path(folder), args)
        for _ in range(args.turns):
            for job, cores, source in product(args.jobs, args.cores, args.source or [None]):
                measured = run(films, JOBS[job], cores, source, args)
                runs.setdefault((job, cores, source), []).append(measured)
    rows = []
    for (job, cores, source), turns in runs.items():
        found = {name: median(turn[name] for turn in turns) for name in turns[0]}
        numbers = [f"{found[name]:.1f}" for name in (*PARTS, "rate")]
        sizes = [f"{found[name]:.0f}" for name in ("written", "memory")]
        rows.append([str(source or "-"), str(cores), job, str(args.films), *numbers, *sizes])
    columns = ("version", "cores", "job", "films", *PARTS, "films/s", "written", "memory")
    table(columns, rows)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--size", default="1024x1247", help="height x width of the films")
    parser.add_argument("--films", type=int, default=120)
    parser.add_argument(
        "--jobs", nargs="+", choices=JOBS, default=["detect", "pictures", "measure"]
    )
    parser.add_argument("--distinct", type=int, default=40, help="phantoms to render")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--options", default="", help="further options of `kneematch detect`")
    parser.add_argument("--source", type=Path, action="append", help="source folder of a version")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--work", type=Path, help="folder for films and results")
    return parser.parse_args()


def make_films(folder: Path, args: argparse.Namespace) -> Path:
    """Render phantoms, and link to them; return the folder of links."""
    height, width = map(int, args.size.split("x"))
    distinct, links = folder / "distinct", folder / "films"
    config = SynthConfig(args.distinct, size=(height, width), workers=os.cpu_count())
    synthesize(distinct, config)
    paths = sorted(distinct.glob("*.dcm"))
    links.mkdir()
    for k in range(args.films):
        (links / f"{k:06d}.dcm").symlink_to(paths[k % len(paths)])
    return links


def run(
    films: Path, job: str, cores: int, source: Path | None, args: argparse.Namespace
) -> dict[str, float]:
    """Return what is measured of one run, by column."""
    out = films.with_name("out")
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "kneematch", "detect", str(films), "-o", str(out), "--quiet"]
    command += ["--device", args.device, "--workers", str(cores)]
    command += [*shlex.split(job), *shlex.split(args.options)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if source is not None:
        environment["PYTHONPATH"] = str(source.resolve())
    with tied(cores):
        started, peak = time.perf_counter(), 0.0
        process = subprocess.Popen(command, env=environment)
        while process.poll() is None:
            peak = max(peak, megabytes(family(process.pid)))
            with suppress(subprocess.TimeoutExpired):
                process.wait(SAMPLE_S)
        seconds = time.perf_counter() - started
    if process.returncode != 0:
        raise RuntimeError(f"{shlex.join(command)}: exit code {process.returncode}")
    timings = json.loads((out / "run.json").read_text())["timings_s"]
    written = sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) / 1e6
    return {
        **dict.fromkeys(PARTS, 0.0),  # 0.2.0 has other names for some parts
        **timings,
        "rest": seconds - sum(timings.values()),
        "all": seconds,
        "rate": args.films / timings.get("visits", seconds),
        "written": written,
        "memory": peak,
    }


@contextmanager
def tied(cores: int) -> Iterator[None]:
    """Tie the processes that are started here to the first cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(cores))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


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
    """Return the memory of processes, shared pages counted once."""
    total = 0
    for pid in pids:
        with suppress(OSError, StopIteration):  # it has ended
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines()
            total += int(next(line for line in lines if line.startswith("Pss:")).split()[1])
    return total / 1000


if __name__ == "__main__":
    main()
