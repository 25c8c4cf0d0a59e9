"""Measure the memory of `kneematch detect` by the number of films, and against another version.

    python benchmarks/memory.py [--films 100 1000 5000] [--size 512x640] [--work FOLDER]
    python benchmarks/memory.py --films 100 --size 2048x2494 --other PYTHON [--turns N]

`--films 100 1000 5000` is one run of 5,000 films; its rows are the peaks until 100, 1,000 and all
films were done, since runs differ more among each other than memory grows during one. `--other` is
the Python of another environment with kneematch in it; both versions take turns, with one
number of films. Every run is the real command with its defaults (a worker process per core) and one
thread per process. The films are links to `--distinct` phantoms. Ten times a second, the memory of
all processes is read from /proc. Columns, each a peak in MB, the median over the turns:
    worker   largest private memory of a worker process, which a process that the main one
             started has forked; private pages are those that a process shares with no other.
    largest  largest private memory of any process.
    private  private memory of all processes together.
    total    memory of all processes together, shared pages counted once (PSS).
    fixed    total without the private memory of workers: what does not grow with their number.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

SAMPLE_S = 0.1
MB = 1000  # kB


class Memory(NamedTuple):
    """Memory of a program's processes in MB; see the columns above."""

    worker: float = 0.0
    largest: float = 0.0
    private: float = 0.0
    total: float = 0.0
    fixed: float = 0.0


def main() -> None:
    """Print a row for every version and number of films."""
    from scaling import links, phantom_folder

    options = _options()
    folder = phantom_folder(options.work, options.size, options.distinct)
    pythons = {_version(python): python for python in (options.other, sys.executable) if python}
    print(f"| version | films | {' | '.join(Memory._fields)} |")
    print(f"|---|{'---:|' * (1 + len(Memory._fields))}")
    options.films.sort()
    films = links(folder, options.films[-1])
    turns: dict[str, list[list[Memory]]] = {version: [] for version in pythons}
    for _ in range(options.turns):
        for version, python in pythons.items():
            turns[version].append(_detect(python, films, options.work / "out", options.films))
    for version, runs in turns.items():
        for count, peaks in zip(options.films, zip(*runs, strict=True), strict=True):
            medians = map(statistics.median, zip(*peaks, strict=True))
            print(f"| {version} | {count} | {' | '.join(f'{mb:.0f}' for mb in medians)} |")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--films", type=int, nargs="+", default=[100, 1000, 5000])
    parser.add_argument("--size", default="512x640", help="height x width of the films")
    parser.add_argument("--distinct", type=int, default=40, help="phantoms to render")
    parser.add_argument("--other", help="Python of another environment")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--work", type=Path, default=Path("scaling-films"))
    return parser.parse_args()


def _version(python: str) -> str:
    command = [python, "-m", "kneematch", "--version"]
    printed = subprocess.check_output(command, text=True, env=_environment(python))
    return printed.split()[1]


def _detect(python: str, films: Path, out: Path, counts: Sequence[int]) -> list[Memory]:
    """Return the peak memory of a run until each number of films is done."""
    shutil.rmtree(out, ignore_errors=True)
    journal, peaks = out / "journal.jsonl", list[Memory]()

    def notice(peak: Memory) -> None:
        done = journal.read_bytes().count(b'{"index"') if journal.exists() else 0
        peaks.extend(peak for count in counts[len(peaks) : -1] if count <= done)

    command = [python, "-m", "kneematch", "detect", str(films), "-o", str(out)]
    command += ["--quiet", "--device", "cpu"]
    _, whole = run_watched(command, _environment(python), notice)
    return [*peaks, *[whole] * (len(counts) - len(peaks))]


def _environment(python: str) -> dict[str, str]:
    """Return the environment of a version; another one must not find this one's modules."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return kept if python != sys.executable else dict(os.environ)


def run_watched(
    command: Sequence[str],
    environment: Mapping[str, str] = os.environ,
    notice: Callable[[Memory], object] = lambda peak: None,
) -> tuple[float, Memory]:
    """Run a command with one thread per process.

    Args:
        command: the program and its arguments.
        environment: its environment.
        notice: is called with the peak so far, some times a second.

    Returns:
        The seconds, and the peak memory.
    """
    started, peak = time.perf_counter(), Memory()
    process = subprocess.Popen(command, env={**environment, "OMP_NUM_THREADS": "1"})
    while process.poll() is None:
        peak = Memory(*map(max, peak, _memory(process.pid)))
        notice(peak)
        with suppress(subprocess.TimeoutExpired):
            process.wait(SAMPLE_S)
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: exit code {process.returncode}")
    return time.perf_counter() - started, peak


def _memory(main_process: int) -> Memory:
    """Return the present memory of a process and of all below it."""
    started = _children(main_process)
    workers = [worker for child in started for worker in _children(child)]
    fields = [kilobytes(pid, "smaps_rollup") for pid in (*workers, *started, main_process)]
    private = [(each["Private_Clean"] + each["Private_Dirty"]) / MB for each in fields]
    total = sum(each["Pss"] for each in fields) / MB
    of_workers = private[: len(workers)]
    return Memory(
        max(of_workers, default=0.0), max(private), sum(private), total, total - sum(of_workers)
    )


def _children(pid: int) -> list[int]:
    texts = []
    with suppress(OSError):  # it has ended
        texts = [path.read_text("ascii") for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(child) for text in texts for child in text.split()]


def kilobytes(pid: int, file: str) -> Counter[str]:
    """Return the sizes in a process's file in /proc; 0 if the process has ended."""
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/{file}").read_text("ascii").splitlines()
        return Counter(
            {line.split(":")[0]: int(line.split()[1]) for line in lines if " kB" in line}
        )
    return Counter()


if __name__ == "__main__":
    main()
