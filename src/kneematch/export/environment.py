"""Describe the installation: versions, extras, devices and the built-in model."""

import os
import platform
from importlib.util import find_spec
from typing import Any, Final

from kneematch.export.run_file import content_hash, device_name, versions
from kneematch.networks.model_file import shipped_model

FORMAT: Final = "kneematch-info/1"
EXTRAS: Final = {"web": "fastapi", "ray": "ray"}  # extra: a package that it brings


def describe_environment() -> dict[str, Any]:
    """Return what a bug report needs to say about the installation; nothing about films or users.

    Returns:
        Values that JSON can hold: format, versions, platform, cores, devices, extras, and the
        SHA-256 of the built-in model.
    """
    import torch

    devices = ["cpu", *(f"cuda:{k}" for k in range(torch.cuda.device_count()))]
    if torch.backends.mps.is_available():
        devices.append("mps")
    return {
        "format": FORMAT,
        "versions": versions(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "devices": [device_name(device) for device in devices],
        "extras": {extra: find_spec(package) is not None for extra, package in EXTRAS.items()},
        "model_sha256": content_hash(shipped_model()),
    }
