"""Let every system call of a run fail in turn, or kill the run there, and continue it afterwards.

    python lab/faults.py [SCENARIO ...] [--every K] [--kills N] [--seed S]

For every K-th open for writing, write, sync, rename, removal and mkdir in a command's output
folder, the command is run three times: the call fails with ENOSPC and so do all later ones (a full
disk); it fails once with EIO; the process is killed there, in the middle of a write. Then the
command is run again with --resume. It must end with the bytes of an undisturbed run and leave no
temporary files; the fault itself must be told in lines and not in a traceback, and a file that
carries a final name must be whole. Scenarios: detect (with crops), resume, apply, train (a few
calls only), kills (of a run, `--kills` times, at random moments) and others (stopped and continued,
two runs in one folder, the folder removed, the clock set back, no locks). Prints a row of counts
for each scenario, and every problem; exits with 1 if there are any.

The calls are intercepted by faults.c, which needs a C compiler and Linux.
"""

import argparse
import csv
import ctypes
import errno
import json
import os
import random
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

SHIM = "KNEEMATCH_FAULTS"  # path of the compiled faults.c
FAULTS = {"ENOSPC": (errno.ENOSPC, 1), "EIO": (errno.EIO, 0), "SIGKILL": (-1, 0)}
KILL_FILMS, OTHER_FILMS = 200, 60
TRAIN_CALLS = 6  # calls of a training that fail, since each takes long
SHOWN_WHILE_TRAINING = ("metrics.csv", "preview.png")
MOST_SHOWN = 12  # problems of a scenario
# Files with times in them, or that a program does not write in the same order twice.
UNLIKE = ("run.json", "report.html", "run.sqlite", "thumbnails.sqlite")
DETECT = ["detect", "films", "-o", "out", "--device", "cpu", "--workers", "0", "--quiet"]
CROPS = [*DETECT, "--crops", "--crop-spacing", "3", "--export", "coco"]
TRAIN = ["train", "films", "--template", "films/template.json", "-o", "out/m.safetensors"]
TRAIN += ["--cache", "out/cache", "--epochs", "1", "--batch-size", "2", "--workers", "0"]
TRAIN += ["--start", "none"]


@dataclass(frozen=True)
class Scenario:
    """A command whose system calls fail, and what it starts from."""

    command: list[str]
    prepare: Callable[[Path], object]

    def again(self, folder: Path) -> list[str]:
        """Return the command that continues after a fault."""
        if self.command[0] == "detect":
            return [*self.command, "--resume"]
        if self.command[0] == "train":
            if (folder / "out" / "m.checkpoint.pt").exists():
                return [*self.command, "--resume"]
            if (folder / "out" / "m.safetensors").exists():  # it was killed at its very end
                return ["--version"]
        return self.command


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
    columns = ("film", "side", "centre_x_px", "centre_y_px", "width_px", "rotation_deg", "loss")
    more = ("laterality", "landmarks", "height_px", "outlines")
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
    "resume": Scenario([*CROPS, "--resume"], prepare_killed),
    "apply": Scenario(APPLY, prepare_reviewed),
    "train": Scenario(TRAIN, lambda folder: (folder / "out").mkdir()),
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
    kept = {
        str(path.relative_to(out)): path.read_bytes()
        for path in out.rglob("*")
        if path.is_file() and not path.name.startswith((".", *UNLIKE))
    }
    return {
        name: _without_times(content)
        if name.endswith("metrics.csv")
        else _in_order(content)
        if name.endswith(".safetensors")
        else content
        for name, content in kept.items()
        if "cache/" not in name and not name.endswith("checkpoint.pt")
    }


def _without_times(table: bytes) -> bytes:
    """Return metrics.csv without its column of seconds."""
    rows = [line.split(",") for line in table.decode().splitlines()]
    column = rows[0].index("seconds") if "seconds" in rows[0] else len(rows[0])
    return "\n".join(",".join(row[:column] + row[column + 1 :]) for row in rows).encode()


def _in_order(model: bytes) -> bytes:
    """Return a safetensors file with its metadata sorted, which its library writes in any order."""
    size = 8 + int.from_bytes(model[:8], "little")
    return json.dumps(json.loads(model[8:size]), sort_keys=True).encode() + model[size:]


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
        # A table of crops lists those that could be made; what a training shows of itself changes.
        partly = name in ("crops.csv", *(f"m.{kind}" for kind in SHOWN_WHILE_TRAINING))
        if not partly and content not in good:
            yield f"half-written: {name}"
    if (folder / "out" / "run.json").exists():
        json.loads((folder / "out" / "run.json").read_bytes())


def after_resume(folder: Path, ended: Ended, expected: dict[str, bytes]) -> Iterator[str]:
    """Yield what is wrong after the command was continued."""
    if ended.code != 0:
        yield f"--resume ended with {ended.code}: {ended.said[-300:]}"
        return
    found = results(folder)
    for name in sorted({*found, *expected}):
        if found.get(name) != expected.get(name):
            yield f"after --resume, {name} is not that of an undisturbed run"
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
    if name == "train":
        every = max(every, ended.calls // TRAIN_CALLS)
    for at in range(1, ended.calls + 1, every):
        for kind, fault in FAULTS.items():
            shutil.rmtree(folder)
            shutil.copytree(prepared, folder, symlinks=True)
            ended = run(folder, scenario.command, at, fault)
            wrong = set(problems(folder, ended, before, expected))
            counts["killed"] += ended.code == -signal.SIGKILL
            for path in (folder / "out" / "cache").rglob(".*"):
                os.utime(path, (0, 0))  # a cache, which runs share, is cleared of old files only
            ended = run(folder, scenario.again(folder))
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


def kill_at_random(films: Path, work: Path, kills: int, seed: int) -> Counter[str]:
    """Kill a run again and again at random moments; continue it each time."""
    many = link_many(films, work / "many", KILL_FILMS)
    reference, folder = fresh(many, work / "whole"), fresh(many, work / "killed")
    started = time.monotonic()
    assert run(reference, DETECT).code == 0
    seconds = time.monotonic() - started
    expected, rng, counts = results(reference), random.Random(seed), Counter[str]()
    while counts["killed"] < kills:
        # One in ten is the real program with workers; the others are forks, which start quickly.
        killed = kill_once(folder, rng.uniform(0, seconds), workers=counts["killed"] % 10 == 0)
        counts["killed"] += killed
        if not killed or counts["killed"] == kills:
            wrong = set(after_resume(folder, run(folder, [*DETECT, "--resume"]), expected))
            report(counts, f"after {counts['killed']} kills", wrong)
            fresh(many, folder)
    counts["faults"] = counts["killed"]
    counts["same bytes"] = 0 if counts["problems"] else counts["killed"]
    return counts


def kill_once(folder: Path, seconds: float, *, workers: bool) -> bool:
    """Continue a run and kill it after some seconds; return False if it ended before."""
    command = [*DETECT, "--resume"]
    if workers:
        command = [word if word != "0" else "2" for word in command]
        environment = {**os.environ, "LD_PRELOAD": ""}
        program = [sys.executable, "-m", "kneematch", *command]
        process = subprocess.Popen(program, cwd=folder, env=environment).pid
    else:
        process = start(folder, command)
    time.sleep(seconds)
    if os.waitpid(process, os.WNOHANG)[0]:
        return False
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    time.sleep(0.3 if workers else 0)  # until its workers have seen that it is gone
    return True


def others(films: Path, work: Path) -> Counter[str]:
    """Disturb runs in other ways."""
    many = link_many(films, work / "several", OTHER_FILMS)
    reference, counts = fresh(many, work / "undisturbed"), Counter[str]()
    assert run(reference, DETECT).code == 0
    expected = results(reference)
    for disturb in (stop_and_continue, start_second, remove_folder, set_clock_back, without_locks):
        wrong = set(disturb(fresh(many, work / disturb.__name__), expected))
        counts["faults"] += 1
        counts["same bytes"] += not wrong
        report(counts, disturb.__name__, wrong)
    return counts


def start_and_stop(folder: Path, *, locks: bool = True) -> int:
    """Start a run and stop it when it has begun to write; return its id."""
    process = start(folder, DETECT, locks=locks)
    while not (folder / "out").exists() or not any((folder / "out").iterdir()):
        time.sleep(0.005)
    time.sleep(0.2)
    os.kill(process, signal.SIGSTOP)
    return process


def go_on(folder: Path, process: int) -> Ended:
    """Let a run that was stopped continue to its end."""
    os.kill(process, signal.SIGCONT)
    return finish(folder, process)


def stop_and_continue(folder: Path, expected: dict[str, bytes]) -> Iterator[str]:
    process = start_and_stop(folder)
    time.sleep(1)
    yield from after_resume(folder, go_on(folder, process), expected)


def start_second(folder: Path, expected: dict[str, bytes]) -> Iterator[str]:
    """Start further runs in the folder of one that runs: they must refuse."""
    process = start_and_stop(folder)
    for option in ("--resume", "--force"):
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
    yield from after_resume(folder, run(folder, [*DETECT, "--resume"]), expected)


def set_clock_back(folder: Path, expected: dict[str, bytes]) -> Iterator[str]:
    """Kill a run whose files are, by their clock, of tomorrow."""
    process = start_and_stop(folder)
    os.kill(process, signal.SIGKILL)
    finish(folder, process)
    tomorrow = time.time() + 86400
    for path in (folder / "out").rglob("*"):
        os.utime(path, (tomorrow, tomorrow))
    yield from after_resume(folder, run(folder, [*DETECT, "--resume"]), expected)


def without_locks(folder: Path, expected: dict[str, bytes]) -> Iterator[str]:
    """Let two runs write to one folder on a file system without locks."""
    process = start_and_stop(folder, locks=False)
    second = start(folder, [*DETECT, "--resume"], locks=False)
    for ended in (go_on(folder, process), finish(folder, second)):
        if ended.code > 2 or "Traceback" in ended.said:
            yield f"ended with {ended.code}: {ended.said[-200:]}"
    yield from after_resume(folder, run(folder, [*DETECT, "--resume"]), expected)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = [*SCENARIOS, "kills", "others"]
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=", ".join(names))
    parser.add_argument("--every", type=int, default=1, metavar="K")
    parser.add_argument("--kills", type=int, default=50, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
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
        load_everything(work, train="train" in chosen)
        columns = ("calls", "faults", "killed", "same bytes", "problems")
        print(f"| command | {' | '.join(columns)} |\n|---|{'---:|' * len(columns)}", flush=True)
        for name in chosen:
            if name == "kills":
                counts = kill_at_random(films, work, args.kills, args.seed)
            elif name == "others":
                counts = others(films, work)
            else:
                counts = inject(name, films, work, args.every)
            print(f"| {name} | {' | '.join(str(counts[c]) for c in columns)} |", flush=True)
            total += counts["problems"]
        os.chdir("/")
    return 1 if total else 0


def load_everything(work: Path, *, train: bool) -> None:
    """Run each command once in this process, so that its forks have everything loaded."""
    from kneematch import Detector
    from kneematch.cli.main import main as kneematch

    Detector.load = lru_cache(Detector.load)  # type: ignore[method-assign, assignment]
    os.chdir(fresh(work / "films", work / "first"))
    assert kneematch([*CROPS, "--overlays"]) == 0
    write_review(Path())
    assert kneematch(SCENARIOS["apply"].command) == 0
    if train:
        assert kneematch(TRAIN) == 0


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
