"""Read spoilt files of every kind, and report what is neither a result nor a clear refusal.

    python lab/fuzz.py [--minutes M | --inputs N] [--seed S] [--workers W]
    python lab/fuzz.py --seed S --only NUMBER

Good files of each format (pydicom's test files, films, templates, models, tables, the files of a
run) are spoilt in ways that the format suggests, and read in worker processes. Each reading has to
end with a result or a KneematchError of one line that does not quote the header, within 20 s of CPU
time and, for files below 2 MB, 1 GB of memory. Anything else is a finding: the input is stored in
the folder `--findings`, and the command exits with 1. An input depends only on the seed and its
number, so `--only` makes it again and reads it in this process, with a traceback.
"""

import argparse
import logging
import math
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from random import Random
from threading import Thread

from fuzz_targets import SECRET, TARGETS, Target, prepare_folder, write_seeds
from kneematch.errors import FilmError, KneematchError

CPU_S = 20  # for one input
WALL_S = 300  # for one input, on a busy machine
SMALL_FILE, SMALL_FILE_MEMORY = 2 << 20, 1 << 30  # bytes
MOST_MEMORY = 6 << 30  # bytes, which the system enforces
PROGRAM_MEMORY = 512 << 20  # of an idle worker: torch, pydicom, a model
INPUTS_PER_WORKER = 5000  # a process grows with time
LONGEST_MESSAGE = 6000  # characters

RESULT, REFUSED, TOO_MUCH_MEMORY = "result", "refused", "too much memory"
Outcome = tuple[int, str, str]  # number of an input, its kind, and what reading it came to


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--inputs", type=int, help="instead of --minutes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--findings", type=Path, default=Path("fuzz-findings"))
    parser.add_argument("--only", type=int, metavar="NUMBER")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        seeds = Path(folder, "seeds")
        write_seeds(seeds)
        if args.only is not None:
            print(read_input(*Reader(seeds, args.seed).write(args.only)))
            return 0
        ends = time.monotonic() + 60 * args.minutes if args.inputs is None else math.inf
        outcomes: Counter[tuple[str, str]] = Counter()
        found: dict[str, int] = {}  # the first input of each kind
        inputs = args.inputs or sys.maxsize
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with suppress(KeyboardInterrupt):  # Ctrl-C and SIGTERM end it early
            for number, name, outcome in run_workers(seeds, args.seed, args.workers, inputs, ends):
                kind = outcome if outcome in (RESULT, REFUSED) else "finding"
                outcomes[name, kind] += 1
                if kind == "finding" and outcome not in found:
                    found[outcome] = number
                    store_finding(args.findings, seeds, args.seed, number, outcome)
                    print(f"--only {number} ({name}): {outcome}", file=sys.stderr, flush=True)
    print_table(outcomes)
    return 1 if found else 0


def print_table(outcomes: Counter[tuple[str, str]]) -> None:
    print("| file | inputs | read | refused | findings |\n|---|---:|---:|---:|---:|")
    rows = [
        (name, *(outcomes[name, kind] for kind in (RESULT, REFUSED, "finding"))) for name in TARGETS
    ]
    rows.append(("all", *(sum(row[k] for row in rows) for k in (1, 2, 3))))  # type: ignore[misc]
    for name, *counts in rows:
        print(f"| {name} | {sum(counts):,} | " + " | ".join(f"{n:,}" for n in counts) + " |")


def store_finding(folder: Path, seeds: Path, seed: int, number: int, outcome: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    target, written = Reader(seeds, seed).write(number)
    path = folder / f"{seed}-{number}-{target.name}"
    shutil.copy(written, path)
    path.with_name(f"{path.name}.outcome.txt").write_text(outcome + "\n", errors="replace")


class Reader:
    """Make inputs by their numbers, and read them."""

    def __init__(self, seeds: Path, seed: int) -> None:
        self.seed = seed
        found = {name: sorted((seeds / name).iterdir()) for name in TARGETS}
        self.good = {name: paths for name, paths in found.items() if paths}  # of this version
        self.targets = [TARGETS[name] for name in self.good for _ in range(TARGETS[name].share)]
        self.folder = Path(tempfile.mkdtemp(dir=seeds.parent))
        prepare_folder(seeds, self.folder)

    def write(self, number: int) -> tuple[Target, Path]:
        """Write an input; return what kind it is of, and where it is."""
        rng = Random(self.seed << 40 | number)
        target = rng.choice(self.targets)
        content = rng.choice(self.good[target.name]).read_bytes()
        for _ in range(rng.choice((1, 1, 2, 3))):
            try:
                content = target.mutate(content, rng)
            except Exception:  # noqa: BLE001 - what is spoilt already may have no structure left
                break
        path = self.folder / f"input-{target.name}"
        path.write_bytes(content)
        return target, path


def read_input(target: Target, path: Path) -> str:
    """Return what reading came to; raise whatever is not a KneematchError."""
    outcome, size = RESULT, path.stat().st_size
    try:
        target.read(path)
    except KneematchError as error:
        message, outcome = str(error), REFUSED
        # Other errors quote the user's own tables, and the command line joins their lines.
        spread = "\n" in message and isinstance(error, FilmError)
        if SECRET in message or spread or len(message) > LONGEST_MESSAGE:
            outcome = f"message of {len(message)} characters of {type(error).__name__}"
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    limit = SMALL_FILE_MEMORY + PROGRAM_MEMORY
    return TOO_MUCH_MEMORY if size < SMALL_FILE and peak > limit else outcome


def work(seeds: Path, seed: int, numbers: range, pipe: Connection) -> None:
    """Read inputs in a worker process, which a crash or a limit may end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("ignore")
    logging.disable()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # for libtiff, which prints what it finds
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    reader = Reader(seeds, seed)
    for number in numbers:
        target, path = reader.write(number)
        pipe.send((number, target.name))
        signal.setitimer(signal.ITIMER_PROF, CPU_S)  # whose signal ends the process
        try:
            outcome = read_input(target, path)
        except BaseException as error:  # noqa: BLE001 - this is what is looked for
            last = traceback.extract_tb(error.__traceback__)[-1]
            outcome = f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}"
        signal.setitimer(signal.ITIMER_PROF, 0)
        pipe.send(outcome)
        if outcome == TOO_MUCH_MEMORY:
            return  # since the peak of a process never falls


def run_inputs(seeds: Path, seed: int, numbers: range, ends: float) -> Iterator[Outcome]:
    """Yield the outcomes of inputs, which a worker process reads; a dead one is replaced."""
    processes = multiprocessing.get_context("spawn")
    while numbers and time.monotonic() < ends:
        ours, theirs = processes.Pipe(duplex=False)
        some = numbers[:INPUTS_PER_WORKER]
        process = processes.Process(target=work, args=(seeds, seed, some, theirs), daemon=True)
        process.start()
        theirs.close()
        name = ""  # of the input in hand
        try:
            while time.monotonic() < ends:
                number, name = ours.recv()
                numbers = numbers[numbers.index(number) + 1 :]
                outcome = ours.recv() if ours.poll(WALL_S) else f"no end in {WALL_S} s"
                yield number, name, outcome
                name = ""
                if outcome.startswith("no end"):
                    break
        except EOFError:
            process.join()
            if name:
                how = "too slow" if process.exitcode == -signal.SIGPROF else "the process died"
                yield number, name, f"{how} (exit code {process.exitcode})"
            elif process.exitcode:
                raise RuntimeError(f"a worker ended with {process.exitcode}") from None
        process.kill()


def run_workers(
    seeds: Path, seed: int, workers: int, inputs: int, ends: float
) -> Iterator[Outcome]:
    """Yield the outcomes of inputs that several workers read."""
    arrived: SimpleQueue[Outcome | None] = SimpleQueue()

    def collect(first: int) -> None:
        try:
            for outcome in run_inputs(seeds, seed, range(first, inputs, workers), ends):
                arrived.put(outcome)
        finally:
            arrived.put(None)

    for first in range(workers):
        Thread(target=collect, args=(first,), daemon=True).start()
    for _ in range(workers):
        yield from iter(arrived.get, None)


if __name__ == "__main__":
    sys.exit(main())
