"""Files of weights: damaged ones are refused in one line."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from kneematch.errors import SettingsError
from kneematch.models.weights import read_safetensors


def test_read_safetensors_refuses_a_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    with pytest.raises(SettingsError, match=r"^No such file: .*weights\.safetensors$"):
        read_safetensors(path)
    whole = save({"a": torch.zeros(100)})
    for content in (b"", b"no model", b"\xff" * 1000, whole[:-1]):
        path.write_bytes(content)
        with pytest.raises(SettingsError, match="cannot be read as a safetensors file"):
            read_safetensors(path)


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null", "/"])
def test_read_safetensors_refuses_what_is_not_a_regular_file(device: str) -> None:
    with pytest.raises(SettingsError, match=r"\(not a regular file\)"):
        read_safetensors(device)
