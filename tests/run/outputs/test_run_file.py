"""run.json: everything that is needed to repeat a run."""

import json
import os
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from kneematch.run.outputs.run_file import run_facts, write_run


def test_write_run_holds_what_is_needed_to_repeat_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["kneematch", "detect", os.fsdecode(b"\xff.dcm"), "--method", "search"]
    monkeypatch.setattr(sys, "argv", command)
    started = datetime(2026, 3, 1, 1, 30, tzinfo=timezone(timedelta(hours=2)))
    settings = {"method": "search", "template": Path("a/template.json")}
    write_run(run_facts(started, settings, "cpu", {"template": "ab12"}), tmp_path / "run.json")
    content = json.loads((tmp_path / "run.json").read_text(encoding="ascii"))
    assert content["started"] == "2026-02-28T23:30:00+00:00"
    ended = datetime.fromisoformat(content["ended"])
    assert ended.utcoffset() == timedelta()
    assert (ended - started).total_seconds() == pytest.approx(content["seconds"], abs=1)
    assert content["command"] == command
    assert content["settings"] == {"method": "search", "template": str(Path("a/template.json"))}
    assert content["sha256"] == {"template": "ab12"}
