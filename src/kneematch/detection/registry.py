"""Which minimiser a method's name stands for."""

import os
from dataclasses import dataclass
from typing import Final

from torch import Tensor

from kneematch.errors import SettingsError, TemplateError
from kneematch.geometry.split import SIDES, split
from kneematch.geometry.view import View
from kneematch.io.read import read
from kneematch.matching.annotation import Annotation, load_annotation
from kneematch.matching.template import Template, cut_from_half
from kneematch.networks.consistency_check import ConsistencyCheck
from kneematch.networks.model_file import Model
from kneematch.networks.template_transfer import transfer_template
from kneematch.networks.two_stage import PosePredictor, network_solver, refined_network_solver
from kneematch.solvers.adam import adam
from kneematch.solvers.anchored_refinement import refine_anchored
from kneematch.solvers.problem import Solver

AUTO: Final = "auto"
NEURAL: Final = ("neural", "neural+sharpen")
WITHOUT_NETWORKS: Final = ("search", "grid", "sliding")


@dataclass(frozen=True, slots=True, eq=False)
class Sought:
    """A template and, if it was drawn on a film and not learnt, where."""

    template: Template
    half: Tensor | None = None  # (H, W)
    theta: Tensor | None = None  # (4,), the template's pose in its half


def check_method(name: str) -> None:
    """Refuse a name that stands for nothing."""
    if name not in (AUTO, *NEURAL, *WITHOUT_NETWORKS):
        expected = ", ".join((AUTO, *NEURAL, *WITHOUT_NETWORKS))
        raise SettingsError(f"method {name!r}; expected one of {expected}")


def own_template(model: Model) -> Sought:
    """What a model was trained to find."""
    return Sought(model.fine_template)


def drawn_template(template: str | os.PathLike[str] | Annotation) -> Sought:
    """The fine box of an annotation, or of a template.json."""
    drawn = template if isinstance(template, Annotation) else load_annotation(str(template))
    if "centre" in drawn.landmarks:
        raise TemplateError(
            f"{drawn.film}: a landmark is called centre, as the middle of an area is; "
            "expected another name; rename it"
        )
    halves, side = split(read(drawn.film)), SIDES.index(drawn.side)
    half = View(halves.pixels[side], halves.to_film[side])
    cut, theta = cut_from_half(half, drawn)
    return Sought(cut, half.pixels, theta)


@dataclass(frozen=True, slots=True, eq=False)
class Chosen:
    """A way to find a template, and who is asked about what it found."""

    method: str
    minimiser: Solver
    look: ConsistencyCheck | None = None


def choose(method: str, sought: Sought, model: Model | None, *, paper: bool, device: str) -> Chosen:
    """The minimiser of a method; auto is neural+sharpen if networks see the template's knee."""
    try:
        known = None if model is None else _known(sought, model, device)
    except TemplateError:
        if method in NEURAL:
            raise
        known = None
    if method in WITHOUT_NETWORKS or known is None:
        name = "search" if method == AUTO else method
        minimiser = _without_networks(name)
        return Chosen(name, minimiser, None if known is None else known[1])
    poses, look = known
    if method == "neural":
        return Chosen(method, network_solver(poses), look)
    return Chosen(
        "neural+sharpen", refined_network_solver(poses, adam if paper else refine_anchored), look
    )


def _without_networks(name: str) -> Solver:
    """Import a solver when it is chosen: two of the three are rarely used."""
    if name == "search":
        from kneematch.solvers.exhaustive_search import exhaustive_search

        return exhaustive_search
    if name == "grid":
        from kneematch.solvers.grid_search import grid_search

        return grid_search
    from kneematch.solvers.sliding_window import sliding_window

    return sliding_window


def _known(sought: Sought, model: Model, device: str) -> tuple[PosePredictor, ConsistencyCheck]:
    """What a model's networks know of a template."""
    networks = model.networks(device)
    larger = model.coarse_template.size[1] / model.fine_template.size[1]
    if sought.half is None or sought.theta is None:
        return networks, ConsistencyCheck(networks, larger)
    along = transfer_template(networks, sought.half.to(device), sought.theta)
    return along, ConsistencyCheck(networks, larger, along.offset)
