"""The journal: what was written stays, damaged lines are done again, other settings refused."""

import json
import math
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kneematch.errors import SettingsError
from kneematch.films.files import FileVersion
from kneematch.knee.detection import Detection
from kneematch.run.journal import Journal
from kneematch.run.row import Row

SETTINGS = {"method": "search", "paper": False}
FILMS = [f"film-{k}" for k in range(7)]
ODD_NAME = os.fsdecode(b"odd \xff\n name.dcm")


def knee(value: float) -> Detection:
    """One whose every number is hard to write in decimals."""
    return Detection(
        side="left",
        laterality="R",
        energy=value,
        loss=math.pi * value,
        polarity="positive",
        method="search",
        corners=np.array([[value, 1 / 3], [1e-17, 2e17], [math.e, -0.1], [0.1 + 0.2, 5]]),
        centre=(value / 7, 1e300),
        width_px=1 / 3,
        height_px=2 / 3,
        rotation_deg=-0.0,
        mm_per_px=None,
        landmarks={"ä": (1 / 9, 2 / 9)},
    )


def row(index: int) -> Row:
    if index % 3 == 2:
        return Row(index, f"film-{index}", failure="no film; expected one")
    version = FileVersion(10 + index, 10**18 + index, "abc" * (index % 2))
    knees = knee(0.1 * index), knee(0.7)
    return Row(index, f"film-{index}", (480, 600), knees, version=version)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "journal.jsonl"
    with Journal(path, create=True) as journal:
        journal.begin(SETTINGS)
        assert journal.add(FILMS) == list(range(len(FILMS)))
    return path


def fill(path: Path, indices: list[int]) -> list[Row]:
    """Append rows; return all that the journal then holds."""
    with Journal(path) as journal:
        journal.append(map(row, indices))
        return list(journal.rows())


def remaining(path: Path) -> list[int]:
    with Journal(path) as journal:
        left = [k for k in range(journal.count) if not journal.is_done(k)]
        assert journal.done() == journal.count - len(left)
        return left


@pytest.mark.parametrize("index", [0, 2])
def test_row_comes_back_exactly_from_json(index: int) -> None:
    text = json.dumps(row(index).to_dict())
    back = Row.from_dict(json.loads(text))
    assert json.dumps(back.to_dict()) == text
    assert (back.index, back.film, back.failure) == (index, row(index).film, row(index).failure)
    assert back.version == row(index).version
    for found, true in zip(back.detections, row(index).detections, strict=True):
        assert found.loss == true.loss
        assert np.array_equal(found.corners, true.corners)
        assert found.centre == true.centre
        assert math.copysign(1, found.rotation_deg) == -1
        assert found.landmarks == true.landmarks


def test_journal_has_one_line_for_a_film_of_any_name(path: Path) -> None:
    with Journal(path) as journal:
        (index,) = journal.add([ODD_NAME])
        before = path.read_bytes()
        journal.append([Row(index, ODD_NAME, failure=f"{ODD_NAME}: empty")])
        (found,) = journal.rows()
    line = path.read_bytes().removeprefix(before)
    assert line.isascii()
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert found.film == ODD_NAME


def test_journal_yields_rows_in_the_order_of_the_films(path: Path) -> None:
    assert [each.index for each in fill(path, [6, 0, 1, 4, 5])] == [0, 1, 4, 5, 6]
    assert remaining(path) == [2, 3]
    assert [each.index for each in fill(path, [3, 2])] == list(range(7))
    assert remaining(path) == []


def test_journal_loses_only_the_line_that_was_cut(path: Path) -> None:
    fill(path, [0, 1])
    before = path.stat().st_size
    fill(path, [4])
    whole = path.read_bytes()
    for size in range(before, len(whole), 7):
        path.write_bytes(whole[:size])
        assert remaining(path) == [2, 3, 4, 5, 6]
        assert path.read_bytes() == whole[:before]
    path.write_bytes(whole)
    assert remaining(path) == [2, 3, 5, 6]


def test_journal_cuts_off_zeros_that_a_power_cut_left(path: Path) -> None:
    fill(path, [0, 1])
    whole = path.read_bytes()
    path.write_bytes(whole + b"\0" * 4096)
    assert remaining(path) == [2, 3, 4, 5, 6]
    fill(path, [2])
    assert path.read_bytes().startswith(whole + b'{"index": 2')


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"[" * 5000,
        b'{"index": 1}',
        b'{"index": Infinity, "film": "x", "failure": "y"}',
        b'{"index": 99, "film": "x", "failure": "y"}',
        b'{"index": 1, "film": "film-1", "size": [9, 9], "knees": [{}]}',
        b'{"measured": {"index": 1, "film": "film-1", "size": [9, 9], "knees": [{}]}}',
        b"\xff",
    ],
)
def test_journal_keeps_all_good_lines_around_a_damaged_one(path: Path, damage: bytes) -> None:
    fill(path, [0, 1, 2])
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], damage + b"\n", *lines[4:]]))
    assert remaining(path) == [1, 3, 4, 5, 6]
    assert [each.index for each in fill(path, [1])] == [0, 1, 2]


def test_journal_is_open_once_at_a_time(path: Path) -> None:
    with Journal(path), pytest.raises(SettingsError, match="another run"):
        Journal(path)


def test_journal_finds_its_rows_where_two_runs_write_without_locks(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kneematch.run.journal.lock", lambda file: True)
    with Journal(path) as ours, Journal(path) as theirs:

        def meanwhile() -> Iterator[Row]:
            theirs.append([row(0), row(1)])
            yield row(3)

        ours.append(meanwhile())
        assert [each.index for each in ours.rows()] == [3]
        assert [each.index for each in theirs.rows()] == [0, 1]


def test_journal_keeps_the_order_and_the_names_of_films_that_are_added(path: Path) -> None:
    fill(path, [3])
    with Journal(path) as journal:
        assert journal.add(["sub/film-3", str(Path("film-3").absolute()), "new"]) == [7, 3, 8]
        assert journal.films == [*FILMS, "sub/film-3", "new"]
        names = journal.names
    with Journal(path) as journal:
        assert journal.names == names == [*FILMS, "sub_film-3", "new"]
        assert journal.version(3) == row(3).version


def test_journal_keeps_rows_whose_list_of_films_is_damaged(path: Path) -> None:
    fill(path, [4, 2])
    first, _, *rows = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([first, b'{"films": [["film-0", "film-0"], []]}\n', *rows]))
    with Journal(path) as journal:
        assert journal.films == ["film-0", "film-4", "film-2"]
        assert {each.index: each.film for each in journal.rows()} == {1: "film-4", 2: "film-2"}
        assert journal.add(FILMS) == [0, 3, 2, 4, 1, 5, 6]


@pytest.mark.parametrize(
    "name", ["../../a", "/tmp/a", "a/b", "", "a\0b", "\ud800", 300 * "a", None, ["a"]]
)
def test_journal_gives_films_new_names_where_theirs_lead_out_of_the_folder(
    path: Path, name: object
) -> None:
    fill(path, [0, 1, 2])
    text = path.read_text()
    assert '["film-1", "film-1"]' in text
    path.write_text(text.replace('["film-1", "film-1"]', json.dumps(["film-1", name])))
    with Journal(path) as journal:
        assert journal.films == journal.names == ["film-0", "film-1", "film-2"]
        assert journal.done() == 3


def test_journal_takes_the_last_row_of_a_film(path: Path) -> None:
    fill(path, [1, 2])
    again = replace(row(1), detections=(), size=(5, 5))
    with Journal(path) as journal:
        journal.append([again])
    with Journal(path) as journal:
        assert [(each.index, each.size) for each in journal.rows()] == [(1, (5, 5)), (2, None)]


def test_journal_remembers_what_is_gone_and_what_was_made(path: Path) -> None:
    with Journal(path) as journal:
        journal.mark_gone([2, 5])
        journal.note_made([(3, {"crops": 2**64 - 1, "overlays": 7}), (4, {"crops": 1})])
        journal.note_made([(4, {"crops": 0})])
        size = path.stat().st_size
        journal.mark_gone({5, 2})
        assert path.stat().st_size == size  # nothing new
    with path.open("ab") as file:
        file.write(b'{"made": {"crops": -1}, "film": "film-3"}\n{"gone": ["unknown"]}\n')
    with Journal(path) as journal:
        assert journal.gone == {2, 5}
        assert [journal.made("crops", k) for k in (2, 3, 4, 6)] == [0, 2**64 - 1, 0, 0]
        assert journal.made("overlays", 3) == 7


def test_journal_check_names_settings_that_differ(path: Path) -> None:
    with Journal(path) as journal:
        journal.check(SETTINGS)
        with pytest.raises(SettingsError, match="paper was False and is True") as refusal:
            journal.check(SETTINGS | {"paper": True})
        assert "method" not in str(refusal.value)
        with pytest.raises(SettingsError, match="model was not set and is abc"):
            journal.check(SETTINGS | {"model": "abc"})
        words = "--left-is was not set and is L, the template's film was not set and is a file"
        with pytest.raises(SettingsError, match=f"{words} with SHA-256 abababababab;"):
            journal.check(SETTINGS | {"left_is": "L", "template_film": 32 * "ab"})
        with pytest.raises(SettingsError, match="--measure was not given before and is now;"):
            journal.check(SETTINGS | {"outlines": 32 * "ab"})


@pytest.mark.parametrize("text", ["mine\n", "[1]\n", "mine", '{"format": "other/2"}\n'])
def test_journal_touches_no_file_of_another_kind(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(SettingsError, match="not a journal"):
        Journal(path, create=True)
    assert path.read_text() == text


@pytest.mark.parametrize(
    "text",
    [
        '{"format": "kneematch-journal/1"}\n',
        '{"format": "kneematch-journal/2", "settings": {}}\n',
        '{"format": "kneematch-journal/1", "settings": 1' + "0" * 400 + "}\n",
    ],
)
def test_journal_check_refuses_other_versions(path: Path, text: str) -> None:
    path.write_text(text)
    with Journal(path) as journal, pytest.raises(SettingsError, match="method was not set"):
        journal.check(SETTINGS)
    assert path.read_text() == text


@pytest.mark.parametrize("text", ["", '{"for', '{"format": "kneematch-journal/1", "settings": {}'])
def test_journal_of_a_run_that_was_killed_as_it_began_is_empty(path: Path, text: str) -> None:
    path.write_text(text)
    with Journal(path) as journal:
        assert journal.settings is None
        journal.begin(SETTINGS)
        journal.add(["a"])
    with Journal(path) as journal:
        journal.check(SETTINGS)
        assert journal.films == ["a"]


def test_journal_is_for_the_owner_only(path: Path) -> None:
    assert path.stat().st_mode & 0o777 == 0o600


def test_failures_are_those_of_the_last_rows_of_films(path: Path) -> None:
    fill(path, [5, 0, 2])
    with Journal(path) as journal:
        assert [each.index for each in journal.failures()] == [2, 5]
        found, failed = replace(row(0), index=2, film="film-2"), replace(row(2), index=0)
        journal.append([found, replace(failed, film="film-0")])
        assert [each.index for each in journal.failures()] == [0, 5]
    with Journal(path) as journal:
        assert [each.index for each in journal.failures()] == [0, 5]
        journal.revise = lambda each: replace(each, failure=None) if each.index == 5 else each
        assert [each.index for each in journal.failures()] == [0]
