"""run.json: how a run was made and how it went, nothing of a film's header; the installation."""

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from importlib.util import find_spec
from time import monotonic
from typing import Any, Final

from kneematch import __version__
from kneematch.films.files import content_hash, write_file

FORMAT: Final = "kneematch-run/1"
INFO_FORMAT: Final = "kneematch-info/1"
PACKAGES: Final = ("torch", "numpy", "pydicom")  # those whose versions may change results
EXTRAS: Final = {"web": "fastapi", "ray": "ray"}  # extra: a package that it brings


@dataclass(frozen=True, slots=True)
class Counts:
    """The numbers of films and knees."""

    films: int = 0  # with detections
    knees: int = 0
    no_knee: int = 0  # films without a frontal knee
    failed: int = 0  # films that could not be used
    review: int = 0  # knees that a person should look at
    accepted: int = 0  # knees, by a reviewer
    rejected: int = 0
    corrected: int = 0

    @property
    def decisions(self) -> str:
        """The decisions of a review in words."""
        return (
            f"{self.accepted:,} accepted, {self.rejected:,} rejected, {self.corrected:,} corrected"
        )


class Clock:
    """The time that the stages of a run take."""

    def __init__(self, started: datetime, monotonic_s: float) -> None:
        """Begin at a moment, as the calendar and the monotonic clock tell it."""
        self.started, self._last = started, monotonic_s
        self.seconds: dict[str, float] = {}  # by stage

    def end(self, stage: str) -> None:
        """Note the seconds since the last stage ended."""
        now = monotonic()
        self.seconds[stage], self._last = now - self._last, now


@dataclass(frozen=True, slots=True)
class RunInfo:
    """How a run was made and how it went."""

    started: datetime  # with a time zone
    ended: datetime
    counts: Counts
    settings: Mapping[str, Any]
    command: tuple[str, ...] = ()  # as typed
    device: str = "cpu"  # as `device_name` describes it
    hashes: Mapping[str, str] = field(default_factory=dict)  # SHA-256 of model and template
    timings_s: Mapping[str, float] = field(default_factory=dict)  # by stage

    @property
    def seconds(self) -> float:
        """The time from start to end."""
        return (self.ended - self.started).total_seconds()

    def to_dict(self) -> dict[str, Any]:
        """Return the content of run.json; paths in it become texts when it is written."""
        return {
            "format": FORMAT,
            "command": list(self.command),
            "settings": dict(self.settings),
            "versions": versions(),
            "device": self.device,
            "sha256": dict(self.hashes),
            "started": self.started.astimezone(UTC).isoformat(timespec="seconds"),
            "ended": self.ended.astimezone(UTC).isoformat(timespec="seconds"),
            "seconds": round(self.seconds, 3),
            "timings_s": {stage: round(seconds, 3) for stage, seconds in self.timings_s.items()},
            "counts": asdict(self.counts),
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "RunInfo":
        """Return what `to_dict` wrote."""
        return cls(
            started=datetime.fromisoformat(content["started"]),
            ended=datetime.fromisoformat(content["ended"]),
            counts=Counts(**content["counts"]),
            settings=content["settings"],
            command=tuple(content["command"]),
            device=content["device"],
            hashes=content["sha256"],
            timings_s=content["timings_s"],
        )


def write_run(run: RunInfo, path: str | os.PathLike[str]) -> None:
    """Write run.json."""
    # Paths become text; ASCII with escapes holds file names that are not UTF-8, too.
    text = json.dumps(run.to_dict(), indent=1, default=str)
    write_file(path, f"{text}\n".encode("ascii"))


def versions() -> dict[str, str]:
    """Return the versions of kneematch, Python and the packages that may change results."""
    packages = {name: metadata.version(name) for name in PACKAGES}
    return {"kneematch": __version__, "python": platform.python_version(), **packages}


def device_name(device: str) -> str:
    """Describe a device: with the GPU's name, or the processor's architecture and its cores."""
    if device.startswith("cuda"):
        import torch

        return f"{device} ({torch.cuda.get_device_name(device)})"
    return f"{device} ({platform.machine()}, {os.cpu_count()} cores)"


def describe_environment() -> dict[str, Any]:
    """Return what a bug report needs to say about the installation; nothing about films or users.

    Returns:
        Values that JSON can hold: format, versions, platform, cores, devices, extras, and the
        SHA-256 of the built-in model.
    """
    import torch

    from kneematch.models.model_file import builtin_model

    devices = ["cpu", *(f"cuda:{k}" for k in range(torch.cuda.device_count()))]
    return {
        "format": INFO_FORMAT,
        "versions": versions(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "devices": [device_name(device) for device in devices],
        "extras": {extra: find_spec(package) is not None for extra, package in EXTRAS.items()},
        "model_sha256": content_hash(builtin_model()),
    }
