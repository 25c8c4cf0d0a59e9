"""The loss of a run's template at any area of a film."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch

from kneematch.detection.detection import Detection
from kneematch.detection.detector import PreparedFilm
from kneematch.errors import KneematchError
from kneematch.export.run_file import content_hash
from kneematch.geometry.sampling import sample
from kneematch.geometry.split import ROOM, SIDES
from kneematch.geometry.view import compose
from kneematch.matching.annotation import load_annotation
from kneematch.matching.energy import one_sided_loss, paper_terms
from kneematch.matching.template import Template, cut_template
from kneematch.networks.model_file import load_model, shipped_model
from kneematch.review.correction import half_edges
from kneematch.web.films import read_film


@dataclass(frozen=True, slots=True, eq=False)
class LossMeter:
    """The template of a run, and how the run continued films past their edges."""

    template: Template
    room: float  # as in `split`

    def loss(self, film: PreparedFilm, found: Detection) -> float | None:
        """Return the template's loss at an area, or None if the film has no knee on that side."""
        side = SIDES.index(found.side)
        if side not in film.sides:
            return None
        half = film.sides.index(side)
        pixels = film.halves.pixels[half]
        to_film = torch.eye(3, dtype=torch.float64)  # from the template's [-1, 1]^2
        to_film[:2, :2] = torch.from_numpy(half_edges(found).T)
        to_film[:2, 2] = torch.from_numpy(found.corners.mean(0))
        matrix = compose(torch.linalg.inv(film.halves.to_film[half]), to_film)[:2]
        patch = sample(pixels, matrix.to(pixels), self.template.size)
        (term,) = paper_terms(pixels, self.template)
        return float(one_sided_loss(patch, self.template, term.floor))


def load_loss_meter(out: Path) -> tuple[LossMeter | None, str]:
    """Load the template that a run used, as its run.json names it.

    Returns:
        The loss meter, or None and the reason if the template is unknown or has changed.
    """
    path = out / "run.json"
    try:
        run = json.loads(path.read_text(encoding="ascii"))
        settings, hashes = run["settings"], run["sha256"]
        drawn = None
        if settings.get("template") is None:
            model = settings.get("model")
            files = {"model": shipped_model() if model is None else Path(model)}
        else:
            drawn = load_annotation(Path(settings["template"]))
            files = {"template": Path(settings["template"]), "template_film": drawn.film}
        if any(content_hash(file) != hashes[name] for name, file in files.items()):
            return None, "the run's template has changed since"
        if drawn is None:
            template = load_model(files["model"]).fine_template
        else:
            template, _ = cut_template(read_film(drawn.film), drawn)
        return LossMeter(template, 0.0 if settings.get("paper") else ROOM), ""
    except KneematchError as error:
        return None, str(error)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None, f"{path}: the run's template is not named there or cannot be read"
