"""What the pages show of films and knees: pictures, the template's loss, outlines and measures."""

import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Final

import torch
from PIL import Image
from pydantic import Field

from kneematch.errors import KneematchError, SettingsError, TemplateError
from kneematch.films.annotation import load_annotation
from kneematch.films.pictures import encode, to_grey8
from kneematch.films.radiograph import Radiograph
from kneematch.films.read import read_isolated
from kneematch.knee.detection import Detection
from kneematch.knee.knee_images import knee_images
from kneematch.knee.measure import PERCENT, JointMeasures
from kneematch.knee.methods import read_template, template_for_views
from kneematch.knee.template import cut_template
from kneematch.models.locator import KneeLocation
from kneematch.models.model_file import builtin_model, load_model
from kneematch.paper.energy import one_sided_loss, paper_problem
from kneematch.paper.template import Template
from kneematch.run.apply import ended_run, run_config
from kneematch.run.config import DetectConfig
from kneematch.run.database import Run
from kneematch.sampling import compose, sample
from kneematch.search.settings import AUTO, LOCATOR

CACHED_FILMS: Final = 3  # in memory, each up to 50 MB
MAX_SIDE_PX: Final = 5000  # larger films are shown smaller
FILM_QUALITY: Final = 92  # JPEG quality at which compression errors are below a film's noise
AREA_WIDTH: Final = 1.35  # width of an area in plateau widths, so that the view is as in detection
MAX_POINTS: Final = 1000  # in a border that is drawn
SHOWN: Final = {  # the medial and the lateral measure of each line of the table
    "Minimum": ("jsw_medial_minimum", "jsw_lateral_minimum"),
    "x = 0.25, 0.75": ("jsw_x250", "jsw_x750"),
}

Border = Annotated[list[tuple[float, float]], Field(min_length=2, max_length=MAX_POINTS)]

_read = lru_cache(CACHED_FILMS)(read_isolated)
_reading = threading.Lock()


def read_film(path: Path) -> Radiograph:
    """Return a film, perhaps from the cache; one thread reads, and the others wait for it."""
    with _reading:
        return _read(path)


def film_jpeg(film: Radiograph) -> bytes:
    """Return the film as a JPEG file in 8-bit grey."""
    image = Image.fromarray(to_grey8(film.pixels))
    if max(image.size) > MAX_SIDE_PX:
        image.thumbnail((MAX_SIDE_PX, MAX_SIDE_PX), Image.Resampling.BOX)
    return encode(image, "jpeg", quality=FILM_QUALITY)


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
    """Return the template that a run used, or None and the reason if it is gone or has changed.

    Its relative paths are taken from `root`.
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


@dataclass(frozen=True, slots=True)
class Borders:
    """Body of a request: the borders of femur and tibia, points (x, y) in film pixels."""

    femur: Border
    tibia: Border


def borders_of(measures: JointMeasures) -> dict[str, Any]:
    """Return borders as `Borders` has them."""
    lines = measures.outlines
    return {name: getattr(lines, name).round(3).tolist() for name in ("femur", "tibia")}


@dataclass(frozen=True, slots=True)
class Outliner:
    """How a run outlines and measures knees that a reviewer placed."""

    config: DetectConfig  # settings of the run
    sha256: str | None  # SHA-256 of the file of its outline network

    @classmethod
    def from_run(cls, run: Run, root: Path) -> "Outliner | None":
        """Return how a run, whose relative paths start at `root`, outlines knees, if it does."""
        config = run_config(run)
        if not config.measure:
            return None
        if config.outlines is not None:
            config = replace(config, outlines=str(root / config.outlines))
        return cls(config, ended_run(run).hashes.get("outlines"))

    def measures(self, knee: Detection, film: Radiograph) -> JointMeasures:
        """Return the outlines and measures of a knee that a reviewer placed.

        Raise SettingsError if another network lies in the place of the run's.
        """
        from kneematch.knee.measuring import measure_placed_knees, outline_network  # SciPy is slow

        if self.config.outline_hash()["outlines"] != self.sha256:
            file = self.config.outlines or "The built-in outline network"
            raise SettingsError(
                f"{file} is not the outline network of the run. Put it back, or detect again."
            )
        (measured,) = measure_placed_knees(film, [knee], outline_network(self.config.outlines))
        if measured.measures is None:
            raise SettingsError("The knee cannot be measured.")
        return measured.measures

    def table(self, measures: JointMeasures) -> dict[str, Any]:
        """Return the main measures as texts: a unit, and lines of name, medial, lateral width.

        The unit is mm where the film has spacing, else percent of the plateau's width.
        """
        width_mm = measures.outlines.width_mm
        unit, decimals, factor = "% of the plateau", 1, 1.0
        if width_mm is not None:
            unit, decimals = "mm", 2
            factor = width_mm / (self.config.magnification or 1.0) / PERCENT

        def text(name: str) -> str:
            measure = measures.values[name]
            if measure.value is None:
                return measure.reason
            spread = "" if measure.sd is None else f" ± {factor * measure.sd:.{decimals}f}"
            return f"{factor * measure.value:.{decimals}f}{spread}"

        lines = [(label, *map(text, names)) for label, names in SHOWN.items()]
        return {"unit": unit, "lines": lines}
