"""Limits on what the user names: devices without end are refused."""

from pathlib import Path

import pytest

from kneematch.errors import SettingsError, TemplateError
from kneematch.evaluation.labels import load_labels
from kneematch.films.annotation import load_annotation
from kneematch.films.discovery import find_films
from kneematch.films.limits import read_text_bytes

ENDLESS = Path("/dev/zero")


def test_read_text_bytes_reads_a_file(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_bytes(b"a\xff\r\n")
    assert read_text_bytes(tmp_path / "list.txt") == b"a\xff\r\n"


def test_read_text_bytes_refuses_what_has_no_end() -> None:
    with pytest.raises(OSError, match="more than 256 MB"):
        read_text_bytes(ENDLESS)
    with pytest.raises(TemplateError, match=r"more than 256 MB.*expected a template"):
        load_annotation(ENDLESS)
    with pytest.raises(SettingsError, match=r"more than 256 MB; expected a list of films"):
        find_films(f"@{ENDLESS}")
    with pytest.raises(SettingsError, match=r"cannot be read as CSV: more than 256 MB"):
        load_labels(ENDLESS)
