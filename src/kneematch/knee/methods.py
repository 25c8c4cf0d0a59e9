"""The methods by name, and the parts that each of them consists of."""

import os
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from torch import Tensor

from kneematch.errors import SettingsError, TemplateError
from kneematch.films.annotation import Annotation, Box, annotation_problems, load_annotation
from kneematch.films.read import read_isolated
from kneematch.knee.knee_images import SIDE_MARGIN, film_tensor, knee_images
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
from kneematch.paper.energy import MakeProblem, Refiner, Solver, paper_problem
from kneematch.paper.grid_search import grid_search
from kneematch.paper.sharpening import sharpen
from kneematch.paper.sliding_window import sliding_window
from kneematch.paper.split import HALF_SIZE, LEFT, SIDES
from kneematch.paper.template import Template
from kneematch.sampling import View
from kneematch.search.anchored_refinement import PRIOR_WEIGHT, QUICK_LEVELS, refine_anchored
from kneematch.search.exhaustive_search import exhaustive_search
from kneematch.search.gauss_newton import resize_template
from kneematch.search.robust_energy import robust_problem
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
REDUCTION: Final = VIEW_SIZE[0] / HALF_SIZE[0]  # size of a template in views over that in halves

TemplateFile = str | os.PathLike[str] | Annotation


class DrawnTemplate(NamedTuple):
    """A template and where it was drawn."""

    template: Template
    image: Tensor  # (H, W), the image of the knee
    theta: Tensor  # (4,), the template's pose in it


def read_template(template: TemplateFile, *, located: bool) -> DrawnTemplate:
    """Cut the fine box of an annotation, or of a template.json, out of its film.

    `located` cuts it out of the view around the located knee instead of the film's half.

    Raises:
        TemplateError: the box cannot serve as a template, or has no located knee in it.
    """
    drawn = template if isinstance(template, Annotation) else load_annotation(str(template))
    for _, problem in annotation_problems(drawn):
        raise TemplateError(f"{drawn.film}: {problem}")
    film = read_isolated(drawn.film)
    if located:
        pixels = film_tensor(film)
        knee = knee_in_box(locate_knees([pixels], builtin_locator())[0], drawn.fine)
        if knee is None or knee.mirrored != (drawn.side == SIDES[LEFT]):
            raise TemplateError(
                f"{drawn.film}: The network sees no tibial plateau whose middle lies in the fine "
                "box. Draw the box around it, or use detect --method search."
            )
        view = view_of_knee(pixels, knee)
    else:
        view = annotated_half(film, drawn)
    cut, theta = cut_from_view(view, drawn)
    return DrawnTemplate(cut, view.pixels, theta)


def knee_in_box(knees: Iterable[KneeLocation], box: Box) -> KneeLocation | None:
    """Return the first knee whose plateau has its middle in a box; None without one."""
    x0, y0, x1, y1 = box
    return next((knee for knee in knees if x0 < knee.x < x1 and y0 < knee.y < y1), None)


def view_of_knee(pixels: Tensor, knee: KneeLocation) -> View:
    """Return the view (400, 250) of one knee of a film (H, W); see `knee_images`."""
    views = knee_images(pixels, [knee])
    return View(views.pixels[0], views.to_film[0])


def template_for_views(template: Template) -> Template:
    """Return a template of halves at the resolution of views, which is lower."""
    rows, columns = (max(round(REDUCTION * side), 1) for side in template.size)
    return resize_template(template, (rows, columns))


@dataclass(frozen=True, slots=True, eq=False)
class ChosenSolver:
    """The parts of a method: all that a detector needs, apart from the film."""

    template: Template
    method: str
    solver: Solver
    make_problem: MakeProblem  # says which energy is minimised
    side_margin: float  # how far halves go past the film, as a share of its width
    check: ConsistencyCheck | None


def needs_model(has_template: bool, method: str, *, paper: bool, check: bool = True) -> bool:
    """Return whether detections depend on a model: its template, its networks or its check."""
    return not has_template or method in (AUTO, *NEURAL) or (check and not paper)


def choose_solver(
    method: str,
    template: TemplateFile | None,
    model: Model | None,
    *,
    paper: bool,
    device: str,
    settings: PaperSettings = DEFAULT_SETTINGS,
) -> ChosenSolver:
    """Return the parts of a method; "auto" takes the first one that can find the template.

    Only here is it decided what the paper's method and the robust one differ in.
    """
    if method not in METHODS:
        raise SettingsError(f"There is no method {method!r}. Choose one of {', '.join(METHODS)}.")
    if method == AUTO and not paper:
        for name in (LOCATOR, "neural+sharpen"):
            with suppress(TemplateError):
                return choose_solver(
                    name, template, model, paper=False, device=device, settings=settings
                )
    if method == AUTO:
        method = "neural+sharpen" if paper else "search"
    located, neural = method == LOCATOR, method in NEURAL
    if model is None and (neural or template is None):
        raise SettingsError(f"The method {method} needs a model here.")
    drawn = None if template is None else read_template(template, located=located)
    check = None
    if model is not None:
        networks = model.networks(device, located=located, float32=paper and neural)
        larger = model.coarse_template.size[1] / model.fine_template.size[1]
        # A search does without a check where the networks see no knee in the template's film.
        with nullcontext() if neural else suppress(TemplateError):
            if drawn is not None:
                networks = transfer_template(networks, drawn.image.to(device), drawn.theta)
            check = ConsistencyCheck(networks, larger)
        own = template_for_views(model.fine_template) if located else model.fine_template
    if model is not None and neural:
        refine = _refiner(method, settings, paper=paper, drawn=drawn is not None)
        solver = network_solver(networks, refine)
        if paper and refine is not None and not located:
            solver = paper_solver(networks, enlarged_size(model.coarse_template), refine)
    else:
        solver = _search(method, settings)
    return ChosenSolver(
        own if drawn is None else drawn.template,
        method,
        solver,
        paper_problem if paper else robust_problem,
        0.0 if paper else SIDE_MARGIN,
        check,
    )


def _refiner(method: str, settings: PaperSettings, *, paper: bool, drawn: bool) -> Refiner | None:
    """Return the refinement of what networks found; None where it gains nothing."""
    # In views of located knees their own template is not refined: with earlier networks, the
    # mean IoU was 0.967 on the labelled films and 0.982 on 40 phantoms, refined or not.
    if method == "neural" or (method == LOCATOR and not drawn and not paper):
        return None
    if paper:
        return partial(sharpen, steps=settings.adam_steps, rate=settings.adam_rate)
    # The networks are more accurate for their own template than for a drawn one.
    prior_weight = PRIOR_WEIGHT if drawn else OWN_PRIOR_WEIGHT
    return partial(refine_anchored, levels=QUICK_LEVELS, prior_weight=prior_weight)


def _search(name: str, settings: PaperSettings) -> Solver:
    """Return the search of a name."""
    grid = partial(
        grid_search,
        n_scales=settings.grid_scales,
        stride=settings.grid_stride,
        steps=settings.adam_steps,
        rate=settings.adam_rate,
    )
    searches: dict[str, Solver] = {"search": exhaustive_search, "grid": grid}
    return searches.get(name, sliding_window)
