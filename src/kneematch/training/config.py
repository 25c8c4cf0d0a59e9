"""Configuration of a training: `TrainConfig`; importing it is fast."""

from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from kneematch import options
from kneematch.options import METHOD, check_options, option

MODEL_SUFFIX: Final = ".safetensors"
OURS, PAPER = "default", "paper"  # recipes
SYNTHETIC, IMAGENET = "synthetic", "imagenet"  # initial weights

# Options that override a value of the recipe.
_override: Any = partial(option, None, group=METHOD, metavar="N", default_text="the recipe's")


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """Settings of `train` and of `kneematch train`."""

    recipe: str = option(
        OURS,
        help="Hyperparameters: default, or those of the paper, whose initial weights are "
        "--start imagenet.",
        group=METHOD,
        choices=(OURS, PAPER),
    )
    start: str = option(
        SYNTHETIC,
        help="Initial weights: synthetic (the built-in model), imagenet (downloaded), or a model "
        "file.",
        group=METHOD,
        metavar="NAME|FILE",
    )
    rounds: int | None = _override(help="Rounds of each phase (the paper's T).", minimum=1)
    epochs: int | None = _override(help="Epochs per round (the paper's M).", minimum=1)
    batch_size: int | None = _override(help="Films per training step.", minimum=1)
    seed: int = options.seed_option()
    device: str = options.device_option()
    workers: int | None = options.workers_option()
    resume: bool = options.resume_option()
    force: bool = options.force_option()

    def __post_init__(self) -> None:
        """Raise SettingsError for values that make no sense."""
        check_options(self)
