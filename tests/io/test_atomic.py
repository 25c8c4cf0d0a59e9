"""A file written aside appears whole or not at all."""

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kneematch.errors import SettingsError
from kneematch.io.atomic import make_folder, remove_leftovers, write_aside, writing


def test_write_aside_puts_the_content_under_the_name(tmp_path: Path) -> None:
    with write_aside(tmp_path / "a.txt") as aside:
        aside.write_text("new")
        assert not (tmp_path / "a.txt").exists()
    assert (tmp_path / "a.txt").read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_write_aside_uses_the_same_folder_and_suffix(tmp_path: Path) -> None:
    with write_aside(str(tmp_path / "a.png")) as aside:
        assert aside.parent == tmp_path
        assert aside.suffix == ".png"
        assert aside.name.startswith(".")
        aside.touch()


def test_write_aside_replaces_an_old_file_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("old")
    with write_aside(tmp_path / "a.txt") as aside:
        aside.write_text("new")
        assert (tmp_path / "a.txt").read_text() == "old"
    assert (tmp_path / "a.txt").read_text() == "new"


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt])
def test_write_aside_leaves_the_old_file_on_failure(
    tmp_path: Path, failure: type[BaseException]
) -> None:
    (tmp_path / "a.txt").write_text("old")

    def spoil() -> None:
        with write_aside(tmp_path / "a.txt") as aside:
            aside.write_text("half")
            raise failure

    with pytest.raises(failure):
        spoil()
    assert (tmp_path / "a.txt").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_write_aside_keeps_two_writers_apart(tmp_path: Path) -> None:
    with write_aside(tmp_path / "a.txt") as first, write_aside(tmp_path / "a.txt") as second:
        assert first != second
        first.write_text("first")
        second.write_text("second")
    assert (tmp_path / "a.txt").read_text() == "first"  # the outer one ended last


def test_write_aside_takes_the_longest_possible_name(tmp_path: Path) -> None:
    name = "x" * 251 + ".dcm"
    with write_aside(tmp_path / name) as aside:
        aside.touch()
    assert (tmp_path / name).exists()


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_write_aside_and_make_folder_are_for_the_owner_only(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with write_aside(tmp_path / "a.txt") as aside:
            assert mode(aside) == 0o600  # from the beginning
        make_folder(tmp_path / "b")
    finally:
        os.umask(before)
    assert (mode(tmp_path / "a.txt"), mode(tmp_path / "b")) == (0o600, 0o700)


def test_write_aside_keeps_the_mode_of_a_file_that_was_shared(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch(0o640)
    with write_aside(tmp_path / "a.txt") as aside:
        aside.write_text("new")
    assert mode(tmp_path / "a.txt") == 0o640


def test_write_aside_names_the_file_that_does_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with (
        pytest.raises(SettingsError, match=f"^{path}: cannot be written .File too large"),
        writing(tmp_path),
        write_aside(path) as aside,
        at_most_bytes(10),
    ):
        aside.write_text("more than ten bytes")
    assert list(tmp_path.iterdir()) == []


@contextmanager
def at_most_bytes(size: int) -> Iterator[None]:
    """Let the system refuse larger files."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_remove_leftovers_removes_those_of_killed_processes_only(tmp_path: Path) -> None:
    code = f"""
from kneematch.io.atomic import write_aside
with write_aside("{tmp_path}/killed.txt"):
    print("writing", flush=True)
    input()
"""
    writer = [sys.executable, "-c", code]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(writer, **pipes) as process:  # type: ignore[call-overload]
        process.stdout.readline()
        process.kill()
    (tmp_path / ".kneematch-notes").touch()  # of the user
    assert len(list(tmp_path.iterdir())) == 2
    with write_aside(tmp_path / "mine.txt") as mine:
        remove_leftovers(tmp_path, tmp_path / "missing")
        assert {path.name for path in tmp_path.iterdir()} == {".kneematch-notes", mine.name}


def test_remove_leftovers_keeps_files_of_other_machines(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    code = f"""
import platform
platform.node = lambda: "another-machine"
from kneematch.io.atomic import ASIDE
open(f"{tmp_path}/{{ASIDE}}{process.pid}-a.csv", "w")
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    (name,) = (path.name for path in tmp_path.iterdir())
    assert "another" not in name
    remove_leftovers(tmp_path)
    assert (tmp_path / name).exists()
