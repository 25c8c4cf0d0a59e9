"""Versions of files: size and date, or the content."""

import hashlib
import os
from pathlib import Path

import pytest

from kneematch.io.file_version import FileVersion, content_hash, file_versions


def version(path: Path, *, hashed: bool = False) -> FileVersion:
    (found,) = file_versions([str(path)], hashed=hashed)
    assert found is not None
    return found


@pytest.mark.parametrize("hashed", [False, True])
def test_file_version_changes_with_the_content(tmp_path: Path, hashed: bool) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    before = version(path, hashed=hashed)
    assert before.is_same(version(path, hashed=hashed))
    path.write_text("longer")
    assert not before.is_same(version(path, hashed=hashed))


def test_file_version_with_a_hash_ignores_dates_only(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    dated, hashed = version(path), version(path, hashed=True)
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


def test_file_versions_does_not_wait_for_a_pipe_to_hash(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert version(tmp_path / "pipe", hashed=True).sha256 == ""


@pytest.mark.parametrize("size", [0, 5, 3 << 20])
def test_content_hash_is_that_of_the_content(tmp_path: Path, size: int) -> None:
    content = bytes(range(256)) * (size // 256 + 1)
    path = tmp_path / "model"
    path.write_bytes(content[:size])
    assert content_hash(path) == hashlib.sha256(content[:size]).hexdigest()
