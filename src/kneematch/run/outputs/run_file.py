"""run.json: how a run was made and how it went, nothing of a film's header; the installation."""

import json
import os
import platform
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from importlib.util import find_spec
from typing import Any, Final

from kneematch import __version__
from kneematch.films.files import content_hash, write_file

FORMAT: Final = "kneematch-run/1"
INFO_FORMAT: Final = "kneematch-info/2"
FACT_TYPES: Final = {
    **{"command": list, "device": str, "seconds": int | float},
    **dict.fromkeys(("settings", "versions", "sha256"), dict),
    **dict.fromkeys(("started", "ended"), str),
}
PACKAGES: Final = ("torch", "numpy", "pydicom")  # those whose versions may change results
# By extra, a package that it brings.
EXTRAS: Final = {"web": "fastapi", "serve": "pynetdicom", "ray": "ray", "onnx": "onnxruntime"}


def run_facts(
    started: datetime, settings: Mapping[str, Any], device: str, hashes: Mapping[str, str]
) -> dict[str, Any]:
    """Return the content of run.json for a run that ends now, still without its counts.

    Args:
        started: when the run began, with a time zone.
        settings: all settings; those that are paths become texts when it is written.
        device: as `device_name` describes it.
        hashes: SHA-256 of the files that rows depend on.
    """
    ended = datetime.now(UTC)
    return {
        "format": FORMAT,
        "command": sys.argv,
        "settings": dict(settings),
        "versions": versions(),
        "device": device,
        "sha256": dict(hashes),
        "started": started.astimezone(UTC).isoformat(timespec="seconds"),
        "ended": ended.isoformat(timespec="seconds"),
        "seconds": round((ended - started).total_seconds(), 3),
    }


def check_facts(facts: Mapping[str, Any]) -> None:
    """Raise TypeError unless facts, which were stored, are as `run_facts` returns them."""
    if not all(isinstance(facts.get(name), kind) for name, kind in FACT_TYPES.items()):
        raise TypeError("facts of another type")


def write_run(facts: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write run.json."""
    # Paths become text; ASCII with escapes holds file names that are not UTF-8, too.
    text = json.dumps(facts, indent=1, default=str)
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
        Values that JSON can hold: format, versions, platform, cores, devices, extras, methods,
        exports, and the SHA-256 of every built-in network.
    """
    import torch

    from kneematch.models.model_file import builtin_model
    from kneematch.run.config import EXPORTS
    from kneematch.settings import METHODS

    networks = builtin_model().parent.glob("*.safetensors")
    devices = ["cpu", *(f"cuda:{k}" for k in range(torch.cuda.device_count()))]
    return {
        "format": INFO_FORMAT,
        "versions": versions(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "devices": [device_name(device) for device in devices],
        "extras": {extra: find_spec(package) is not None for extra, package in EXTRAS.items()},
        "methods": list(METHODS),
        "exports": list(EXPORTS),
        "models": {path.name: content_hash(path) for path in sorted(networks)},
    }
