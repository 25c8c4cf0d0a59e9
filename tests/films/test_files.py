"""Files appear whole or not at all, and their versions are told apart."""

import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kneematch.errors import SettingsError
from kneematch.films import files
from kneematch.films.discovery import find_films
from kneematch.films.files import (
    atomic_write,
    file_versions,
    make_folder,
    make_out_folder,
    read_text_bytes,
    remove_leftovers,
    write_file,
)


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


def test_atomic_write_names_the_file_that_it_could_not_make(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for target in (tmp_path / "file" / "a.csv", tmp_path / "none" / "a.csv"):
        with pytest.raises(OSError, match=re.escape(str(target))):
            write_file(target, b"")


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


def test_remove_leftovers_removes_what_nobody_is_writing(tmp_path: Path) -> None:
    (tmp_path / ".kneematch-notes").touch()  # of the user
    kept = {".kneematch-notes"}
    with atomic_write(tmp_path / "a.txt") as temp:
        remove_leftovers(tmp_path, tmp_path / "missing")
        assert {path.name for path in tmp_path.iterdir()} == {*kept, temp.name}
        os.utime(temp, (1, 1))
        remove_leftovers(tmp_path)
        assert {path.name for path in tmp_path.iterdir()} == kept
        temp.touch()
        remove_leftovers(tmp_path, unchanged_s=0)
        assert {path.name for path in tmp_path.iterdir()} == kept
        temp.touch()


def test_file_versions_tell_changed_and_missing_files(tmp_path: Path) -> None:
    paths = [str(tmp_path / f"{k}") for k in range(1000)]
    path = Path(paths[700])
    path.write_text("old")
    before = file_versions([*paths, "null\0byte"])
    assert [k for k, each in enumerate(before) if each] == [700]
    assert file_versions([str(path)]) == [before[700]]
    os.utime(path, ns=(1, 1))
    dated = file_versions([str(path)])
    assert dated != [before[700]]
    path.write_text("longer")
    os.utime(path, ns=(1, 1))
    assert file_versions([str(path)]) != dated


def test_read_text_bytes_takes_files_and_pipes_with_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe, list_file = tmp_path / "pipe", tmp_path / "list.txt"
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as writer:
        written = writer.submit(pipe.write_text, "a.dcm")
        assert read_text_bytes(pipe) == b"a.dcm"
        assert written.result() == 5
    with pytest.raises(SettingsError, match=r"^/dev/zero: .* not a regular file\.$"):
        find_films("@/dev/zero")
    monkeypatch.setattr(files, "MOST_TEXT_MB", 0)
    list_file.write_text("a.dcm")
    with pytest.raises(SettingsError, match="more than 0 MB"):
        find_films(f"@{list_file}")
