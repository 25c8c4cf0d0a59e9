"""An area that was moved by hand, and how well the template matches there."""

import json
import math
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kneematch.batch.recipe import Recipe
from kneematch.detection.detection import Detection
from kneematch.detection.prepare import Prepared, prepare
from kneematch.detection.registry import drawn_template, own_template
from kneematch.errors import KneematchError
from kneematch.geometry.sampling import sample
from kneematch.geometry.split import ROOM, SIDES
from kneematch.geometry.view import compose, transform
from kneematch.io.radiograph import Radiograph
from kneematch.matching.energy import one_sided_loss, printed
from kneematch.matching.template import Template
from kneematch.networks.model_file import load_model, shipped_model
from kneematch.web.review_log import Area

RUN: Final = "run.json"
METHOD: Final = "review"  # in the tables, of an area that was moved by hand


def moved(found: Detection, area: Area) -> Detection:
    """The detection with its area elsewhere, and its landmarks carried along."""
    scale = area.width_px / found.width_px
    height = scale * found.height_px
    turn = math.radians(area.rotation_deg)
    flip = -1.0 if found.side == "left" else 1.0  # in the left half the template lies mirrored
    across = flip * area.width_px / 2 * np.array([math.cos(turn), math.sin(turn)])
    down = height / 2 * np.array([-math.sin(turn), math.cos(turn)])
    centre = np.array([area.centre_x_px, area.centre_y_px])
    signs = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]])
    there = replace(
        found,
        corners=centre + signs @ np.stack([across, down]),
        centre=(area.centre_x_px, area.centre_y_px),
        width_px=area.width_px,
        height_px=height,
        rotation_deg=area.rotation_deg,
        method=METHOD,
    )
    carried = _to_film(there) @ torch.linalg.inv(_to_film(found))
    places = torch.tensor(list(found.landmarks.values()), dtype=torch.float64).reshape(-1, 2)
    landmarks = transform(carried, places).tolist()
    return replace(
        there,
        landmarks={name: (x, y) for name, (x, y) in zip(found.landmarks, landmarks, strict=True)},
    )


@dataclass(frozen=True, slots=True, eq=False)
class Matcher:
    """The template of a run, and the loss it has anywhere."""

    template: Template
    room: float  # beside a film, as the run had it

    def prepare(self, film: Radiograph) -> Prepared:
        """The halves of a film, as the run saw them."""
        return prepare(film, self.room)

    def loss(self, film: Prepared, found: Detection) -> float | None:
        """Of an area, as `detect` tells it; None if the film has no such side."""
        side = SIDES.index(found.side)
        if side not in film.sides:
            return None
        half = film.sides.index(side)
        pixels = film.halves.pixels[half]
        matrix = compose(torch.linalg.inv(film.halves.to_film[half]), _to_film(found))[:2]
        patch = sample(pixels, matrix.to(pixels), self.template.size)
        (term,) = printed(pixels, self.template)
        return float(one_sided_loss(patch, self.template, term.floor))


def matcher_of(out: Path) -> tuple[Matcher | None, str]:
    """The template that a run has used, as far as it can be found; else why it cannot."""
    try:
        told = json.loads((out / RUN).read_text(encoding="ascii"))
        settings: dict[str, Any] = told["settings"]
        known = {field.name for field in fields(Recipe)} & set(settings)
        recipe = replace(Recipe(**{name: settings[name] for name in known}), device="cpu")
        if recipe.hashes() != told["sha256"]:
            return None, "the run's template has changed since"
        room = 0.0 if recipe.paper else ROOM
        return Matcher(_template(recipe), room), ""
    except KneematchError as error:
        return None, str(error)
    except (OSError, ValueError, KeyError, TypeError):
        return None, f"{out / RUN} does not tell the run's template"


def _template(recipe: Recipe) -> Template:
    """What was looked for, without the networks that looked."""
    if recipe.template is not None:
        return drawn_template(recipe.template).template
    return own_template(load_model(recipe.model or shipped_model())).template


def _to_film(found: Detection) -> Tensor:
    """The map (3, 3) of the template's [-1, 1]^2."""
    corners: NDArray[np.float64] = found.corners
    matrix = torch.eye(3, dtype=torch.float64)
    matrix[:2, 0] = torch.from_numpy((corners[1] - corners[0]) / 2)
    matrix[:2, 1] = torch.from_numpy((corners[3] - corners[0]) / 2)
    matrix[:2, 2] = torch.from_numpy(corners.mean(0))
    return matrix
