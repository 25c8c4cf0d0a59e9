"""Let every system call of a run fail in turn, or kill the run there, and continue it afterwards.

    python lab/faults.py [SCENARIO ...] [--every K]

For every K-th open for writing, write, sync, rename, removal and mkdir in a command's output
folder, the command is run three times: the call fails with ENOSPC and so do all later ones (a full
disk); it fails once with EIO; the process is killed there, in the middle of a write. Then the
command is run again. It must end with the bytes of an undisturbed run and leave no temporary files;
the fault itself must be told in lines and not in a traceback, and a file that carries a final name
must be whole. Scenarios: detect (with crops), resume, apply, and others (two runs in one folder,
the folder removed, no locks). Prints a row of counts for each scenario, and every problem; exits
with 1 if there are any.

The calls are intercepted by faults.c, which needs a C compiler and Linux.
"""

import argparse
import csv
import ctypes
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from kneematch.run.decisions import AREA_COLUMNS, COLUMNS

SHIM = "KNEEMATCH_FAULTS"  # path of the compiled faults.c
FAULTS = {"ENOSPC": (errno.ENOSPC, 1), "EIO": (errno.EIO, 0), "SIGKILL": (-1, 0)}
OTHER_FILMS = 30
MOST_SHOWN = 12  # problems of a scenario
# Files with times in them, or that a program does not write in the same order twice.
UNLIKE = ("run.json", "report.html", "run.sqlite", "thumbnails.sqlite")
DETECT = ["detect", "films", "-o", "out", "--device", "cpu", "--workers", "0", "--quiet"]
CROPS = [*DETECT, "--crops", "--crop-spacing", "3", "--export", "coco"]


@dataclass(frozen=True)
class Scenario:
    """A command whose system calls fail, and what it starts from."""

    command: list[str]
    prepare: Callable[[Path], object]


def prepare_killed(folder: Path) -> None:
    """Leave a run that was killed while it made crops."""
    run(folder, CROPS, at=60, fault=FAULTS["SIGKILL"])


def prepare_reviewed(folder: Path) -> None:
    """Leave a finished run and decisions about its knees."""
    assert run(folder, [*CROPS, "--overlays"]).code == 0
    write_review(folder)


def write_review(folder: Path) -> None:
    """Write a review.csv that corrects the first knee of a run and rejects the second."""
    with (folder / "out" / "detections.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    columns = ("film", "image_side", *AREA_COLUMNS, "loss")
    more = COLUMNS[COLUMNS.index("loss") + 1 :]
    with (folder / "review.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, ("time", *columns[:2], "decision", *columns[2:], *more))
        table.writeheader()
        for row, decision in zip(rows, ("corrected", "rejected"), strict=False):
            kept = {name: row[name] for name in columns}
            if decision == "corrected":
                kept["width_px"] = "100.0"
            table.writerow({"time": "2026-01-01T00:00:00Z", "decision": decision, **kept})


APPLY = ["apply", "out", "--decisions", "review.csv", "--workers", "0", "--quiet"]
SCENARIOS = {
    "detect": Scenario(CROPS, lambda folder: None),
    "resume": Scenario(CROPS, prepare_killed),
    "apply": Scenario(APPLY, prepare_reviewed),
}


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int  # negative: the signal
    calls: int  # that were counted
    said: str  # on stderr


def run(folder: Path, command: list[str], at: int = 0, fault: tuple[int, int] = (0, 0)) -> Ended:
    """Run a command to its end, with a fault at one of its calls."""
    return finish(folder, start(folder, command, at, fault))


def start(
    folder: Path,
    command: list[str],
    at: int = 0,
    fault: tuple[int, int] = (0, 0),
    *,
    locks: bool = True,
) -> int:
    """Run a command in a fork of this process, which has everything loaded; return its id."""
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        os.chdir(folder)
        os.dup2(os.open(f"said-{os.getpid()}", os.O_CREAT | os.O_TRUNC | os.O_WRONLY), 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        shim = ctypes.CDLL(os.environ[SHIM])
        shim.fault_arm(os.fsencode(folder / "out"), at, *fault)
        if not locks:
            shim.fault_no_locks()
        from kneematch.cli.main import main as kneematch

        code = kneematch(command)
        counted = shim.fault_count()
        shim.fault_arm(b"", 0, 0, 0)
        Path(f"calls-{os.getpid()}").write_text(str(counted))
    except BaseException:  # noqa: BLE001 - it is printed, and counts as a problem
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def finish(folder: Path, process: int) -> Ended:
    """Wait for the end of a command."""
    _, status = os.waitpid(process, 0)
    calls, said = folder / f"calls-{process}", folder / f"said-{process}"
    count = int(calls.read_text()) if calls.exists() else 0
    return Ended(os.waitstatus_to_exitcode(status), count, said.read_text(errors="replace"))


def results(folder: Path) -> dict[str, bytes]:
    """Return the files that do not depend on the time."""
    out = folder / "out"
    return {
        str(path.relative_to(out)): path.read_bytes()
        for path in out.rglob("*")
        if path.is_file() and not path.name.startswith((".", *UNLIKE))
    }


def problems(
    folder: Path, ended: Ended, before: dict[str, bytes], expected: dict[str, bytes]
) -> Iterator[str]:
    """Yield what is wrong after a fault."""
    if "Traceback" in ended.said:
        yield f"traceback: {ended.said.splitlines()[-1]}"
    elif ended.code > 2:
        yield f"exit code {ended.code}"
    found = results(folder)
    if ended.code == 0 and found != expected:
        yield "said that all is well, and it is not"
    for name, content in found.items():
        good = [known[name] for known in (before, expected) if name in known]
        # A table of crops lists those that could be made.
        if name != "crops.csv" and content not in good:
            yield f"half-written: {name}"
    if (folder / "out" / "run.json").exists():
        json.loads((folder / "out" / "run.json").read_bytes())


def after_resume(folder: Path, ended: Ended, expected: dict[str, bytes]) -> Iterator[str]:
    """Yield what is wrong after the command was continued."""
    if ended.code != 0:
        yield f"the second time it ended with {ended.code}: {ended.said[-300:]}"
        return
    found = results(folder)
    for name in sorted({*found, *expected}):
        if found.get(name) != expected.get(name):
            yield f"after the second time, {name} is not that of an undisturbed run"
    for path in (folder / "out").rglob(".*"):
        yield f"left behind: {path.suffix or path.name} in {path.parent.name}"


def fresh(films: Path, folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "films").symlink_to(films)
    return folder


def inject(name: str, films: Path, work: Path, every: int) -> Counter[str]:
    """Run a scenario with each fault at every K-th call; return counts."""
    scenario, folder, counts = SCENARIOS[name], work / name, Counter[str]()
    scenario.prepare(fresh(films, folder))
    prepared, before = (
        shutil.copytree(folder, work / f"{name}-before", symlinks=True),
        results(folder),
    )
    ended = run(folder, scenario.command)
    assert ended.code == 0, ended.said
    expected, counts["calls"] = results(folder), ended.calls
    for at in range(1, ended.calls + 1, every):
        for kind, fault in FAULTS.items():
            shutil.rmtree(folder)
            shutil.copytree(prepared, folder, symlinks=True)
            ended = run(folder, scenario.command, at, fault)
            wrong = set(problems(folder, ended, before, expected))
            counts["killed"] += ended.code == -signal.SIGKILL
            ended = run(folder, scenario.command)
            wrong |= set(after_resume(folder, ended, expected))
            counts["faults"] += 1
            counts["same bytes"] += not wrong
            report(counts, f"{name}, {kind} at call {at}", wrong)
    return counts


def report(counts: Counter[str], where: str, wrong: set[str]) -> None:
    """Count problems, and print the first ones."""
    for problem in sorted(wrong):
        counts["problems"] += 1
        if counts["problems"] <= MOST_SHOWN:
            print(f"{where}: {problem}", file=sys.stderr, flush=True)


def link_many(films: Path, many: Path, count: int) -> Path:
    """Make a folder of many links to the same films."""
    good = sorted(films.glob("*.dcm"))
    many.mkdir()
    for number in range(count):
        (many / f"{number:03d}.dcm").symlink_to(good[number % len(good)])
    for path in (*good, films / "template.json"):
        (many / path.name).symlink_to(path)
    return many


def others(films: Path, work: Path) -> Counter[str]:
    """Disturb runs in other ways."""
    many = link_many(films, work / "several", OTHER_FILMS)
    reference, counts = fresh(many, work / "undisturbed"), Counter[str]()
    assert run(reference, DETECT).code == 0
    expected = results(reference)
    for disturb in (start_second, remove_folder, without_locks):
        wrong = set(disturb(fresh(many, work / disturb.__name__), expected))
        counts["faults"] += 1
        counts["same bytes"] += not wrong
        report(counts, disturb.__name__, wrong)
    return counts


def start_and_stop(folder: Path) -> int:
    """Start a run and stop it when it has begun to write; return its id."""
    process = start(folder, DETECT)
    while not (folder / "out").exists() or not any((folder / "out").iterdir()):
        time.sleep(0.005)
    time.sleep(0.2)
    os.kill(process, signal.SIGSTOP)
    return process


def go_on(folder: Path, process: int) -> Ended:
    """Let a run that was stopped continue to its end."""
    os.kill(process, signal.SIGCONT)
    return finish(folder, process)


def start_second(folder: Path, expected: dict[str, bytes]) -> Iterator[str]:
    """Start further runs in the folder of one that runs: they must refuse."""
    process = start_and_stop(folder)
    for option in ("--crops", "--force"):
        second = run(folder, [*DETECT, option])
        if second.code != 2 or "Another process" not in second.said:
            yield f"a second run with {option} ended with {second.code}: {second.said}"
    yield from after_resume(folder, go_on(folder, process), expected)


def remove_folder(folder: Path, expected: dict[str, bytes]) -> Iterator[str]:
    """Remove the output folder during a run, which must say so; then start over."""
    process = start_and_stop(folder)
    shutil.rmtree(folder / "out")
    ended = go_on(folder, process)
    if ended.code != 2 or "Traceback" in ended.said:
        yield f"ended with {ended.code}: {ended.said[-200:]}"
    yield from after_resume(folder, run(folder, DETECT), expected)


def without_locks(folder: Path, expected: dict[str, bytes]) -> Iterator[str]:
    """Start a run on a file system without locks: it must refuse."""
    ended = finish(folder, start(folder, DETECT, locks=False))
    if ended.code != 2 or "no file locks" not in ended.said:
        yield f"ended with {ended.code}: {ended.said[-200:]}"
    yield from after_resume(folder, run(folder, DETECT), expected)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = [*SCENARIOS, "others"]
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=", ".join(names))
    parser.add_argument("--every", type=int, default=1, metavar="K")
    args = parser.parse_args()
    if SHIM not in os.environ:
        return run_with_shim()
    from kneephantoms.config import SynthConfig
    from kneephantoms.dataset import synthesize

    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary).resolve()
        films, total = work / "films", 0
        synthesize(films, SynthConfig(2, size=(320, 400), workers=0))
        chosen = args.scenarios or names
        load_everything(work)
        columns = ("calls", "faults", "killed", "same bytes", "problems")
        print(f"| command | {' | '.join(columns)} |\n|---|{'---:|' * len(columns)}", flush=True)
        for name in chosen:
            if name == "others":
                counts = others(films, work)
            else:
                counts = inject(name, films, work, args.every)
            print(f"| {name} | {' | '.join(str(counts[c]) for c in columns)} |", flush=True)
            total += counts["problems"]
        os.chdir("/")
    return 1 if total else 0


def load_everything(work: Path) -> None:
    """Run each command once in this process, so that its forks have everything loaded."""
    from kneematch import Detector
    from kneematch.cli.main import main as kneematch

    Detector.load = lru_cache(Detector.load)  # type: ignore[method-assign, assignment]
    os.chdir(fresh(work / "films", work / "first"))
    assert kneematch([*CROPS, "--overlays"]) == 0
    write_review(Path())
    assert kneematch(SCENARIOS["apply"].command) == 0


def run_with_shim() -> int:
    """Compile faults.c, and run this command with it."""
    with tempfile.TemporaryDirectory() as folder:
        shim = Path(folder, "faults.so")
        source = Path(__file__).with_suffix(".c")
        compiler = ["cc", "-shared", "-fPIC", "-O1", "-o", str(shim), str(source), "-ldl"]
        subprocess.run(compiler, check=True)
        environment = {**os.environ, "LD_PRELOAD": str(shim), SHIM: str(shim)}
        environment["OMP_NUM_THREADS"] = "1"
        return subprocess.run([sys.executable, *sys.argv], env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
