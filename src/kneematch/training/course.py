"""What every training on files of films goes by: its films, its template, its checkpoint."""

import hashlib
from pathlib import Path
from typing import Final

from kneematch.errors import SettingsError
from kneematch.geometry.split import ROOM
from kneematch.matching.annotation import load_annotation
from kneematch.training.config import Recipe
from kneematch.training.dataset import PreparedFilms
from kneematch.training.distributed import Group
from kneematch.training.session import Session, Settings, prepare

FEWEST: Final = 2  # films, below which there is nothing to learn from


def checkpoint_beside(model: Path) -> Path:
    """Where a training that is not over is kept."""
    return model.with_name(f"{model.stem}.checkpoint.safetensors")


def room_for(recipe: Recipe) -> float:
    """How far films are continued to either side, as `split` has it; the paper does not."""
    return 0.0 if recipe.printed else ROOM


def check_enough(prepared: PreparedFilms, named: int) -> None:
    """Refuse to train on next to no films."""
    if len(prepared) < FEWEST:
        raise SettingsError(
            f"{len(prepared)} of {named} films can be used; expected {FEWEST} at least, and "
            "better 50; name more"
        )


def session_on(
    films: PreparedFilms, template: Path, settings: Settings, group: Group, resume: Path | None
) -> Session:
    """A training on prepared films that is ready to go, or to go on from a checkpoint."""
    told_of = hashlib.sha256("\n".join(films.keys).encode()).hexdigest(), template_hash(template)
    return prepare(films, load_annotation(template), settings, told_of, group, resume)


def template_hash(template: Path) -> str:
    """What stands for an annotation and its film."""
    film = load_annotation(template).film
    return hashlib.sha256(template.read_bytes() + film.read_bytes()).hexdigest()
