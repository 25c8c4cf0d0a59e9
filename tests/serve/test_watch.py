"""`kneematch watch`: films that appear in a folder are examined once they are whole."""

import csv
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

from kneematch.serve.watch import PAUSE_S
from kneephantoms import SynthConfig, synthesize
from servers import eventually


def rows(out: Path) -> set[str]:
    if not (out / "detections.csv").exists():
        return set()
    with (out / "detections.csv").open(newline="") as file:
        return {Path(row["film"]).name for row in csv.DictReader(file)}


def test_watch_waits_for_another_process_that_works_on_the_run(tmp_path: Path) -> None:
    synthesize(tmp_path / "made", SynthConfig(2, size=(300, 250), framing="knee", workers=0))
    first, second = sorted((tmp_path / "made").glob("*.dcm"))
    out = tmp_path / "out"
    (tmp_path / "in").mkdir()
    shutil.copy(first, tmp_path / "in")
    command = [sys.executable, "-m", "kneematch", "watch", "in", "-o", "out", "--workers", "0"]
    said = tmp_path / "said"
    with said.open("wb") as file, subprocess.Popen(command, cwd=tmp_path, stderr=file) as watching:
        try:
            eventually(lambda: rows(out) == {first.name}, "the first film is done")
            with closing(sqlite3.connect(out / "run.sqlite", timeout=60)) as other:
                other.execute("BEGIN EXCLUSIVE")
                shutil.copy(second, tmp_path / "in")
                eventually(lambda: b"Another process" in said.read_bytes(), "it says so")
                time.sleep(2.5 * PAUSE_S)
                assert watching.poll() is None
            eventually(lambda: len(rows(out)) == 2, "the second film is done")
            assert said.read_bytes().count(b"Another process") == 1
        finally:
            watching.send_signal(signal.SIGTERM)


def test_watch_says_once_what_every_look_finds(tmp_path: Path) -> None:
    synthesize(tmp_path / "made", SynthConfig(2, size=(300, 250), framing="knee", workers=0))
    first, second = sorted((tmp_path / "made").glob("*.dcm"))
    folder, away, said = tmp_path / "in", tmp_path / "away", tmp_path / "said"
    (folder / "old").mkdir(parents=True)
    (folder / "old" / "run.sqlite").touch()
    (folder / "films.zip").touch()
    (folder / "link").symlink_to(tmp_path / "made")
    command = [sys.executable, "-m", "kneematch", "watch", "in", "-o", "out", "--workers", "0"]
    with said.open("wb") as file, subprocess.Popen(command, cwd=tmp_path, stderr=file) as watching:
        try:
            shutil.copy(first, folder)
            eventually(lambda: rows(tmp_path / "out") == {first.name}, "the first film is done")
            folder.rename(away)
            eventually(lambda: b"not there" in said.read_bytes(), "it says that the folder is away")
            time.sleep(2.5 * PAUSE_S)
            before = said.read_bytes()
            away.rename(folder)
            shutil.copy(second, folder)
            eventually(lambda: len(rows(tmp_path / "out")) == 2, "the second film is done")
            time.sleep(2.5 * PAUSE_S)
        finally:
            watching.send_signal(signal.SIGTERM)
    after = said.read_bytes().removeprefix(before)
    assert before.count(b"not there") == 1
    for message in (b"skipped, since", b"links to folders are not", b"other file skipped (zip 1)"):
        assert (before.count(message), after.count(message)) == (1, 1)


def test_watch_examines_films_as_they_appear_and_when_they_are_whole(tmp_path: Path) -> None:
    synthesize(tmp_path / "made", SynthConfig(2, size=(300, 250), framing="knee", workers=0))
    first, second = sorted((tmp_path / "made").glob("*.dcm"))
    (tmp_path / "in").mkdir()
    command = [sys.executable, "-m", "kneematch", "watch", "in", "-o", "out", "--workers", "0"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as watching:
        try:
            assert watching.stdout is not None
            assert watching.stdout.readline() == "Looking for films in in until Ctrl-C\n"
            shutil.copy(first, tmp_path / "in")
            eventually(lambda: rows(tmp_path / "out") == {first.name}, "the first film is done")
            shutil.copy(second, tmp_path / "in")
            both = {first.name, second.name}
            eventually(lambda: rows(tmp_path / "out") == both, "the second film is done")
        finally:
            watching.send_signal(signal.SIGTERM)
    assert watching.returncode == 0
    done = subprocess.run([*command[:3], "watch", "none", "-o", "out"], cwd=tmp_path, check=False)
    assert done.returncode == 2
