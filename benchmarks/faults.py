"""Let every system call of a run fail in turn, or kill the run there, and continue it afterwards.

    python benchmarks/faults.py [detect resume train ...] [--every K] [--kills N] [--seed S]

For every K-th open for writing, write, fsync, rename and mkdir in a command's output folder, the
command is run three times: the call fails with ENOSPC and so do all later ones (a full disk); it
fails once with EIO; the process is killed there, in the middle of a write. Then the command is run
again with --resume. It must end with the bytes of an undisturbed run; a fault must be one line or
none on stderr, and a file that carries a final name must be whole. `--kills` kills a run at random
moments between its first and its last film. Exits with 1 if anything else happened.

The calls are intercepted by faults.c, which needs a C compiler and Linux.
"""

import argparse
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
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

SHIM = "KNEEMATCH_FAULTS"  # path of the compiled faults.c
FAULTS = {"ENOSPC": (errno.ENOSPC, 1), "EIO": (errno.EIO, 0), "SIGKILL": (-1, 0)}
KILL_FILMS = 400
FILM_S = 0.02  # that a film takes
UNLIKE = ("run.json", "report.html", "journal.jsonl")  # have times in them
SEARCH = ["--template", "films/template.json", "--method", "search", "--device", "cpu"]
DETECT = ["detect", "films", "-o", "out", *SEARCH, "--workers", "0", "--quiet"]
TRAIN = ["train", "films", "--template", "films/template.json", "-o", "out/m.safetensors"]
TRAIN += ["--cache", "out/cache", "--epochs", "1", "--batch-size", "2", "--workers", "0"]


@dataclass(frozen=True)
class Scenario:
    """A command whose system calls fail, and what it starts from."""

    name: str
    command: list[str]
    prepare: Callable[[Path], None]

    def resume(self, folder: Path) -> list[str]:
        """Return the command that continues after a fault."""
        if self.command[0] != "train":
            return [*self.command, "--resume"]
        begun = (folder / "out" / "m.checkpoint.safetensors").exists()
        done = (folder / "out" / "m.safetensors").exists() and not begun
        return ["--version"] if done else [*self.command, "--resume"] if begun else self.command


def half_done(folder: Path) -> None:
    """Leave a run that was killed while it made crops."""
    run(folder, SCENARIOS["detect"].command, at=32, fault=FAULTS["SIGKILL"])


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("detect", [*DETECT, "--crops", "--export", "coco"], lambda folder: None),
        Scenario("resume", [*DETECT, "--crops", "--export", "coco", "--resume"], half_done),
        Scenario("train", TRAIN, lambda folder: (folder / "out").mkdir()),
    )
}


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int  # negative: the signal
    calls: int  # that were counted
    said: str  # on stderr


def run(folder: Path, command: list[str], at: int = 0, fault: tuple[int, int] = (0, 0)) -> Ended:
    """Run a command in a fork of this process, which has everything loaded already."""
    said, calls = folder / "said.txt", folder / "calls.txt"
    calls.write_text("0")
    child = os.fork()
    if child == 0:
        code = 70
        try:
            os.chdir(folder)
            os.dup2(os.open(said, os.O_CREAT | os.O_TRUNC | os.O_WRONLY), 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115 - pytest may replace it
            shim = ctypes.CDLL(os.environ[SHIM])
            shim.fault_arm(os.fsencode(folder / "out"), at, *fault)
            from kneematch.cli.main import main as kneematch

            code = kneematch(command)
            counted = shim.fault_count()
            shim.fault_arm(b"", 0, 0, 0)
            calls.write_text(str(counted))
        except BaseException:  # noqa: BLE001 - it is printed, and counts as a problem
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return Ended(code, int(calls.read_text()), said.read_text(errors="replace"))


def results(folder: Path) -> dict[str, bytes]:
    """Return the files that do not depend on the time, and the rows of the journal."""
    out = folder / "out"
    kept = {
        str(path.relative_to(out)): path.read_bytes()
        for path in out.rglob("*")
        if path.is_file() and not path.name.startswith(".") and path.name not in UNLIKE
    }
    journal = out / "journal.jsonl"
    if journal.exists():
        kept["journal"] = b"\n".join(sorted(journal.read_bytes().splitlines()[1:]))
    return {
        name: _without_times(content) if name.endswith("metrics.csv") else content
        for name, content in kept.items()
        if "cache/" not in name and not name.endswith("checkpoint.safetensors")
    }


def _without_times(table: bytes) -> bytes:
    """Return metrics.csv without its column of seconds."""
    rows = [line.split(",") for line in table.decode().splitlines()]
    column = rows[0].index("seconds") if "seconds" in rows[0] else len(rows[0])
    return "\n".join(",".join(row[:column] + row[column + 1 :]) for row in rows).encode()


def problems(folder: Path, ended: Ended, expected: dict[str, bytes]) -> Iterator[str]:
    """Yield what is wrong after a fault."""
    if "Traceback" in ended.said:
        yield f"traceback: {ended.said.splitlines()[-1]}"
    elif ended.code > 2:
        yield f"exit code {ended.code}"
    found = results(folder)
    if ended.code == 0 and found != expected:
        yield "said that all is well, and it is not"
    for name, content in found.items():
        whole = name not in ("journal", "m.metrics.csv") and name in expected
        if whole and content != expected[name] and not name.endswith(".png"):
            yield f"half-written: {name}"
    for path in (folder / "out").glob("run.json"):
        json.loads(path.read_bytes())


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


def inject(
    scenario: Scenario, films: Path, work: Path, every: int
) -> tuple[Counter[str], set[str]]:
    """Run a scenario with each fault at every K-th call."""
    folder = fresh(films, work / scenario.name)
    scenario.prepare(folder)
    ended = run(folder, scenario.command)
    assert ended.code == 0, ended.said
    expected, counts, found = results(folder), Counter[str](), set[str]()
    counts["calls"] = ended.calls
    for at in range(1, ended.calls + 1, every):
        for name, fault in FAULTS.items():
            folder = fresh(films, work / scenario.name)
            scenario.prepare(folder)
            ended = run(folder, scenario.command, at, fault)
            wrong = list(problems(folder, ended, expected))
            counts["faults"] += 1
            counts["killed"] += ended.code == -signal.SIGKILL
            counts["one line"] += ended.code in (1, 2) and ended.said.count("\n") >= 1
            ended = run(folder, scenario.resume(folder))
            wrong += after_resume(folder, ended, expected)
            counts["same bytes"] += not wrong
            for problem in set(wrong):
                counts["problems"] += 1
                if problem not in found:
                    print(f"{scenario.name}, {name} at call {at}: {problem}", file=sys.stderr)
                found.add(problem)
    return counts, found


def kill_at_random(films: Path, work: Path, kills: int, seed: int) -> tuple[Counter[str], set[str]]:
    """Kill a run again and again between its first and its last film; continue it each time."""
    many = work / "many"
    many.mkdir()
    good = sorted(films.glob("*.dcm"))
    for number in range(KILL_FILMS):
        (many / f"{number}.dcm").symlink_to(good[number % len(good)])
    shutil.copy(films / "template.json", many)
    for film in good:
        (many / film.name).symlink_to(film)
    reference, folder = fresh(many, work / "whole"), fresh(many, work / "killed")
    assert run(reference, DETECT).code == 0
    expected, rng, counts = results(reference), random.Random(seed), Counter[str]()
    while counts["killed"] < kills:
        # One in ten is the real program with workers, the others are forks, which start quickly.
        workers = counts["killed"] % 10 == 0
        if kill_once(folder, rng, workers=workers):
            counts["killed"] += 1
        else:  # it was done before
            found = set(after_resume(folder, run(folder, [*DETECT, "--resume"]), expected))
            counts["problems"] += len(found)
            folder = fresh(many, work / "killed")
    found = set(after_resume(folder, run(folder, [*DETECT, "--resume"]), expected))
    counts["same bytes"] = counts["killed"] if not found and not counts["problems"] else 0
    counts["faults"], counts["problems"] = counts["killed"], counts["problems"] + len(found)
    for problem in found:
        print(f"kills: {problem}", file=sys.stderr)
    return counts, found


def kill_once(folder: Path, rng: random.Random, *, workers: bool) -> bool:
    """Continue a run and kill it after its next films; return False if it ended before."""
    journal = folder / "out" / "journal.jsonl"
    before = max(lines(journal), 1)
    command = [*DETECT, "--resume"]
    if workers:
        command = [word if word != "0" else "2" for word in command]
        environment = {**os.environ, "LD_PRELOAD": ""}
        program = [sys.executable, "-m", "kneematch", *command]
        process = subprocess.Popen(program, cwd=folder, env=environment).pid
    elif (process := os.fork()) == 0:
        run_quietly(folder, command)
    while lines(journal) <= before:
        if os.waitpid(process, os.WNOHANG)[0]:
            return False
        time.sleep(0.005)
    time.sleep(rng.uniform(0, 3 if workers else 0.2))
    if lines(journal) > KILL_FILMS:
        os.waitpid(process, 0)
        return False
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    time.sleep(0.3 if workers else 0)  # until its workers have seen that it is gone
    return True


def run_quietly(folder: Path, command: list[str]) -> None:
    from kneematch.cli.main import main as kneematch

    os.chdir(folder)
    os._exit(kneematch(command))


def lines(journal: Path) -> int:
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("scenarios", nargs="*", default=[*SCENARIOS], metavar="SCENARIO")
    parser.add_argument("--every", type=int, default=1, metavar="K")
    parser.add_argument("--kills", type=int, default=0, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if SHIM not in os.environ:
        return run_with_shim()
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary).resolve()
        from kneematch.synthetic.config import SynthConfig
        from kneematch.synthetic.dataset import synthesize

        synthesize(work / "films", SynthConfig(2, size=(320, 400), workers=0))
        remember_searches(work)
        total = 0
        print("| command | calls | faults | killed | same bytes after --resume | problems |")
        print("|---|---:|---:|---:|---:|---:|")
        rows = [
            (name, lambda name=name: inject(SCENARIOS[name], work / "films", work, args.every))
            for name in args.scenarios
        ]
        if args.kills:
            kills = args.kills, args.seed
            rows.append(("detect, kill -9", lambda: kill_at_random(work / "films", work, *kills)))
        for name, measure in rows:
            counts, _ = measure()
            shown = (counts[key] for key in ("calls", "faults", "killed", "same bytes", "problems"))
            print(f"| {name} | " + " | ".join(map(str, shown)) + " |", flush=True)
            total += counts["problems"]
    return 1 if total else 0


def remember_searches(work: Path) -> None:
    """Search each film once, in this process, whose forks know the results: writing is tested."""
    import kneematch.export.coco
    import kneematch.export.report
    import kneematch.training.trainer
    from kneematch.batch.config import DetectorSource
    from kneematch.cli.main import main as kneematch
    from kneematch.detection.detector import Detector, FilmResult

    found: dict[str, FilmResult] = {}
    search = Detector.detect_each

    def detect_each(detector: Detector, films: Iterable[str]) -> Iterator[FilmResult]:
        for film in films:
            name = str(Path(film).resolve())
            if name not in found:
                (found[name],) = search(detector, [film])
            time.sleep(FILM_S)
            yield found[name]

    DetectorSource.load = lru_cache(DetectorSource.load)  # type: ignore[method-assign]
    Detector.detect_each = detect_each  # type: ignore[method-assign, assignment]
    os.chdir(fresh(work / "films", work / "first"))
    assert kneematch(DETECT) == 0


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
