"""Files appear whole or not at all, and their versions are told apart."""

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kneematch.errors import SettingsError
from kneematch.films.files import (
    ABANDONED_S,
    FileVersion,
    atomic_write,
    file_versions,
    make_folder,
    make_out_folder,
    read_text_bytes,
    remove_leftovers,
    remove_unfinished,
    writing,
)


def test_remove_unfinished_removes_what_is_being_written(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("old")
    with pytest.raises(FileNotFoundError), atomic_write(tmp_path / "a.txt"):
        remove_unfinished()
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "old"


def test_atomic_write_replaces_an_old_file_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("old")
    (tmp_path / "a.txt").chmod(0o640)
    with atomic_write(str(tmp_path / "a.txt")) as temp:
        assert (temp.parent, temp.suffix, temp.name[0]) == (tmp_path, ".txt", ".")
        temp.write_text("new")
        assert (tmp_path / "a.txt").read_text() == "old"
    assert (tmp_path / "a.txt").read_text() == "new"
    assert mode(tmp_path / "a.txt") == 0o640  # as before, since it was shared
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt])
def test_atomic_write_leaves_the_old_file_on_failure(
    tmp_path: Path, failure: type[BaseException]
) -> None:
    (tmp_path / "a.txt").write_text("old")

    def spoil() -> None:
        with atomic_write(tmp_path / "a.txt") as temp:
            temp.write_text("half")
            raise failure

    with pytest.raises(failure):
        spoil()
    assert (tmp_path / "a.txt").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_atomic_write_keeps_two_writers_apart(tmp_path: Path) -> None:
    name = "x" * 251 + ".txt"  # the longest possible
    with atomic_write(tmp_path / name) as first, atomic_write(tmp_path / name) as second:
        assert first != second
        first.write_text("first")
        second.write_text("second")
    assert (tmp_path / name).read_text() == "first"  # the outer one ended last


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_make_out_folder_says_why_it_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in ("file", "file/inside"):
        with pytest.raises(SettingsError, match="file is a file, not a folder"):
            make_out_folder(tmp_path / place)
    with pytest.raises(SettingsError, match="/proc/1/x: You may not write"):
        make_out_folder(Path("/proc/1/x"))


def test_atomic_write_and_make_folder_are_for_the_owner_only(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with atomic_write(tmp_path / "a.txt") as temp:
            assert mode(temp) == 0o600  # from the beginning
        make_folder(tmp_path / "b")
    finally:
        os.umask(before)
    assert (mode(tmp_path / "a.txt"), mode(tmp_path / "b")) == (0o600, 0o700)


def test_atomic_write_names_the_file_that_does_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with (
        pytest.raises(SettingsError, match=f"^{path}: It cannot be written: File too large"),
        writing(tmp_path),
        atomic_write(path) as temp,
        at_most_bytes(10),
    ):
        temp.write_text("more than ten bytes")
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
from kneematch.films.files import atomic_write
with atomic_write("{tmp_path}/killed.txt"):
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
    with atomic_write(tmp_path / "mine.txt") as mine:
        remove_leftovers(tmp_path, tmp_path / "missing")
        assert {path.name for path in tmp_path.iterdir()} == {".kneematch-notes", mine.name}


def test_remove_leftovers_keeps_files_of_other_machines_for_a_day(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    code = f"""
import platform
platform.node = lambda: "another-machine"
from kneematch.films.files import TEMPORARY
open(f"{tmp_path}/{{TEMPORARY}}{process.pid}-a.csv", "w")
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    (name,) = (path.name for path in tmp_path.iterdir())
    assert "another" not in name
    remove_leftovers(tmp_path)
    assert (tmp_path / name).exists()
    long_ago = (tmp_path / name).stat().st_mtime - 2 * ABANDONED_S
    os.utime(tmp_path / name, (long_ago, long_ago))
    remove_leftovers(tmp_path)
    assert not (tmp_path / name).exists()


def version(path: Path, *, hashed: bool = False) -> FileVersion:
    (found,) = file_versions([str(path)], hashed=hashed)
    assert found is not None
    return found


def test_file_version_with_a_hash_ignores_dates_only(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    dated, hashed = version(path), version(path, hashed=True)
    assert dated.is_same(version(path))
    os.utime(path, ns=(1, 1))
    assert not dated.is_same(version(path))
    assert not hashed.is_same(version(path))
    assert hashed.is_same(version(path, hashed=True))
    path.write_text("new")
    os.utime(path, ns=(1, 1))
    assert not hashed.is_same(version(path, hashed=True))


def test_file_versions_has_none_for_missing_files(tmp_path: Path) -> None:
    paths = [str(tmp_path / f"{k}") for k in range(1000)]
    Path(paths[700]).touch()
    found = file_versions([*paths, "null\0byte"])
    assert [k for k, each in enumerate(found) if each] == [700]
    os.mkfifo(tmp_path / "pipe")
    assert version(tmp_path / "pipe", hashed=True).sha256 == ""  # without waiting for the pipe


def test_read_text_bytes_refuses_what_has_no_end(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_bytes(b"a\xff\r\n")
    assert read_text_bytes(tmp_path / "list.txt") == b"a\xff\r\n"
    with pytest.raises(OSError, match="more than 256 MB"):
        read_text_bytes(Path("/dev/zero"))
