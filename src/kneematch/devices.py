"""Choose the device to compute on."""

import torch

from kneematch.errors import SettingsError


def resolve_device(name: str) -> str:
    """Return the device that a name stands for; "auto" is a GPU if there is one, else the CPU.

    Args:
        name: auto, cpu, cuda, cuda:N or mps.

    Raises:
        SettingsError: the name is unknown, or this machine has no such device.
    """
    kind, _, number = name.partition(":")
    if kind not in ("auto", "cpu", "cuda", "mps") or (number and not number.isdecimal()):
        raise SettingsError(f"device {name!r}; expected auto, cpu, cuda, cuda:N or mps")
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if kind == "auto":
        return "cuda" if gpus else "cpu"
    if kind == "cuda" and int(number or 0) >= gpus:
        raise SettingsError(f"device {name!r}: {gpus} NVIDIA GPUs found; choose 'cpu' or 'auto'")
    if kind == "mps" and not torch.backends.mps.is_available():
        raise SettingsError("device 'mps': not found; expected an Apple GPU; choose 'cpu'")
    return name


def cpu_has_bfloat16() -> bool:
    """Return whether the CPU multiplies numbers of type bfloat16, in half of float32's time."""
    return bool(getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)())
