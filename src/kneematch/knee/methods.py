"""The methods by name, and the solver that each of them stands for."""

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from torch import Tensor

from kneematch.errors import SettingsError, TemplateError
from kneematch.films.annotation import Annotation, Box, annotation_problems, load_annotation
from kneematch.films.radiograph import Radiograph
from kneematch.films.read import read_isolated
from kneematch.knee.knee_images import film_tensor, knee_images
from kneematch.knee.template import annotated_half, cut_from_view
from kneematch.models.locator import VIEW_SIZE, KneeLocation, builtin_locator, locate_knees
from kneematch.models.model_file import Model
from kneematch.models.two_stage import (
    ConsistencyCheck,
    network_solver,
    paper_solver,
    transfer_template,
)
from kneematch.paper.algorithm2 import enlarged_size
from kneematch.paper.energy import Refiner, Solver
from kneematch.paper.sharpening import sharpen
from kneematch.paper.split import HALF_SIZE, LEFT, SIDES
from kneematch.paper.template import Template
from kneematch.sampling import View
from kneematch.search.anchored_refinement import PRIOR_WEIGHT, QUICK_LEVELS, refine_anchored
from kneematch.search.gauss_newton import resize_template
from kneematch.search.settings import (
    AUTO,
    DEFAULT_SETTINGS,
    LOCATOR,
    METHODS,
    NEURAL,
    PaperSettings,
)

# Weight of leaving the networks' pose where they find the template that they were trained for.
# Chosen with the networks of version 0.1: with PRIOR_WEIGHT the margins' median error was 1.25
# instead of 1.05 % on 30 phantoms, and 1.80 instead of 1.65 % on the labelled films.
OWN_PRIOR_WEIGHT: Final = 400.0
REDUCTION: Final = VIEW_SIZE[0] / HALF_SIZE[0]  # of the size of a template, for views

DrawnTemplate = str | os.PathLike[str] | Annotation


@dataclass(frozen=True, slots=True, eq=False)
class TemplateSource:
    """A template and, if it was drawn on a film rather than learnt, where."""

    template: Template
    view: Tensor | None = None  # (H, W), the image of a knee that it was drawn on
    theta: Tensor | None = None  # (4,), its pose there


def read_template(template: DrawnTemplate, *, located: bool) -> TemplateSource:
    """Cut the fine box of an annotation, or of a template.json, out of its film.

    Args:
        template: the annotation or its file.
        located: cut it out of the view around the located knee, instead of the film's half.
    """
    drawn = template if isinstance(template, Annotation) else load_annotation(str(template))
    for _, problem in annotation_problems(drawn):
        raise TemplateError(f"{drawn.film}: {problem}")
    film = read_isolated(drawn.film)
    view = _located_view(film, drawn) if located else annotated_half(film, drawn)
    cut, theta = cut_from_view(view, drawn)
    return TemplateSource(cut, view.pixels, theta)


def _located_view(film: Radiograph, drawn: Annotation) -> View:
    """Return the view around the knee that a fine box was drawn on."""
    pixels = film_tensor(film)
    knee = knee_in_box(locate_knees([pixels], builtin_locator())[0], drawn.fine)
    if knee is None or knee.mirrored != (drawn.side == SIDES[LEFT]):
        raise TemplateError(
            f"{drawn.film}: no tibial plateau that the network sees has its middle in the fine "
            "box; expected one; draw the box around it, or do without (detect --method search)"
        )
    return view_of_knee(pixels, knee)


def knee_in_box(knees: Iterable[KneeLocation], box: Box) -> KneeLocation | None:
    """Return the first knee whose plateau has its middle in a box; None without one."""
    x0, y0, x1, y1 = box
    return next((knee for knee in knees if x0 < knee.x < x1 and y0 < knee.y < y1), None)


def view_of_knee(pixels: Tensor, knee: KneeLocation) -> View:
    """Return the view (400, 250) of one knee of a film (H, W); see `knee_images`."""
    views = knee_images(pixels, [knee])
    return View(views.pixels[0], views.to_film[0])


@dataclass(frozen=True, slots=True, eq=False)
class ChosenSolver:
    """A template, a solver for it, the method's name, and the check for what it finds."""

    template: Template
    method: str
    solver: Solver
    check: ConsistencyCheck | None = None


def check_method(name: str) -> None:
    """Raise SettingsError unless a method has this name."""
    if name not in METHODS:
        raise SettingsError(f"method {name!r}; expected one of {', '.join(METHODS)}")


def needs_model(has_template: bool, method: str, *, paper: bool, check: bool = True) -> bool:
    """Return whether detections depend on a model: its template, its networks or its check."""
    return not has_template or method in (AUTO, *NEURAL) or (check and not paper)


def choose_solver(
    method: str,
    template: DrawnTemplate | None,
    model: Model | None,
    *,
    paper: bool,
    device: str,
    settings: PaperSettings = DEFAULT_SETTINGS,
) -> ChosenSolver:
    """Return the solver of a method; "auto" needs networks that see the template's knee."""

    def neural(name: str) -> ChosenSolver:
        if model is None:
            raise SettingsError(f"no model; expected one with the method {name}; give one")
        source = _source(template, model, located=name == LOCATOR)
        check = _make_check(source, model, device, located=name == LOCATOR, float32=paper)
        # In views of located knees their own template is not refined: with earlier networks,
        # the mean IoU was 0.967 on the labelled films and 0.982 on 40 phantoms, refined or not.
        as_it_is = name == "neural" or (name == LOCATOR and template is None and not paper)
        refine = None if as_it_is else _refiner(settings, paper=paper, drawn=template is not None)
        solver = network_solver(check.networks, refine)
        if paper and refine is not None and name != LOCATOR:
            solver = paper_solver(check.networks, enlarged_size(model.coarse_template), refine)
        return ChosenSolver(source.template, name, solver, check)

    if method == AUTO and paper:
        method = "neural+sharpen"
    if method in NEURAL:
        return neural(method)
    if method == AUTO:
        for name in (LOCATOR, "neural+sharpen"):
            with suppress(TemplateError):
                return neural(name)
        method = "search"
    source, check = _source(template, model, located=False), None
    if model is not None:
        with suppress(TemplateError):
            check = _make_check(source, model, device)
    return ChosenSolver(source.template, method, _search(method, settings), check)


def _refiner(settings: PaperSettings, *, paper: bool, drawn: bool) -> Refiner:
    """Return the refinement of what networks found.

    They are more accurate for the template that they were trained with than for a drawn one.
    """
    if paper:
        return partial(sharpen, steps=settings.adam_steps, rate=settings.adam_rate)
    prior_weight = PRIOR_WEIGHT if drawn else OWN_PRIOR_WEIGHT
    return partial(refine_anchored, levels=QUICK_LEVELS, prior_weight=prior_weight)


def _source(
    template: DrawnTemplate | None, model: Model | None, *, located: bool
) -> TemplateSource:
    """Return the template to find: the drawn one, or else the model's own."""
    if template is not None:
        return read_template(template, located=located)
    if model is None:
        raise SettingsError("no template; expected a model or an annotation; give one")
    return TemplateSource(
        template_for_views(model.fine_template) if located else model.fine_template
    )


def template_for_views(template: Template) -> Template:
    """Return a template of halves at the resolution of views, which is lower."""
    rows, columns = (max(round(REDUCTION * side), 1) for side in template.size)
    return resize_template(template, (rows, columns))


def _search(name: str, settings: PaperSettings) -> Solver:
    """Import a search when it is chosen, since most runs use none."""
    if name == "search":
        from kneematch.search.exhaustive_search import exhaustive_search

        return exhaustive_search
    if name == "grid":
        from kneematch.paper.grid_search import grid_search

        return partial(
            grid_search,
            n_scales=settings.grid_scales,
            stride=settings.grid_stride,
            steps=settings.adam_steps,
            rate=settings.adam_rate,
        )
    from kneematch.paper.sliding_window import sliding_window

    return sliding_window


def _make_check(
    source: TemplateSource,
    model: Model,
    device: str,
    *,
    located: bool = False,
    float32: bool = False,
) -> ConsistencyCheck:
    """Return the consistency check, with the networks that find the template."""
    networks = model.networks(device, located=located, float32=float32)
    if source.view is not None and source.theta is not None:
        networks = transfer_template(networks, source.view.to(device), source.theta)
    larger = model.coarse_template.size[1] / model.fine_template.size[1]
    return ConsistencyCheck(networks, larger)
