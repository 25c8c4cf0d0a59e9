"""Read the tensors of a safetensors file."""

import os
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from kneematch.errors import SettingsError


def read_safetensors(
    path: str | os.PathLike[str],
    *,
    missing: str = "expected a model; run 'kneematch train' or leave --model out",
    broken: str = "expected a model of kneematch; copy it again",
    device: str = "cpu",
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and the metadata of a safetensors file.

    Args:
        path: the file.
        missing: what was expected and what to do if there is no such file, for the message.
        broken: the same for a file that cannot be read.
        device: where the tensors are wanted.
    """
    try:
        # A device such as /dev/zero would be read without end.
        if Path(path).exists() and not Path(path).is_file():
            raise OSError("not a regular file")
        with safe_open(path, framework="pt", device=device) as file:
            names = file.keys()
            return {name: file.get_tensor(name) for name in names}, file.metadata() or {}
    except FileNotFoundError as error:
        raise SettingsError(f"{path}: no such file; {missing}") from error
    except (OSError, SafetensorError) as error:
        raise SettingsError(f"{path}: cannot be read as safetensors ({error}); {broken}") from error
