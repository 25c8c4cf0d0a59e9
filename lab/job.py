"""Measure whole jobs of `kneematch detect`: seconds by part, films per second, MB written, memory.

    python lab/job.py [--cores 1 2] [--films 120] [--turns 3] [--source OLD/src --source src]
    python lab/job.py --cores 16 --size 2494x2048 --films 1024 --jobs detect pictures all
    python lab/job.py --cores 16 --size 2494x2048 --films 4096 --device cuda
    python lab/job.py --cores 2 --syntax jpeg2000 lossless
    python lab/job.py --cores 1 2 --ray
    python lab/job.py --parts [--size 2494x2048] [--syntax plain jpeg2000]

Every run is the real command in a process of its own, tied to its cores, with a worker process per
core, and so is the Ray cluster of `--ray`. The films are links to `--distinct` phantoms, so
that they come from the disk cache. Versions, given by their source folders, and jobs take turns.
Columns are medians over the turns, in seconds where no unit is named:
    job       what is asked for: see JOBS.
    syntax    transfer syntax of the films.
    start     until the first film is visited: imports, networks, database.
    visits    until the last film was visited.
    tables    until all tables are written.
    rest      launch of the program, report, and end.
    all       of these together: what a user waits for.
    films/s   films / seconds of the visits.
    written   size of the results in MB.
    memory    peak of all processes together in MB, shared pages counted once.
    IoU       mean overlap of the squares around the found and the true margins of the plateaus.
`--parts` visits each phantom in one process instead, with all outputs and one thread, and prints
the CPU time of the parts of a visit: the median over the phantoms, in their second visit.
"""

import argparse
import json
import multiprocessing
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path
from pkgutil import resolve_name
from statistics import median
from typing import Any

import numpy as np
import pydicom
from pydicom.uid import JPEG2000Lossless, JPEGLosslessSV1

from films import read_rows, table
from kneematch.evaluation.scores import plateau_iou
from kneematch.films.radiograph import Point
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
# Functions whose time is a part of a visit: where they are, their names, and what the table calls
# them. Parts of a part follow it.
TIMED = (
    ("kneematch.run.visit", "read_isolated", "reading"),
    ("kneematch.knee.detector", "_prepare_or_fail", "preparation"),
    ("kneematch.knee.knee_images", "locate_knees", "- locator"),
    ("kneematch.knee.knee_images", "knee_images", "- views of knees"),
    ("kneematch.knee.knee_images", "see_findings", "- metal and growth plates"),
    ("kneematch.knee.knee_images", "read_markers", "- markers"),
    ("kneematch.knee.detector.Detector", "_find_all", "pose network, twice"),
    ("kneematch.knee.measuring", "measure_knees", "measures: outline network and widths"),
    ("kneematch.run.artifacts", "_write_overlay", "overlay"),
    ("kneematch.run.artifacts", "_write_crops", "crops"),
    ("kneematch.run.artifacts", "_write_dicom", "DICOM objects"),
    ("kneematch.run.visit", "thumbnail", "thumbnail"),
)
SYNTAXES = {"plain": None, "jpeg2000": JPEG2000Lossless, "lossless": JPEGLosslessSV1}


def main() -> None:
    args = parse_arguments()
    runs: dict[tuple[str, str, int, Path | None], list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory(dir=args.work) as folder:
        films = {name: make_films(Path(folder), name, args) for name in args.syntax}
        if args.parts:
            # In a process of its own, since compressed films are decoded in child processes only.
            process = multiprocessing.Process(target=print_parts, args=(films, Path(folder)))
            process.start()
            process.join()
            return
        for _ in range(args.turns):
            every = product(args.jobs, args.syntax, args.cores, args.source or [None])
            for job, syntax, cores, source in every:
                measured = run(films[syntax], JOBS[job], cores, source, args)
                runs.setdefault((job, syntax, cores, source), []).append(measured)
    rows = []
    for (job, syntax, cores, source), turns in runs.items():
        found = {name: median(turn[name] for turn in turns) for name in turns[0]}
        numbers = [f"{found[name]:.1f}" for name in (*PARTS, "rate")]
        sizes = [f"{found[name]:.0f}" for name in ("written", "memory")]
        about = [str(source or "-"), str(cores), job, syntax, str(args.films)]
        rows.append([*about, *numbers, *sizes, f"{found['iou']:.4f}"])
    columns = ("version", "cores", "job", "syntax", "films", *PARTS, "films/s", "written", "memory")
    table((*columns, "IoU"), rows)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--size", default="1024x1247", help="height x width of the films")
    parser.add_argument("--films", type=int, default=120)
    parser.add_argument(
        "--jobs", nargs="+", choices=JOBS, default=["detect", "pictures", "measure"]
    )
    parser.add_argument("--syntax", nargs="+", choices=SYNTAXES, default=["plain"])
    parser.add_argument("--distinct", type=int, default=40, help="phantoms to render")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--ray", action="store_true", help="compute on a Ray cluster")
    parser.add_argument("--options", default="", help="further options of `kneematch detect`")
    parser.add_argument("--source", type=Path, action="append", help="source folder of a version")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--parts", action="store_true", help="print the CPU time of parts")
    parser.add_argument("--work", type=Path, help="folder for films and results")
    return parser.parse_args()


def print_parts(films: dict[str, Path], folder: Path) -> None:
    """Print the CPU time of the parts of a visit, in ms a film, by transfer syntax."""
    import torch

    from kneematch.run.config import DetectConfig
    from kneematch.run.film_record import FilmRecord
    from kneematch.run.visit import Visit

    torch.set_num_threads(1)
    spent: dict[str, float] = {}
    for module, name, label in TIMED:
        owner = resolve_name(module)
        setattr(owner, name, timed(getattr(owner, name), label, spent))
    config = DetectConfig(device="cpu", crops=True, overlays=True, measure=True, export=("dicom",))
    columns: dict[str, dict[str, list[float]]] = {}
    for syntax, links in films.items():
        paths = sorted(links.with_name("distinct").glob("*.dcm"))
        visitor = Visit(config, folder / syntax / "out")
        for turn, (number, path) in product(range(2), enumerate(paths)):
            record = FilmRecord(number, str(path), path.stem)
            spent.clear()
            timed(visitor, "all", spent)([record])
            for label, seconds in spent.items() if turn else ():
                columns.setdefault(label, {}).setdefault(syntax, []).append(1000 * seconds)
    labels = [label for _, _, label in TIMED if label in columns]
    times = {each: [f"{median(columns[each][k]):.1f}" for k in films] for each in (*labels, "all")}
    rows = ([each, *numbers] for each, numbers in times.items())
    table(("CPU time, ms a film", *films), rows)


def timed(function: Callable[..., Any], label: str, spent: dict[str, float]) -> Callable[..., Any]:
    """Return a function that adds its CPU time to what was spent under a label."""

    def run(*args: Any, **options: Any) -> Any:
        started = time.process_time()
        try:
            return function(*args, **options)
        finally:
            spent[label] = spent.get(label, 0.0) + time.process_time() - started

    return run


def make_films(folder: Path, syntax: str, args: argparse.Namespace) -> Path:
    """Render phantoms, compress them, and link to them; return the folder of links."""
    height, width = map(int, args.size.split("x"))
    distinct = folder / syntax / "distinct"
    config = SynthConfig(args.distinct, size=(height, width), workers=os.cpu_count())
    synthesize(distinct, config)
    paths = sorted(distinct.glob("*.dcm"))
    for path in paths if SYNTAXES[syntax] else ():
        compress(path, syntax)
    links = folder / syntax / "films"
    links.mkdir()
    for k in range(args.films):
        (links / f"{k:06d}.dcm").symlink_to(paths[k % len(paths)])
    return links


def compress(path: Path, syntax: str) -> None:
    """Compress the pixels of a film without loss, with the levels that archives have."""
    import imagecodecs
    from pydicom.encaps import encapsulate

    film = pydicom.dcmread(path)
    pixels = np.ascontiguousarray(film.pixel_array)
    if syntax == "jpeg2000":
        frame = imagecodecs.jpeg2k_encode(
            pixels, level=0, codecformat="j2k", reversible=True, bitspersample=film.BitsStored
        )
    else:
        frame = imagecodecs.ljpeg_encode(pixels, bitspersample=film.BitsStored)
    film.PixelData = encapsulate([frame])
    film["PixelData"].is_undefined_length = True
    film.file_meta.TransferSyntaxUID = SYNTAXES[syntax]
    film.save_as(path)


def run(
    films: Path, job: str, cores: int, source: Path | None, args: argparse.Namespace
) -> dict[str, float]:
    """Return what is measured of one run, by column."""
    out = films.with_name("out")
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "kneematch", "detect", str(films), "-o", str(out), "--quiet"]
    command += ["--device", args.device, *shlex.split(job), *shlex.split(args.options)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if source is not None:
        paths = [str(source.resolve()), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    with engine(cores, ray=args.ray) as options, tied(cores):
        started, peak = time.perf_counter(), 0.0
        process = subprocess.Popen([*command, *options], env=environment)
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
        **timings,
        "rest": seconds - sum(timings.values()),
        "all": seconds,
        "rate": args.films / timings["visits"],
        "written": written,
        "memory": peak,
        "iou": mean_iou(out / "detections.csv", films.with_name("distinct") / "truth.csv"),
    }


def mean_iou(found: Path, truth: Path) -> float:
    """Return the mean overlap of what was found on the first films with the truth."""
    rows = {(Path(row["film"]).stem, row["image_side"]): row for row in read_rows(found)}
    overlaps = []
    for row in read_rows(truth):
        place = int(Path(row["film"]).stem.rpartition("-")[2])
        knee = rows.get((f"{place:06d}", row["side"]))
        overlaps.append(plateau_iou(margins(knee), margins(row)) if knee else 0.0)
    return float(np.mean(overlaps))


def margins(row: dict[str, str]) -> tuple[Point, Point]:
    """Return the margins of a plateau, the picture's left one first."""
    ends = [
        (float(row[f"plateau_{end}_x_px"]), float(row[f"plateau_{end}_y_px"]))
        for end in ("medial", "lateral")
    ]
    left, right = sorted(ends)
    return left, right


@contextmanager
def tied(cores: int) -> Iterator[None]:
    """Tie the processes that are started here to the first cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(cores))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def engine(cores: int, *, ray: bool) -> Iterator[list[str]]:
    """Yield the options that say where to compute; for Ray, start a cluster."""
    if not ray:
        yield ["--workers", str(cores)]
        return
    from ray.cluster_utils import Cluster

    with tied(cores):
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": cores})
    try:
        yield ["--ray", cluster.address]
    finally:
        cluster.shutdown()


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
