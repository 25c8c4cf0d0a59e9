"""run.json: what is needed to repeat a run, and how it went; nothing from a film's header."""

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from kneematch import __version__
from kneematch.io.atomic import write_aside

FORMAT: Final = "kneematch-run/1"
PACKAGES: Final = ("torch", "numpy", "pydicom")
CHUNK: Final = 1 << 20  # bytes hashed at once


@dataclass(frozen=True, slots=True)
class Counts:
    """How many of what."""

    films: int = 0  # with detections
    knees: int = 0
    failed: int = 0  # films without
    review: int = 0  # knees that somebody should look at


@dataclass(frozen=True, slots=True)
class Run:
    """One run, when it is over."""

    started: datetime  # aware of its time zone
    ended: datetime
    counts: Counts
    settings: Mapping[str, Any]  # by name, as the user knows them
    command: tuple[str, ...] = ()  # as it was typed
    device: str = "cpu"  # its name, as `device_name` tells it
    hashes: Mapping[str, str] = field(default_factory=dict)  # SHA-256 of model and template
    timings_s: Mapping[str, float] = field(default_factory=dict)  # by part

    @property
    def seconds(self) -> float:
        """From start to end."""
        return (self.ended - self.started).total_seconds()


def write_run(run: Run, path: str | os.PathLike[str]) -> None:
    """Write run.json."""
    counts = run.counts
    told = {
        "format": FORMAT,
        "command": list(run.command),
        "settings": dict(run.settings),
        "versions": versions(),
        "device": run.device,
        "sha256": dict(run.hashes),
        "started": _utc(run.started),
        "ended": _utc(run.ended),
        "seconds": round(run.seconds, 3),
        "timings_s": {part: round(seconds, 3) for part, seconds in run.timings_s.items()},
        "counts": {
            "films": counts.films,
            "knees": counts.knees,
            "failed": counts.failed,
            "review": counts.review,
        },
    }
    with write_aside(path) as aside:
        # Paths and the like become text; ASCII holds any name, be it UTF-8 or not.
        aside.write_text(json.dumps(told, indent=1, default=str) + "\n", encoding="ascii")


def versions() -> dict[str, str]:
    """Of Python and of the packages whose results may differ."""
    packages = {name: metadata.version(name) for name in PACKAGES}
    return {"kneematch": __version__, "python": platform.python_version(), **packages}


def content_hash(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file."""
    digest = hashlib.sha256()
    with Path(path).open("rb") as file:
        while block := file.read(CHUNK):
            digest.update(block)
    return digest.hexdigest()


def device_name(device: str) -> str:
    """What computes, for the reader: the GPU's name, or the processor's kind and its cores."""
    if device.startswith("cuda"):
        import torch

        return f"{device} ({torch.cuda.get_device_name(device)})"
    return f"{device} ({platform.machine()}, {os.cpu_count()} cores)"


def _utc(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds")
