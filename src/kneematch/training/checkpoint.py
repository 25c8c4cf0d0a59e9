"""Checkpoints: an interrupted training continues from one and ends with the same weights."""

import io
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import torch

from kneematch.errors import SettingsError
from kneematch.films.files import write_file
from kneematch.paper.algorithm1 import PhaseState

FORMAT: Final = "kneematch-checkpoint/3"


def save_checkpoint(
    path: str | os.PathLike[str], settings: Mapping[str, Any], content: Mapping[str, Any]
) -> None:
    """Write tensors and numbers atomically, with the settings that they depend on."""
    buffer = io.BytesIO()  # torch.save would not say which error of the disk it met
    torch.save({**content, "format": FORMAT, "settings": dict(settings)}, buffer)
    write_file(path, buffer.getvalue())


def load_checkpoint(path: str | os.PathLike[str], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of the checkpoint of a training with the same settings, on the CPU.

    Raises:
        SettingsError: the file is missing or damaged, or belongs to another training.
    """
    if not Path(path).is_file():
        raise SettingsError(f"There is no checkpoint {path} to continue. Leave out --resume.")
    content = load_dict(path)
    if content.get("format") != FORMAT or not isinstance(content.get("settings"), dict):
        raise SettingsError(
            f"{path} is not a checkpoint of this version of kneematch. Start over with --force."
        )
    before, now = (dict(_flat(each)) for each in (content["settings"], settings))
    if different := [name for name in now if before.get(name) != now[name]]:
        raise SettingsError(
            f"The checkpoint {path} was made with another {', '.join(different)}. Repeat the "
            "options of the interrupted command, or start over with --force."
        )
    return content


def restore(state: PhaseState, saved: Mapping[str, Any], path: Path) -> None:
    """Set the state of a phase to what a checkpoint holds.

    Raises:
        SettingsError: it does not fit the network or the films.
    """
    try:
        state.load_state_dict(saved)
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:100]
        raise SettingsError(
            f"The checkpoint {path} does not fit ({reason}). Start over with --force."
        ) from error


def load_dict(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a dictionary of tensors and numbers that torch.save wrote; code in it is not run.

    Raises:
        SettingsError: the file cannot be read, or holds something else.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises nearly everything on damaged files
        reason = " ".join(str(error).split())[:100]
        raise SettingsError(
            f"{path} is damaged, or is not a file of plain tensors ({reason}). No code in it was "
            "run."
        ) from error
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise SettingsError(f"{path} does not hold tensors by name.")
    return content


def _flat(settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of settings, those of the recipe among them."""
    for name, value in settings.items():
        yield from _flat(value) if isinstance(value, Mapping) else [(name, value)]
