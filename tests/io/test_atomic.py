"""A file written aside appears whole or not at all."""

from pathlib import Path

import pytest

from kneematch.io.atomic import write_aside


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


def test_write_aside_requires_that_something_is_written(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), write_aside(tmp_path / "a.txt"):
        pass
    assert list(tmp_path.iterdir()) == []


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


def test_write_aside_gives_the_mode_of_any_new_file(tmp_path: Path) -> None:
    with write_aside(tmp_path / "a.txt") as aside:
        aside.touch()
    (tmp_path / "b.txt").touch()
    assert (tmp_path / "a.txt").stat().st_mode == (tmp_path / "b.txt").stat().st_mode
