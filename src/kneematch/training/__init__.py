"""Configuration of a training: `TrainConfig`; importing it is fast."""

from dataclasses import dataclass
from typing import Annotated, Final

from cyclopts import Parameter
from cyclopts.validators import Number

from kneematch.settings import METHOD, Device, Force, Seed, Workers, check_settings

MODEL_SUFFIX: Final = ".safetensors"

Count = Annotated[int, Parameter(group=METHOD, metavar="N", validator=Number(gte=1))]


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class TrainConfig:
    """Settings of `train` and of `kneematch train`."""

    rounds: Count = 1
    """Rounds of each phase (the paper's T)."""
    epochs: Count = 12
    """Epochs per round (the paper's M)."""
    batch_size: Count = 24
    """Films per training step."""
    seed: Seed = 0
    device: Device = "auto"
    workers: Workers = None
    force: Force = False

    def __post_init__(self) -> None:
        """Raise SettingsError for values that make no sense."""
        check_settings(self)
