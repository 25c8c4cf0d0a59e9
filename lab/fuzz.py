"""Read spoilt files of every kind, and report what is neither a result nor a clear refusal.

    python lab/fuzz.py [--minutes M | --inputs N] [--seed S]
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
from random import Random

from fuzz_targets import SECRET, TARGETS, Target, prepare_folder, write_seeds
from kneematch.errors import FilmError, KneematchError

CPU_S = 20  # for one input
WALL_S = 300  # for one input, on a busy machine
SMALL_FILE, SMALL_FILE_MEMORY = 2 << 20, 1 << 30  # bytes
MOST_MEMORY = 6 << 30  # bytes, which the system enforces
PEAK = Path("/proc/self/clear_refs")
INPUTS_PER_WORKER = 5000  # a process grows with time
LONGEST_MESSAGE = 300  # characters, without the path

RESULT, REFUSED, TOO_MUCH_MEMORY = "result", "refused", "too much memory"
# Number of an input, its kind, what reading it came to, and the memory it took; 0 for large ones.
Outcome = tuple[int, str, str, int]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--inputs", type=int, help="instead of --minutes")
    parser.add_argument("--seed", type=int, default=0)
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
        memory: dict[str, int] = dict.fromkeys(TARGETS, 0)
        found: dict[str, int] = {}  # the first input of each kind
        inputs = args.inputs or sys.maxsize
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with suppress(KeyboardInterrupt):  # Ctrl-C and SIGTERM end it early
            for number, name, outcome, took in run_inputs(seeds, args.seed, range(inputs), ends):
                memory[name] = max(memory[name], took)
                kind = outcome if outcome in (RESULT, REFUSED) else "finding"
                outcomes[name, kind] += 1
                if kind == "finding" and outcome not in found:
                    found[outcome] = number
                    store_finding(args.findings, seeds, args.seed, number, outcome)
                    print(f"--only {number} ({name}): {outcome}", file=sys.stderr, flush=True)
    print_table(outcomes, memory)
    return 1 if found else 0


def print_table(outcomes: Counter[tuple[str, str]], memory: dict[str, int]) -> None:
    """Print how many inputs were read, and the most memory that one below 2 MB took."""
    print("| file | inputs | read | refused | findings | MB |\n|---|---:|---:|---:|---:|---:|")
    kinds = (RESULT, REFUSED, "finding")
    rows = [(name, [outcomes[name, kind] for kind in kinds], memory[name]) for name in TARGETS]
    total = [sum(counts[k] for _, counts, _ in rows) for k in range(len(kinds))]
    for name, counts, took in [*rows, ("all", total, max(memory.values()))]:
        cells = (sum(counts), *counts, took >> 20)
        print(f"| {name} | " + " | ".join(f"{cell:,}" for cell in cells) + " |")


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
        self.good = {
            name: paths for name, paths in found.items() if paths
        }  # good files of this version
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


def read_input(target: Target, path: Path) -> tuple[str, int]:
    """Return what reading came to, and the memory it took; raise what is no KneematchError."""
    outcome, size = RESULT, path.stat().st_size
    PEAK.write_text("5")  # resets it
    before = memory_in_use("VmRSS")
    try:
        target.read(path)
    except KneematchError as error:
        message, outcome = str(error).replace(str(path), ""), REFUSED
        # Other errors quote the user's own tables, and the command line joins their lines.
        spread = "\n" in message and isinstance(error, FilmError)
        if SECRET in message or spread or len(message) > LONGEST_MESSAGE:
            outcome = f"message of {len(message)} characters of {type(error).__name__}"
    took = memory_in_use("VmHWM") - before if size < SMALL_FILE else 0
    return (TOO_MUCH_MEMORY if took > SMALL_FILE_MEMORY else outcome), took


def memory_in_use(name: str) -> int:
    """Return the resident memory of this process, now or at its peak, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))


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
        took = 0
        try:
            outcome, took = read_input(target, path)
        except BaseException as error:  # noqa: BLE001 - this is what is looked for
            last = traceback.extract_tb(error.__traceback__)[-1]
            outcome = f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}"
        signal.setitimer(signal.ITIMER_PROF, 0)
        pipe.send((outcome, took))


def run_inputs(seeds: Path, seed: int, numbers: range, ends: float) -> Iterator[Outcome]:
    """Yield the outcomes of inputs, which a worker process reads; a dead one is replaced."""
    processes = multiprocessing.get_context("spawn")
    while numbers and time.monotonic() < ends:
        ours, theirs = processes.Pipe(duplex=False)
        some = numbers[:INPUTS_PER_WORKER]
        process = processes.Process(target=work, args=(seeds, seed, some, theirs), daemon=True)
        process.start()
        theirs.close()
        name = ""  # name of the input in hand
        try:
            while time.monotonic() < ends:
                number, name = ours.recv()
                numbers = numbers[numbers.index(number) + 1 :]
                outcome, took = ours.recv() if ours.poll(WALL_S) else (f"no end in {WALL_S} s", 0)
                yield number, name, outcome, took
                name = ""
                if outcome.startswith("no end"):
                    break
        except EOFError:
            process.join()
            if name:
                how = "too slow" if process.exitcode == -signal.SIGPROF else "the process died"
                yield number, name, f"{how} (exit code {process.exitcode})", 0
            elif process.exitcode:
                raise RuntimeError(f"a worker ended with {process.exitcode}") from None
        process.kill()


if __name__ == "__main__":
    sys.exit(main())
