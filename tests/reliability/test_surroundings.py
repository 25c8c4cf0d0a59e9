"""A failure of a film's surroundings passes: the next run tries the film again."""

import csv
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kneematch.knee.decision import Area, Decision
from kneematch.run.database import Run as Database

Run = Callable[..., subprocess.CompletedProcess[str]]

# Run at the start of every Python process: what happens when a film is opened.
HOOK = """
import errno, os, signal, sys
def hook(event, args):
    if event == "open" and str(args[0]).endswith("phantom-00001.dcm"):
        {}
sys.addaudithook(hook)
"""
FAULTS = {
    "missing": "raise FileNotFoundError(errno.ENOENT, 'No such file or directory')",
    "permission": "raise PermissionError(errno.EACCES, 'Permission denied')",
    "disk": "raise OSError(errno.EIO, 'Input/output error')",
    "memory": "raise MemoryError",
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "slow": "while True: pass",
}
REASONS = {
    "missing": "No such file or directory",
    "permission": "Permission denied",
    "disk": "Input/output error",
    "memory": "not enough memory",
    "killed": "killed by SIGKILL",
    "slow": "more CPU time than --time-limit allows",
}
COMMAND = ("detect", ".", "-o", "out", "--template", "template.json", "--method", "search")
COMMAND += ("--device", "cpu", "--workers", "2", "--time-limit", "3")


def failures(folder: Path) -> list[dict[str, str]]:
    with (folder / "out" / "failures.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.skipif(sys.platform != "linux", reason="signals and limits are those of Linux")
@pytest.mark.parametrize("fault", FAULTS)
def test_detect_tries_films_again_that_failed_for_their_surroundings(
    folder: Path, run: Run, fault: str
) -> None:
    (folder / "hooks").mkdir()
    (folder / "hooks" / "sitecustomize.py").write_text(HOOK.format(FAULTS[fault]))
    (folder / "broken.dcm").write_bytes((folder / "phantom-00000.dcm").read_bytes()[:5000])
    path = os.pathsep.join([str(folder / "hooks"), os.environ.get("PYTHONPATH", "")])
    done = run(*COMMAND, PYTHONPATH=path)
    assert done.returncode == 1, done.stderr
    broken, failed = failures(folder)
    assert (broken["status"], failed["status"]) == ("failed", "unreadable")
    assert REASONS[fault] in failed["reason"]
    again = run(*COMMAND)
    assert "4 films: 3 done before, 0 new, 1 tried again" in again.stderr
    assert failures(folder) == [broken]
    assert "6 knees in 3 films" in again.stdout
    assert "tried again" not in run(*COMMAND).stderr


# Kills the process when it is about to remove or rename a file for the n-th time.
KILL = """
import os, signal, sys
left = {}
def hook(event, args):
    global left
    if event in ("os.remove", "os.rename"):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
"""


@pytest.mark.parametrize("number", [1, 2, 4, 6, 9])
def test_apply_that_was_killed_leaves_no_file_of_a_rejected_knee(
    folder: Path, run: Run, number: int
) -> None:
    options = ("--template", "template.json", "--method", "search", "--device", "cpu")
    options += ("--crops", "--overlays", "--workers", "0")
    assert run("detect", ".", "-o", "out", *options).returncode == 0
    with Database(folder / "out") as database:
        for film in list(database.records()):
            for knee in film.found if film.id == 1 else film.found[:1]:
                database.decide(film.id, knee.side, Decision("rejected", Area.from_detection(knee)))
    (folder / "hooks").mkdir()
    (folder / "hooks" / "sitecustomize.py").write_text(KILL.format(number))
    path = os.pathsep.join([str(folder / "hooks"), os.environ.get("PYTHONPATH", "")])
    assert run("apply", "out", "--workers", "0", PYTHONPATH=path).returncode == -signal.SIGKILL
    assert run("apply", "out", "--workers", "0").returncode == 0
    left = {
        file.name for kind in ("crops", "overlays") for file in (folder / "out" / kind).iterdir()
    }
    names = ("phantom-00001", "phantom-00002")
    assert left == {f"{each}{end}" for each in names for end in ("-L.png", ".jpg")}
