"""What `apply` reads of a run: damaged files are refused in one line."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kneematch.batch.apply import check_ended, run_config
from kneematch.batch.journal import Journal, Row
from kneematch.errors import SettingsError
from kneematch.export.run_file import Counts, Run

NOW = datetime.now(UTC)
RUN = Run(NOW, NOW, Counts(1, 2, 0, 0), {"crops": True, "export": ["coco"]}, (), "cpu", {}, {})


def test_check_ended_refuses_a_run_with_films_to_be_done(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal.jsonl", create=True) as journal:
        journal.begin({})
        journal.add(["0.dcm", "1.dcm"])
        journal.append([Row(0, "0.dcm", failure="bad")])
        with pytest.raises(SettingsError, match=r"1 films have no row; .*kneematch detect"):
            check_ended(journal)
        journal.append([Row(1, "1.dcm", failure="bad")])
        check_ended(journal)


def test_run_config_takes_the_settings_that_it_knows() -> None:
    config = run_config(replace(RUN, settings={**RUN.settings, "new option": 1}))
    assert config.crops
    assert config.export == ("coco",)


@pytest.mark.parametrize("settings", [{"export": 3}, {"sheet": 7}, {"num_parts": "a"}])
def test_run_config_refuses_settings_that_no_run_has(settings: dict[str, object]) -> None:
    with pytest.raises(SettingsError):
        run_config(replace(RUN, settings=settings))
