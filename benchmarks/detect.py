"""Measure `kneematch detect` end to end: time per film and its parts, memory, scaling, and Ray.

    python benchmarks/detect.py [--films N] [--method METHOD]   # parts against the whole
    python benchmarks/detect.py --scale 5000                    # few films against many
    python benchmarks/detect.py --ray                           # Ray against the local engine

Films are phantoms of 2494 x 2048 pixels in 16 bits, written once to a temporary folder. "decode",
"split" and "find" are medians of single calls on one core; "overlapped" is their sum divided by the
cores, the time per film if all cores were busy; "end to end" is the program's wall-clock time.
Memory is the peak of all its processes together, shared pages counted once.
"""

import argparse
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from kneematch.batch.recipe import Recipe
from kneematch.detection.prepare import Prepared, prepare
from kneematch.detection.registry import NEURAL
from kneematch.parallel.shared_memory import SharedRoom

from films import FAMILY, TEMPLATE_SEEDS, table
from kneematch.errors import TemplateError
from kneematch.io.radiograph import Radiograph
from kneematch.io.read import read
from kneematch.io.write import write_dicom
from kneematch.matching.annotation import save_annotation
from kneematch.matching.template import cut_template
from kneematch.synthetic.annotation import annotate
from kneematch.synthetic.phantom import phantom

SIZE = (2494, 2048)
MEASURED = 24  # films whose parts are timed
FEW = 100  # films that --scale compares with
OVERHEAD = 1.15  # target of end to end over the overlapped parts
SAMPLE_S = 0.2


@dataclass(frozen=True, slots=True)
class Measured:
    """Time and memory of one run of the program."""

    seconds: float
    peak_mb: float  # of all processes together


def make_films(folder: Path, count: int) -> list[Path]:
    """Write phantoms, and a template.json on another one, and return the films' paths."""
    folder.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), context) as pool:
        paths = list(pool.map(partial(_make, folder), range(count)))
    if not (folder / "template.json").exists():
        _make_template(folder)
    return paths


def _make(folder: Path, seed: int) -> Path:
    path = folder / f"film-{seed:05d}.dcm"
    if not path.exists():
        torch.set_num_threads(1)
        pixels = phantom(seed, size=SIZE).radiograph.pixels
        write_dicom(path, pixels, mm_per_px=0.14, laterality="B", bits=16)
    return path


def _make_template(folder: Path) -> None:
    path = folder / "template.dcm"
    for seed in TEMPLATE_SEEDS:
        made = phantom(seed, size=SIZE, family=FAMILY)
        if made.negative or made.hardware or max(knee.grade for knee in made.knees) > 1:
            continue
        write_dicom(path, made.radiograph.pixels, mm_per_px=0.14, laterality="B", bits=16)
        knee = made.knees[1]
        drawn = annotate(path, knee.side, knee.plateau_left, knee.plateau_right)
        try:
            cut_template(read(path), drawn)
        except TemplateError:  # the box leaves the half
            continue
        save_annotation(drawn, folder / "template.json")
        return


def seconds_each(function: Callable[[], object], repeats: int) -> float:
    """Return the median time of a call."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def parts(recipe: Recipe, paths: Sequence[Path]) -> dict[str, float]:
    """Return the seconds per film of each part on one core."""
    detector = recipe.build()
    torch.set_num_threads(1)
    some = [paths[k % len(paths)] for k in range(MEASURED)]
    films: list[Radiograph] = []
    prepared: list[Prepared] = []
    room = detector.room
    unread, unsplit = iter(some), iter(films)
    decode = seconds_each(lambda: films.append(read(next(unread))), MEASURED)
    split = seconds_each(lambda: prepared.append(prepare(next(unsplit), room)), MEASURED)
    batch = [prepared[k % MEASURED] for k in range(recipe.batch_size)]
    detector.find(batch)
    find = seconds_each(lambda: detector.find(batch), 5) / recipe.batch_size
    return {"decode": decode, "split": split, "find": find, "hand over": handed_over(batch[0])}


def handed_over(film: Prepared) -> float:
    """Return the seconds to copy a film into shared memory and out of it."""
    room = SharedRoom(1)
    taken = seconds_each(lambda: room.unpack(room.pack(film, 0), 0), 20)
    room.close()
    return taken


def run(
    recipe: Recipe, named: Sequence[str], *options: str, threads: int | None = None
) -> Measured:
    """Run the program, with its output in a temporary folder."""
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "kneematch", "detect", *named, "-o", f"{out}/out"]
        command += ["--batch-size", str(recipe.batch_size), "--method", recipe.method, "--quiet"]
        if recipe.template is not None:
            command += ["--template", recipe.template]
        environment = dict(os.environ)
        if threads is not None:
            environment["OMP_NUM_THREADS"] = str(threads)
        start = time.perf_counter()
        process = subprocess.Popen([*command, *options], env=environment)
        with _watched(process.pid) as peak:
            code = process.wait()
        if code != 0:
            raise RuntimeError(f"kneematch detect ended with {code}")
        return Measured(time.perf_counter() - start, peak[0] / 1e6)


@contextmanager
def _watched(root: int) -> Iterator[list[float]]:
    """Track the peak memory of a process and its descendants, in bytes."""
    peak, over = [0.0], threading.Event()

    def watch() -> None:
        while not over.wait(SAMPLE_S):
            peak[0] = max(peak[0], sum(map(_bytes, _family(root))))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()


def _family(root: int) -> list[int]:
    """Return a process and its descendants."""
    children: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue
        children.setdefault(parent, []).append(int(status.parent.name))
    found = [root]
    for process in found:
        found.extend(children.get(process, []))
    return found


def _bytes(process: int) -> float:
    """Return a process's memory (PSS: shared pages are divided among their users)."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return 1024 * sum(float(line.split()[1]) for line in lines if line.startswith("Pss:"))


def end_to_end(recipe: Recipe, paths: list[Path]) -> None:
    """Print the parts and the whole."""
    cores = os.cpu_count() or 1
    each = parts(recipe, paths)
    start_up = run(recipe, [str(paths[0])]).seconds
    whole = run(recipe, list(map(str, paths)))
    a_film = whole.seconds / len(paths)
    without_start = (whole.seconds - start_up) / (len(paths) - 1)
    overlapped = sum(each.values()) / cores
    rows = [[name, f"{1000 * value:.1f}"] for name, value in each.items()]
    rows += [
        [f"overlapped: their sum / {cores}", f"{1000 * overlapped:.1f}"],
        ["end to end", f"{1000 * a_film:.1f}"],
        ["end to end without the program's start", f"{1000 * without_start:.1f}"],
    ]
    print(f"{len(paths)} films of {SIZE[1]} x {SIZE[0]} pixels, {recipe.method}, {cores} cores.\n")
    table(["part", "ms per film"], rows)
    print(
        f"Start of the program {start_up:.1f} s. End to end / overlapped: "
        f"{without_start / overlapped:.2f}, and {a_film / overlapped:.2f} with the start "
        f"(target: at most {OVERHEAD}). Peak memory {whole.peak_mb:.0f} MB.\n"
    )


def scale(recipe: Recipe, paths: list[Path], many: int) -> None:
    """Compare few films with many, which are links to the few."""
    rows = []
    for count in (min(FEW, many), many):
        with tempfile.TemporaryDirectory() as folder:
            for k in range(count):
                Path(folder, f"{k:06d}.dcm").symlink_to(paths[k % len(paths)])
            done = run(recipe, [folder])
        rows.append([str(count), f"{1000 * done.seconds / count:.1f}", f"{done.peak_mb:.0f}"])
    table(["films", "ms per film", "peak memory, MB"], rows)


def with_ray(recipe: Recipe, paths: list[Path]) -> None:
    """Compare the local engine with Ray on 1 and 2 CPUs, one thread per process."""
    from ray.cluster_utils import Cluster

    named, rows = list(map(str, paths)), []
    for workers in (1, 2):
        done = run(recipe, named, "--workers", str(workers), threads=1)
        rows.append([f"local, {workers} readers", f"{1000 * done.seconds / len(paths):.1f}"])
    for cpus in (1, 2):
        os.environ["OMP_NUM_THREADS"] = "1"
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": cpus})
        options = ["--engine", "ray", "--ray-address", cluster.address]
        try:
            done = run(recipe, named, *options, threads=1)
        finally:
            cluster.shutdown()
        rows.append([f"Ray, {cpus} CPUs", f"{1000 * done.seconds / len(paths):.1f}"])
    table(["engine", "ms per film"], rows)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--films", type=int, default=200)
    parser.add_argument("--method", default="neural+sharpen")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--scale", type=int, metavar="N", help=f"compare {FEW} with N films")
    parser.add_argument("--ray", action="store_true", help="compare Ray with the local engine")
    args = parser.parse_args()
    folder = Path(tempfile.gettempdir()) / f"kneematch-films-{SIZE[0]}x{SIZE[1]}"
    paths = make_films(folder, args.films)
    # The networks bring their own template; other methods need one.
    template = None if args.method in NEURAL else str(folder / "template.json")
    recipe = Recipe(template=template, method=args.method, batch_size=args.batch)
    if args.scale:
        scale(recipe, paths, args.scale)
    elif args.ray:
        with_ray(recipe, paths)
    else:
        end_to_end(recipe, paths)


if __name__ == "__main__":
    main()
