"""Configuration of a training: `TrainConfig`, and the hyperparameters (`Recipe`) it selects."""

import os
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from kneematch import options
from kneematch.options import METHOD, PERFORMANCE, check_options, option

CACHE_VARIABLE: Final = "KNEEMATCH_CACHE"
MODEL_SUFFIX: Final = ".safetensors"


@dataclass(frozen=True, slots=True)
class Recipe:
    """Hyperparameters of Algorithms 1 and 2; the defaults are the paper's values (Sect. 5)."""

    name: str = "paper"
    rounds: int = 3  # T; the weights c_u are recomputed after every round
    epochs: int = 15  # M, epochs per round
    batch_size: int = 8  # films per step
    backbone_rate: float = 1e-5  # learning rate of the ResNet18 layers
    head_rate: float = 1e-4  # learning rate of the other layers
    cosine: bool = False  # cosine decay of both learning rates to 0 over a round
    paper_energy: bool = True  # minimise the paper's energy; otherwise learn pseudo-labels
    shift: float = 0.02  # largest random translation, as a fraction of the view
    bfloat16: bool = False  # precision of the networks on a GPU; otherwise float32
    frozen_statistics: bool = False  # keep BatchNorm's statistics: a few films are no sample


PAPER: Final = Recipe()
DEFAULT: Final = Recipe(
    name="default",
    rounds=1,
    epochs=12,
    batch_size=24,
    backbone_rate=3e-4,
    head_rate=1e-3,
    cosine=True,
    paper_energy=False,
    bfloat16=True,
    frozen_statistics=True,
)
RECIPES: Final = {recipe.name: recipe for recipe in (DEFAULT, PAPER)}

# Options that override a value of the recipe.
_override: Any = partial(option, None, group=METHOD, metavar="N", default_text="the recipe's")


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """Settings of `train` and of `kneematch train`."""

    recipe: str = option(
        DEFAULT.name,
        help="Hyperparameters: default, or those of the paper, whose initial weights are "
        "--start imagenet.",
        group=METHOD,
        choices=tuple(RECIPES),
    )
    start: str = option(
        "synthetic",
        help="Initial weights: synthetic (the built-in model), imagenet (downloaded), none "
        "(random), or a file with the weights of a ResNet18.",
        group=METHOD,
        metavar="NAME|FILE",
    )
    rounds: int | None = _override(help="Rounds of each phase (the paper's T).", minimum=1)
    epochs: int | None = _override(help="Epochs per round (the paper's M).", minimum=1)
    batch_size: int | None = _override(help="Films per training step.", minimum=1)
    seed: int = options.seed_option()
    device: str = options.device_option()
    workers: int | None = options.workers_option()
    cache: Path | None = option(
        None,
        help="Folder for prepared films, 1.6 MB each.",
        group=PERFORMANCE,
        metavar="FOLDER",
        default_text=f"${CACHE_VARIABLE}, or the user's cache folder",
    )
    resume: bool = options.resume_option()
    force: bool = options.force_option()

    def __post_init__(self) -> None:
        """Raise SettingsError for values that make no sense."""
        check_options(self)

    def hyperparameters(self) -> Recipe:
        """Return the named recipe with the values that this configuration overrides."""
        named = RECIPES[self.recipe]
        given = ((item.name, getattr(self, item.name, None)) for item in fields(Recipe))
        return replace(named, **{name: value for name, value in given if value is not None})


def cache_folder() -> Path:
    """Return $KNEEMATCH_CACHE or the user's cache folder; it need not exist."""
    from platformdirs import user_cache_path

    named = os.environ.get(CACHE_VARIABLE)
    return Path(named) if named else user_cache_path("kneematch")
