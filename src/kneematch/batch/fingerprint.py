"""The fingerprint of a run: the settings that its rows depend on, and how two of them differ."""

import re
from collections.abc import Mapping
from typing import Final

from kneematch import __version__
from kneematch.batch.config import DetectConfig

Fingerprint = Mapping[str, str | int | bool]

# What users call the settings that rows depend on; others are shown by their own names.
SETTING_LABELS: Final = {
    **{name: f"--{name}" for name in ("model", "template", "method", "paper", "knees", "device")},
    "left_is": "--left-is",
    "template_film": "the template's film",
    "outlines": "the outline network (--outlines)",
    "locator": "the locator's network",
    "paper_settings": "the paper's settings",
    "version": "the version of kneematch",
}


def fingerprint(
    config: DetectConfig, method: str, device: str, hashes: Mapping[str, str]
) -> Fingerprint:
    """Return the settings that rows depend on.

    Args:
        config: the settings of the run.
        method: by which films are searched.
        device: where they are searched.
        hashes: SHA-256 of the files that rows depend on.
    """
    return {
        "version": __version__,
        **hashes,
        "method": method,
        "paper": config.paper,
        "paper_settings": " ".join(map(str, config.paper_settings)),
        "left_is": config.left_is or "",
        "knees": config.knees,
        "device": device.split(":")[0],
    }


def differences(before: Fingerprint, now: Fingerprint) -> list[str]:
    """Say how each setting differs from the one that a run began with."""
    return [
        _difference(name, before.get(name), now.get(name))
        for name in {**before, **now}
        if before.get(name) != now.get(name)
    ]


def _difference(name: str, before: object, now: object) -> str:
    """Say how a setting differs from the one that the run began with."""
    if name == "outlines" and None in (before, now):
        given = ("was", "is not") if now is None else ("was not", "is")
        return f"--measure {given[0]} given before and {given[1]} now"
    return f"{SETTING_LABELS.get(name, name)} was {_shown(before)} and is {_shown(now)}"


def _shown(value: object) -> str:
    """Return a setting, in words where it is a hash or not there."""
    if value is None or value == "":
        return "not set"
    text = str(value)
    return f"a file with SHA-256 {text[:12]}" if re.fullmatch("[0-9a-f]{64}", text) else text[:24]
