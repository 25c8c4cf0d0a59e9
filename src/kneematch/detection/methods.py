"""The methods by name, and the solver that each of them stands for."""

import os
from dataclasses import dataclass
from functools import partial
from typing import Final

from torch import Tensor

from kneematch.errors import SettingsError, TemplateError
from kneematch.geometry.split import SIDES, split
from kneematch.geometry.view import View
from kneematch.io.read import read_isolated
from kneematch.matching.annotation import Annotation, load_annotation
from kneematch.matching.template import Template, cut_from_half
from kneematch.networks.consistency_check import ConsistencyCheck
from kneematch.networks.model_file import Model
from kneematch.networks.template_transfer import transfer_template
from kneematch.networks.two_stage import PosePredictor, network_solver, refined_network_solver
from kneematch.solvers.adam import adam
from kneematch.solvers.anchored_refinement import QUICK_LEVELS, refine_anchored
from kneematch.solvers.problem import Refiner, Solver
from kneematch.solvers.settings import DEFAULT_SETTINGS, PaperSettings

AUTO: Final = "auto"
NEURAL: Final = ("neural", "neural+sharpen")
SEARCHES: Final = ("search", "grid", "sliding")  # need no network


@dataclass(frozen=True, slots=True, eq=False)
class TemplateSource:
    """A template and, if it was drawn on a film rather than learnt, where."""

    template: Template
    half: Tensor | None = None  # (H, W), the half image that it was drawn on
    theta: Tensor | None = None  # (4,), its pose there

    @classmethod
    def drawn(cls, template: str | os.PathLike[str] | Annotation) -> "TemplateSource":
        """Cut the fine box of an annotation, or of a template.json, out of its film."""
        drawn = template if isinstance(template, Annotation) else load_annotation(str(template))
        if "centre" in drawn.landmarks:
            raise TemplateError(
                f"{drawn.film}: a landmark is called centre, as the middle of an area is; "
                "expected another name; rename it"
            )
        halves, side = split(read_isolated(drawn.film)), SIDES.index(drawn.side)
        half = View(halves.pixels[side], halves.to_film[side])
        cut, theta = cut_from_half(half, drawn)
        return cls(cut, half.pixels, theta)


@dataclass(frozen=True, slots=True, eq=False)
class ChosenSolver:
    """A solver, the name of its method, and the consistency check for what it finds."""

    method: str
    solver: Solver
    check: ConsistencyCheck | None = None


def check_method(name: str) -> None:
    """Raise SettingsError unless a method has this name."""
    if name not in (AUTO, *NEURAL, *SEARCHES):
        expected = ", ".join((AUTO, *NEURAL, *SEARCHES))
        raise SettingsError(f"method {name!r}; expected one of {expected}")


def choose_solver(
    method: str,
    source: TemplateSource,
    model: Model | None,
    *,
    paper: bool,
    device: str,
    settings: PaperSettings = DEFAULT_SETTINGS,
) -> ChosenSolver:
    """Return the solver of a method; "auto" needs networks that see the template's knee."""
    try:
        networks = None if model is None else _networks(source, model, device)
    except TemplateError:
        if method in NEURAL:
            raise
        networks = None
    if method in SEARCHES or networks is None:
        name = "search" if method == AUTO else method
        return ChosenSolver(
            name, _search(name, settings), None if networks is None else networks[1]
        )
    poses, check = networks
    if method == "neural":
        return ChosenSolver(method, network_solver(poses), check)
    refine: Refiner = partial(refine_anchored, levels=QUICK_LEVELS)
    if paper:
        refine = partial(adam, steps=settings.adam_steps, rate=settings.adam_rate)
    return ChosenSolver("neural+sharpen", refined_network_solver(poses, refine), check)


def _search(name: str, settings: PaperSettings) -> Solver:
    """Import a search when it is chosen, since most runs use none."""
    if name == "search":
        from kneematch.solvers.exhaustive_search import exhaustive_search

        return exhaustive_search
    if name == "grid":
        from kneematch.solvers.grid_search import grid_search

        return partial(
            grid_search,
            n_scales=settings.grid_scales,
            stride=settings.grid_stride,
            steps=settings.adam_steps,
            rate=settings.adam_rate,
        )
    from kneematch.solvers.sliding_window import sliding_window

    return sliding_window


def _networks(
    source: TemplateSource, model: Model, device: str
) -> tuple[PosePredictor, ConsistencyCheck]:
    """Return the networks that find the template, and their consistency check."""
    networks = model.networks(device)
    coarse_to_fine = model.coarse_template.size[1] / model.fine_template.size[1]
    if source.half is None or source.theta is None:
        return networks, ConsistencyCheck(networks, coarse_to_fine)
    transferred = transfer_template(networks, source.half.to(device), source.theta)
    return transferred, ConsistencyCheck(networks, coarse_to_fine, transferred.offset)
