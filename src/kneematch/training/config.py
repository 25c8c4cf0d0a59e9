"""How a model is trained: the paper's way, and ours."""

from dataclasses import dataclass, replace
from typing import Final


@dataclass(frozen=True, slots=True)
class Recipe:
    """The settings of Algorithms 1 and 2; the defaults are the paper's values."""

    name: str = "paper"
    rounds: int = 3  # T, after each of which c_u is made anew
    epochs: int = 15  # M, of each round
    batch_size: int = 8  # films
    backbone_rate: float = 1e-5  # of Adam, for ResNet18's part
    head_rate: float = 1e-4  # for the rest
    cosine: bool = False  # let both rates fall to 0
    # The energy itself is lowered, as the paper does it; or the networks learn the poses of
    # lowest energy near where others say that the knees are.
    energy: bool = True
    printed: bool = True  # the energy is the paper's, and not the robust one
    shift: float = 0.02  # the paper's random translation, as a share of a view
    # BatchNorm keeps the mean and deviation it started with: a few films are no sample of films.
    frozen_statistics: bool = False
    mean_template: int = 0  # times that the template becomes the mean of what it found


PAPER: Final = Recipe()
DEFAULT: Final = Recipe(
    name="default",
    rounds=1,
    epochs=12,
    batch_size=24,
    backbone_rate=3e-4,
    head_rate=1e-3,
    cosine=True,
    energy=False,
    printed=False,
    frozen_statistics=True,
)
RECIPES: Final = {recipe.name: recipe for recipe in (DEFAULT, PAPER)}


def chosen(
    name: str,
    rounds: int | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    mean_template: int | None = None,
) -> Recipe:
    """A recipe by name, with what is given in place of its own values."""
    own = RECIPES[name]
    return replace(
        own,
        rounds=rounds or own.rounds,
        epochs=epochs or own.epochs,
        batch_size=batch_size or own.batch_size,
        mean_template=own.mean_template if mean_template is None else mean_template,
    )
