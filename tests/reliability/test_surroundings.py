"""A failure of a film's surroundings passes: the next run tries the film again."""

import shutil
import signal
import sys
from pathlib import Path

import pytest

from hooks import with_hook
from kneematch.knee.decision import Area, Decision
from kneematch.run.database import Run as Database
from program import SEARCH, Run
from tables import read_table

# Run at the start of every Python process: what happens when a film is opened.
HOOK = """
import errno, os, signal, sys
set_timer = signal.setitimer
signal.setitimer = lambda which, seconds: set_timer(which, min(seconds, 3))
def hook(event, args):
    fault = {}.get(os.path.basename(str(args[0])) if event == "open" else "")
    if fault:
        exec(fault)
sys.addaudithook(hook)
"""
FAULTS = {
    "disk.dcm": "raise OSError(errno.EIO, 'Input/output error')",
    "killed.dcm": "os.kill(os.getpid(), signal.SIGKILL)",
    "memory.dcm": "raise MemoryError",
    "missing.dcm": "raise FileNotFoundError(errno.ENOENT, 'No such file or directory')",
    "permission.dcm": "raise PermissionError(errno.EACCES, 'Permission denied')",
    "slow.dcm": "while True: pass",
}
REASONS = ["Input/output error", "killed by SIGKILL", "not enough memory"]
REASONS += ["No such file or directory", "Permission denied", "more CPU time than is allowed"]
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


@pytest.mark.skipif(sys.platform != "linux", reason="signals and limits are those of Linux")
def test_detect_tries_films_again_that_failed_for_their_surroundings(
    folder: Path, run: Run
) -> None:
    good = folder / "phantom-00000.dcm"
    for name in FAULTS:
        shutil.copy(good, folder / name)
    (folder / "broken.dcm").write_bytes(good.read_bytes()[:5000])
    films = "broken.dcm", good.name, *FAULTS
    command = ("detect", *films, "-o", "out", *SEARCH, "--workers", "2")
    done = run(*command, PYTHONPATH=with_hook(folder / "hooks", HOOK.format(FAULTS)))
    assert done.returncode == 1, done.stderr
    broken, *failed = read_table(folder / "out" / "failures.csv")
    assert [row["status"] for row in (broken, *failed)] == ["failed"] + ["unreadable"] * len(FAULTS)
    for row, reason in zip(failed, REASONS, strict=True):
        assert reason in row["reason"]
    again = run(*command)
    assert "8 films: 2 done before, 0 new, 6 tried again" in again.stderr
    assert read_table(folder / "out" / "failures.csv") == [broken]
    assert "14 knees in 7 films" in again.stdout
    assert "tried again" not in run(*command).stderr


def test_apply_that_was_killed_leaves_no_file_of_a_rejected_knee(folder: Path, run: Run) -> None:
    options = ("--crops", "--overlays", "--workers", "0")
    assert run("detect", ".", "-o", "out", *SEARCH, *options).returncode == 0
    with Database(folder / "out") as database:
        for film in list(database.records()):
            for knee in film.found if film.id == 1 else film.found[:1]:
                database.decide(film.id, knee.side, Decision("rejected", Area.from_detection(knee)))
    names = ("phantom-00001", "phantom-00002")
    kept = {f"{each}{end}" for each in names for end in ("-L.png", ".jpg")}
    for number in (1, 3, 6, 9):
        out = f"out-{number}"
        shutil.copytree(folder / "out", folder / out)
        hook = with_hook(folder / "hooks", KILL.format(number))
        killed = run("apply", out, "--workers", "0", PYTHONPATH=hook)
        assert killed.returncode == -signal.SIGKILL
        assert run("apply", out, "--workers", "0").returncode == 0
        left = (file for kind in ("crops", "overlays") for file in (folder / out / kind).iterdir())
        assert {file.name for file in left} == kept
