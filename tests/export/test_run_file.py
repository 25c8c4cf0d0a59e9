"""run.json: everything that is needed to repeat a run."""

import hashlib
import json
import os
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import torch

from kneematch import __version__
from kneematch.export.run_file import (
    Counts,
    Run,
    content_hash,
    device_name,
    versions,
    write_run,
)

START = datetime(2026, 3, 1, 1, 30, tzinfo=timezone(timedelta(hours=2)))
RUN = Run(
    started=START,
    ended=START + timedelta(seconds=61.25),
    counts=Counts(films=7, knees=13, failed=2, review=3),
    settings={"method": "search", "batch_size": 8, "template": Path("a/template.json")},
    command=("kneematch", "detect", os.fsdecode(b"\xff.dcm"), "--method", "search"),
    device="cpu (x86_64, 2 cores)",
    hashes={"template": "ab12"},
    timings_s={"read": 10.12345, "search": 50.0},
)


def written(tmp_path: Path, run: Run) -> dict[str, Any]:
    write_run(run, tmp_path / "run.json")
    told: dict[str, Any] = json.loads((tmp_path / "run.json").read_text(encoding="ascii"))
    return told


def test_times_are_utc(tmp_path: Path) -> None:
    told = written(tmp_path, RUN)
    assert told["started"] == "2026-02-28T23:30:00+00:00"
    assert told["ended"] == "2026-02-28T23:31:01+00:00"
    assert told["seconds"] == 61.25


def test_settings_command_and_counts_are_told(tmp_path: Path) -> None:
    told = written(tmp_path, RUN)
    assert told["command"] == list(RUN.command)
    assert told["settings"] == {
        "method": "search",
        "batch_size": 8,
        "template": str(Path("a/template.json")),
    }
    assert told["counts"] == {"films": 7, "knees": 13, "failed": 2, "review": 3}
    assert told["timings_s"] == {"read": 10.123, "search": 50.0}
    assert told["sha256"] == {"template": "ab12"}


def test_versions_are_those_that_run() -> None:
    told = versions()
    assert told["python"] == ".".join(map(str, sys.version_info[:3]))
    assert told["kneematch"] == __version__
    assert told["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert set(told) == {"python", "kneematch", "torch", "numpy", "pydicom"}


@pytest.mark.parametrize("size", [0, 5, 3 << 20])
def test_a_hash_is_that_of_the_content(tmp_path: Path, size: int) -> None:
    content = bytes(range(256)) * (size // 256 + 1)
    path = tmp_path / "model"
    path.write_bytes(content[:size])
    assert content_hash(path) == hashlib.sha256(content[:size]).hexdigest()


def test_a_device_has_a_name() -> None:
    assert device_name("cpu").startswith("cpu (")
    assert str(os.cpu_count()) in device_name("cpu")
