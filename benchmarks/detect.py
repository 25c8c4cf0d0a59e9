"""`kneematch detect` from end to end: seconds a film, where they go, memory, and Ray.

Run it as `python benchmarks/detect.py` (`--help` lists the options); it prints Markdown tables. The
films, phantoms of 2494 x 2048 pixels in 16 bits, are made once and kept in a temporary folder.
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

from films import FAMILY, TEMPLATE_SEEDS, table
from kneematch.batch.recipe import Recipe
from kneematch.detection.prepare import Prepared, prepare
from kneematch.detection.registry import NEURAL
from kneematch.errors import TemplateError
from kneematch.io.radiograph import Radiograph
from kneematch.io.read import read
from kneematch.io.write import write_dicom
from kneematch.matching.annotation import save_annotation
from kneematch.matching.template import cut_template
from kneematch.parallel.shared_memory import SharedRoom
from kneematch.synthetic.annotation import annotate
from kneematch.synthetic.phantom import phantom

SIZE = (2494, 2048)  # height and width
MEASURED = 24  # films of which the parts are timed
FEW = 100  # films against which many are held
OVERHEAD = 1.15  # of the parts, that the whole should take at most
SAMPLE_S = 0.2


@dataclass(frozen=True, slots=True)
class Measured:
    """A run of the program."""

    seconds: float
    peak_mb: float  # of all its processes together, shared memory counted once


def make_films(folder: Path, count: int) -> list[Path]:
    """Phantoms, and a template.json that is drawn on one of their family."""
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
    """The median time of a call."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def parts(recipe: Recipe, paths: Sequence[Path]) -> dict[str, float]:
    """Seconds a film of each part, on one core."""
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
    """Seconds that a film takes into the memory that two processes share, and out of it."""
    room = SharedRoom(1)
    taken = seconds_each(lambda: room.unpack(room.pack(film, 0), 0), 20)
    room.close()
    return taken


def run(
    recipe: Recipe, named: Sequence[str], *options: str, threads: int | None = None
) -> Measured:
    """The program itself, into a folder that is gone afterwards."""
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
    """The largest sum of the memory of a process and its descendants so far, in bytes."""
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
    """A process and all that it has started."""
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
    """Its memory, what it shares with others divided among them."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return 1024 * sum(float(line.split()[1]) for line in lines if line.startswith("Pss:"))


def end_to_end(recipe: Recipe, paths: list[Path]) -> None:
    """The whole against its parts."""
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
        ["end to end, start of the program taken off", f"{1000 * without_start:.1f}"],
    ]
    print(f"{len(paths)} films of {SIZE[1]} x {SIZE[0]} pixels, {recipe.method}, {cores} cores.\n")
    table(["part", "ms a film"], rows)
    print(
        f"Start of the program {start_up:.1f} s. End to end / overlapped: "
        f"{without_start / overlapped:.2f}, and {a_film / overlapped:.2f} with the start "
        f"(wanted: at most {OVERHEAD}). Peak memory {whole.peak_mb:.0f} MB.\n"
    )


def scale(recipe: Recipe, paths: list[Path], many: int) -> None:
    """Few films against many, which are links to a few."""
    rows = []
    for count in (min(FEW, many), many):
        with tempfile.TemporaryDirectory() as folder:
            for k in range(count):
                Path(folder, f"{k:06d}.dcm").symlink_to(paths[k % len(paths)])
            done = run(recipe, [folder])
        rows.append([str(count), f"{1000 * done.seconds / count:.1f}", f"{done.peak_mb:.0f}"])
    table(["films", "ms a film", "peak memory, MB"], rows)


def with_ray(recipe: Recipe, paths: list[Path]) -> None:
    """The local engine against Ray on 1 and on 2 CPUs, each process with one thread."""
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
    table(["engine", "ms a film"], rows)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--films", type=int, default=200)
    parser.add_argument("--method", default="neural+sharpen")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--scale", type=int, metavar="N", help=f"{FEW} against N films")
    parser.add_argument("--ray", action="store_true", help="Ray against the local engine")
    chosen = parser.parse_args()
    folder = Path(tempfile.gettempdir()) / f"kneematch-films-{SIZE[0]}x{SIZE[1]}"
    paths = make_films(folder, chosen.films)
    # Networks look for what they have learnt; the others need something to look for.
    template = None if chosen.method in NEURAL else str(folder / "template.json")
    recipe = Recipe(template=template, method=chosen.method, batch_size=chosen.batch)
    if chosen.scale:
        scale(recipe, paths, chosen.scale)
    elif chosen.ray:
        with_ray(recipe, paths)
    else:
        end_to_end(recipe, paths)


if __name__ == "__main__":
    main()
