"""The loss of a run's template at any area of a film."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch

from kneematch.errors import KneematchError, TemplateError
from kneematch.films.annotation import load_annotation
from kneematch.films.radiograph import Radiograph
from kneematch.knee.detection import Detection
from kneematch.knee.knee_images import knee_images
from kneematch.knee.methods import read_template, template_for_views
from kneematch.knee.template import cut_template
from kneematch.models.locator import KneeLocation
from kneematch.models.model_file import builtin_model, load_model
from kneematch.paper.energy import one_sided_loss, paper_problem
from kneematch.paper.template import Template
from kneematch.run.apply import ended_run, run_config
from kneematch.run.database import Run
from kneematch.sampling import compose, sample
from kneematch.search.settings import AUTO, LOCATOR
from kneematch.web.films import read_film

AREA_WIDTH: Final = 1.35  # width of an area in plateau widths, so that the view is as in detection


def loss_at(found: Detection, film: Radiograph, template: Template) -> float:
    """Return the template's loss at an area, in a view around it."""
    place = KneeLocation(*found.centre, found.width_px / AREA_WIDTH, 0.0, found.mirrored)
    view = knee_images(torch.from_numpy(film.pixels), [place])
    matrix = compose(torch.linalg.inv(view.to_film[0]), torch.from_numpy(found.to_film))[:2]
    pixels = view.pixels[0]
    patch = sample(pixels, matrix.to(pixels), template.size)
    (term,) = paper_problem(pixels, template).terms
    return float(one_sided_loss(patch, term.template, term.floor))


def load_run_template(run: Run, root: Path = Path()) -> tuple[Template | None, str]:
    """Load the template that a run used; its relative paths are taken from `root`.

    Returns:
        The template, or None and the reason if it is unknown or has changed.
    """
    try:
        config, hashes = run_config(run), ended_run(run).hashes
        model, template = (
            None if path is None else str(root / path) for path in (config.model, config.template)
        )
        now = replace(config, model=model, template=template).file_hashes()
        names = ("model",) if template is None else ("template", "template_film")
        if any(now[name] != hashes.get(name) for name in names):
            return None, "The run's template has changed since."
        if template is None:
            return template_for_views(load_model(model or builtin_model()).fine_template), ""
        drawn = load_annotation(template)
        if config.method in (AUTO, LOCATOR) and not config.paper:
            with suppress(TemplateError):  # no knee in its boxes: it was searched for in halves
                return read_template(drawn, located=True).template, ""
        return template_for_views(cut_template(read_film(drawn.film), drawn)[0]), ""
    except KneematchError as error:
        return None, str(error)
    except OSError as error:
        return None, f"The run's template cannot be read: {error}"
