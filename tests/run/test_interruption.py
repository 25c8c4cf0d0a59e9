"""The real program, really killed: nothing that was written is lost or repeated."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from hooks import with_hook
from saved_films import EMPTY_BYTES, saved_bytes

RESULTS = ["detections.csv", "failures.csv"]
COUNT = 12  # more films than two workers begin, three times over
# Ctrl-C as soon as a process imports torch: the main one, or the one that workers are forked from.
STOP_IN_IMPORT = """
import os, signal, sys
def hook(event, args):
    if event == "import" and args[0] == "torch._C" and signal.SIGINT not in sent:
        sent.append(signal.SIGINT)
        for _ in range(3):
            os.killpg(0, signal.SIGINT)
sent = []
sys.addaudithook(hook)
"""
# A worker's first film takes longer than a commit waits for films, so it is saved; before its
# second film a worker waits until there is a file, so a run cannot end on a fast machine either.
GATE = """
import multiprocessing, os, sys, time
def hook(event, args):
    if event == "open" and "films/" in str(args[0]) and multiprocessing.parent_process():
        first = not opened
        opened.add(str(args[0]))
        if first:
            time.sleep(1.2)
        while len(opened) > 1 and not os.path.exists(os.environ["GATE"]):
            time.sleep(0.02)
opened = set()
sys.addaudithook(hook)
"""


@pytest.fixture(scope="module")
def archive(films: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to run in: films with odd names, one of them broken."""
    folder = tmp_path_factory.mktemp("archive")
    (folder / "films").mkdir()
    for k in range(COUNT - 1):
        name = b"odd \xff\nname.dcm" if k == 3 else f"{k}.dcm".encode()
        target = os.fsdecode(os.fsencode(folder) + b"/films/" + name)
        shutil.copy(films / f"phantom-{k % 5:05d}.dcm", target)
    (folder / "films" / "broken.dcm").write_bytes(b"no film")
    return folder


def command(out: str, *options: str, named: str = "films") -> list[str]:
    program = [sys.executable, "-m", "kneematch", "detect", named, "-o", out]
    return [*program, *options]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", **more}


def run(archive: Path, arguments: list[str], **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments,
        cwd=archive,
        env=environment(**more),
        capture_output=True,
        text=True,
        errors="surrogateescape",
        check=False,
        start_new_session=True,
    )


@pytest.fixture(scope="module")
def undisturbed(archive: Path) -> Path:
    """What an undisturbed run with the films read in the parent writes."""
    done = run(archive, command("undisturbed", "--workers", "0"))
    assert done.returncode == 1, done.stderr  # one film is broken
    return archive / "undisturbed"


def roll_back(out: Path) -> None:
    """Have SQLite undo the batch that a killed run was writing, if any."""
    for name in ("run.sqlite", "thumbnails.sqlite"):
        if (out / name).exists():
            with closing(sqlite3.connect(out / name)) as database:
                database.execute("PRAGMA schema_version").fetchone()


def visited(out: Path) -> dict[bytes, bytes]:
    """The films that a run has visited, with their knees; nobody may be working on it."""
    with closing(sqlite3.connect(out / "run.sqlite")) as run:
        run.text_factory = bytes
        query = (
            "SELECT f.path, f.status || GROUP_CONCAT(k.found) FROM films f LEFT JOIN knees k "
            "ON k.film = f.id WHERE f.status != '' GROUP BY f.id"
        )
        return dict(run.execute(query))


@contextmanager
def begun(archive: Path, out: str) -> Iterator["subprocess.Popen[str]"]:
    """A run that has saved films, or is about to, and cannot end before the block does."""
    hooks = with_hook(archive / f"gate of {out}", GATE)
    gate = archive / f"gate of {out}" / "open"
    gate.unlink(missing_ok=True)
    roll_back(archive / out)
    before = max(saved_bytes(archive / out), EMPTY_BYTES)
    process = subprocess.Popen(
        command(out, "--workers", "2"),
        cwd=archive,
        env=environment(PYTHONPATH=hooks, GATE=str(gate)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        while saved_bytes(archive / out) <= before:
            assert process.poll() is None
            time.sleep(0.01)
        yield process
    finally:
        gate.touch()


def stopped(archive: Path, number: signal.Signals, out: str) -> tuple[int, str]:
    """Start the program, and send it and its children a signal once it saves films."""
    with begun(archive, out) as process:
        if number == signal.SIGINT:
            os.killpg(process.pid, number)  # as a terminal does
        else:
            process.send_signal(number)
    _, said = process.communicate(timeout=120)
    assert all_gone(process.pid)
    return process.returncode, said


def all_gone(group: int) -> bool:
    """Whether no process of a group remains, soon."""
    for _ in range(500):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


def test_detect_stopped_thrice_ends_with_the_same_bytes(archive: Path, undisturbed: Path) -> None:
    out = archive / "stopped"
    code, _ = stopped(archive, signal.SIGKILL, "stopped")
    assert code == -signal.SIGKILL
    done = [visited(out)]
    for number in (signal.SIGINT, signal.SIGTERM):
        code, said = stopped(archive, number, "stopped")
        assert code == 130
        *before, stop = said.splitlines()
        # A kill in the middle of the first commit leaves no film.
        assert [" done before, " in line for line in before] == [True] * bool(done[-1])
        assert "Stopped" in stop
        assert "the same command" in stop
        done.append(visited(out))
    assert not (out / "detections.csv").exists()
    last = run(archive, command("stopped", "--workers", "1"))
    assert last.returncode == 1
    found = f"{2 * (COUNT - 1)} knees in {COUNT - 1} films"
    assert last.stdout.startswith(f"stopped/detections.csv: {found}")
    assert ", 1 failed (failures.csv)\n" in last.stdout
    done.append(visited(out))
    for before, after in pairwise(done):
        assert before.items() <= after.items()  # nothing lost
    assert 0 < len(done[1]) < len(done[2]) < COUNT
    assert done[-1] == visited(undisturbed)
    for name in RESULTS:
        assert (out / name).read_bytes() == (undisturbed / name).read_bytes()


def test_detect_stopped_in_an_import_says_so_in_one_line(archive: Path) -> None:
    hooks = with_hook(archive / "stopping", STOP_IN_IMPORT)
    done = run(archive, command("early", "--workers", "2"), PYTHONPATH=hooks)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "kneematch: Stopped.\n")


@pytest.mark.parametrize(("kilobytes", "file"), [(1, "run.sqlite"), (80, "crops/0-R.png")])
def test_detect_on_a_full_disk_says_what_is_safe_in_one_line(
    archive: Path, kilobytes: int, file: str
) -> None:
    """The system refuses files that are larger than a limit, as it refuses any on a full disk."""
    name = f"full-{kilobytes}"
    options = "--workers", "0", "--crops", "--crop-spacing", "0.2"
    arguments = command(name, *options, named="films/0.dcm")
    limited = ["bash", "-c", f'ulimit -f {kilobytes}; exec "$@"', "bash", *arguments]
    full = run(archive, limited)
    assert full.returncode == 2
    assert full.stderr.count("\n") == 1, full.stderr
    assert full.stderr.startswith(f"kneematch: {name}/{file}")
    assert f"{name}/run.sqlite" in full.stderr
    assert not list((archive / name).rglob(".kneematch-*"))
    assert run(archive, arguments).returncode == 0
    assert len(list((archive / name / "crops").iterdir())) == 2


def test_detect_with_force_waits_for_no_run_and_stops_none(archive: Path) -> None:
    """A second command with --force, while the first is searching, changes nothing."""
    with begun(archive, "both") as one:
        two = run(archive, command("both", "--workers", "1", "--force"))
        assert two.returncode == 2
        assert "Another process is working on both" in two.stderr
    one.communicate(timeout=120)
    assert one.returncode == 1  # one film is broken
    assert len(visited(archive / "both")) == COUNT
