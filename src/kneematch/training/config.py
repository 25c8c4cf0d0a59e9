"""Configuration of a training: `TrainConfig`; importing it is fast."""

from dataclasses import dataclass
from typing import Annotated, Final

from cyclopts import Parameter
from cyclopts.validators import Number

from kneematch.settings import METHOD, Device, Force, Seed, Workers, check_settings

MODEL_SUFFIX: Final = ".safetensors"
OURS, PAPER = "default", "paper"  # recipes
SYNTHETIC, IMAGENET = "synthetic", "imagenet"  # initial weights

# A setting that overrides the one of the recipe.
Override = Annotated[
    int | None,
    Parameter(group=METHOD, metavar="N", validator=Number(gte=1), show_default="the recipe's"),
]


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class TrainConfig:
    """Settings of `train` and of `kneematch train`."""

    recipe: Annotated[str, Parameter(group=METHOD, choices=(OURS, PAPER))] = OURS
    """Hyperparameters: default, or those of the paper (with --start imagenet)."""
    start: Annotated[str, Parameter(group=METHOD, metavar="NAME|FILE")] = SYNTHETIC
    """Initial weights: synthetic (the built-in model), imagenet (downloaded), or a model file."""
    rounds: Override = None
    """Rounds of each phase (the paper's T)."""
    epochs: Override = None
    """Epochs per round (the paper's M)."""
    batch_size: Override = None
    """Films per training step."""
    seed: Seed = 0
    device: Device = "auto"
    workers: Workers = None
    resume: Annotated[bool, Parameter()] = False
    force: Force = False

    def __post_init__(self) -> None:
        """Raise SettingsError for values that make no sense."""
        check_settings(self)
