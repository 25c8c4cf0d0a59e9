"""run.json: everything that is needed to repeat a run."""

import json
import os
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import torch

from kneematch import __version__
from kneematch.run.outputs.run_file import (
    Counts,
    RunInfo,
    device_name,
    versions,
    write_run,
)

START = datetime(2026, 3, 1, 1, 30, tzinfo=timezone(timedelta(hours=2)))
RUN = RunInfo(
    started=START,
    ended=START + timedelta(seconds=61.25),
    counts=Counts(films=7, knees=13, failed=2, review=3),
    settings={"method": "search", "batch_size": 8, "template": Path("a/template.json")},
    command=("kneematch", "detect", os.fsdecode(b"\xff.dcm"), "--method", "search"),
    device="cpu (x86_64, 2 cores)",
    hashes={"template": "ab12"},
    timings_s={"read": 10.12345, "search": 50.0},
)


def written(tmp_path: Path, run: RunInfo) -> dict[str, Any]:
    write_run(run, tmp_path / "run.json")
    content: dict[str, Any] = json.loads((tmp_path / "run.json").read_text(encoding="ascii"))
    return content


def test_write_run_times_are_utc(tmp_path: Path) -> None:
    content = written(tmp_path, RUN)
    assert content["started"] == "2026-02-28T23:30:00+00:00"
    assert content["ended"] == "2026-02-28T23:31:01+00:00"
    assert content["seconds"] == 61.25


def test_write_run_has_settings_command_and_counts(tmp_path: Path) -> None:
    content = written(tmp_path, RUN)
    assert content["command"] == list(RUN.command)
    assert content["settings"] == {
        "method": "search",
        "batch_size": 8,
        "template": str(Path("a/template.json")),
    }
    counts = {"films": 7, "knees": 13, "no_knee": 0, "failed": 2, "review": 3}
    decided = {"accepted": 0, "rejected": 0, "corrected": 0}
    assert content["counts"] == counts | decided
    assert content["timings_s"] == {"read": 10.123, "search": 50.0}
    assert content["sha256"] == {"template": "ab12"}


def test_versions_are_those_that_run() -> None:
    content = versions()
    assert content["python"] == ".".join(map(str, sys.version_info[:3]))
    assert content["kneematch"] == __version__
    assert content["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert set(content) == {"python", "kneematch", "torch", "numpy", "pydicom"}


def test_device_name_has_the_cores() -> None:
    assert device_name("cpu").startswith("cpu (")
    assert str(os.cpu_count()) in device_name("cpu")


def test_run_info_from_dict_is_the_inverse_of_to_dict() -> None:
    stored = json.loads(json.dumps(RUN.to_dict(), default=str))
    assert RunInfo.from_dict(stored).to_dict() == stored | {"seconds": 61.0}  # whole ones are kept
