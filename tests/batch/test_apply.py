"""What `apply` reads of a run: damaged files are refused in one line."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kneematch.batch.apply import journal_films, run_config
from kneematch.batch.journal import Row
from kneematch.errors import SettingsError
from kneematch.export.run_file import Counts, Run

NOW = datetime.now(UTC)
RUN = Run(NOW, NOW, Counts(1, 2, 0, 0), {"crops": True, "export": ["coco"]}, (), "cpu", {}, {})


def journal(path: Path, *lines: bytes) -> Path:
    path.write_bytes(b"".join([b"{}\n", *lines]))
    return path


def test_journal_films_are_in_the_order_of_the_run(tmp_path: Path) -> None:
    rows = [Row(index, f"{index}.dcm", failure="bad").to_line() for index in (1, 0, 2, 1)]
    path = journal(tmp_path / "journal.jsonl", *rows)
    assert journal_films(path) == ["0.dcm", "1.dcm", "2.dcm"]


@pytest.mark.parametrize("damage", [b"{", b"[]\n", b'{"index": 1}\n', b"[" * 10**5, b"\xff\n"])
def test_journal_films_refuses_a_damaged_journal(tmp_path: Path, damage: bytes) -> None:
    good = Row(0, "0.dcm", failure="bad").to_line()
    with pytest.raises(SettingsError, match=r"cannot be read.*--resume"):
        journal_films(journal(tmp_path / "journal.jsonl", good, damage))


def test_journal_films_refuses_a_run_that_has_not_ended(tmp_path: Path) -> None:
    rows = [Row(index, f"{index}.dcm", failure="bad").to_line() for index in (0, 2)]
    with pytest.raises(SettingsError, match=r"some films have no line.*--resume"):
        journal_films(journal(tmp_path / "journal.jsonl", *rows))


def test_run_config_takes_the_settings_that_it_knows() -> None:
    config = run_config(replace(RUN, settings={**RUN.settings, "new option": 1}))
    assert config.crops
    assert config.export == ("coco",)


@pytest.mark.parametrize("settings", [{"export": 3}, {"sheet": 7}, {"num_parts": "a"}])
def test_run_config_refuses_settings_that_no_run_has(settings: dict[str, object]) -> None:
    with pytest.raises(SettingsError):
        run_config(replace(RUN, settings=settings))
