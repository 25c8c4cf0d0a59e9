"""The loss of a run's template at any area of a film."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Final

import torch

from kneematch.errors import KneematchError, TemplateError
from kneematch.films.annotation import load_annotation
from kneematch.films.files import content_hash
from kneematch.films.radiograph import Radiograph
from kneematch.films.run_folder import RUN
from kneematch.knee.detection import Detection
from kneematch.knee.knee_images import knee_images
from kneematch.knee.methods import read_template, template_for_views
from kneematch.knee.template import cut_template
from kneematch.models.locator import KneeLocation
from kneematch.models.model_file import builtin_model, load_model
from kneematch.paper.energy import one_sided_loss, paper_problem
from kneematch.paper.template import Template
from kneematch.sampling import compose, sample
from kneematch.search.settings import AUTO, LOCATOR
from kneematch.web.films import read_film

AREA_WIDTH: Final = 1.35  # of an area, in plateau widths, so that the view is as in detection


def loss_at(found: Detection, film: Radiograph, template: Template) -> float:
    """Return the template's loss at an area, in a view around it."""
    place = KneeLocation(*found.centre, found.width_px / AREA_WIDTH, 0.0, found.mirrored)
    view = knee_images(torch.from_numpy(film.pixels), [place])
    matrix = compose(torch.linalg.inv(view.to_film[0]), torch.from_numpy(found.to_film))[:2]
    pixels = view.pixels[0]
    patch = sample(pixels, matrix.to(pixels), template.size)
    (term,) = paper_problem(pixels, template).terms
    return float(one_sided_loss(patch, term.template, term.floor))


def load_run_template(out: Path, root: Path = Path()) -> tuple[Template | None, str]:
    """Load the template that a run used, as its run.json names it; relative paths from `root`.

    Returns:
        The template, or None and the reason if it is unknown or has changed.
    """
    path = out / RUN
    try:
        run = json.loads(path.read_text(encoding="ascii"))
        settings, hashes = run["settings"], run["sha256"]
        drawn = None
        if settings.get("template") is None:
            model = settings.get("model")
            files = {"model": builtin_model() if model is None else root / model}
        else:
            files = {"template": root / settings["template"]}
            drawn = load_annotation(files["template"])
            files["template_film"] = drawn.film
        if any(content_hash(file) != hashes[name] for name, file in files.items()):
            return None, "the run's template has changed since"
        if drawn is None:
            return template_for_views(load_model(files["model"]).fine_template), ""
        if settings.get("method") in (AUTO, LOCATOR) and not settings.get("paper"):
            with suppress(TemplateError):  # no knee in its boxes: it was searched for in halves
                return read_template(drawn, located=True).template, ""
        return template_for_views(cut_template(read_film(drawn.film), drawn)[0]), ""
    except KneematchError as error:
        return None, str(error)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None, f"{path}: the run's template is not named there or cannot be read"
