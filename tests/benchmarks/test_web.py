"""The benchmark of the web pages keeps up with the database that they read."""

from pathlib import Path

import pytest

import web
from kneematch.web.knee_rows import RowQuery, row_order
from kneematch.web.review_session import ReviewSession


def test_make_run_makes_a_run_that_can_be_reviewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "DISTINCT", 1)
    monkeypatch.setattr(web, "RUN_FILM", (300, 250))
    session = ReviewSession(web.make_run(tmp_path, rows=8), Path())
    with session.run() as run:
        assert len(row_order(run, RowQuery())) == 8
    session.close()
