"""Which minimiser a method's name stands for."""

import os
from dataclasses import dataclass
from importlib import import_module
from typing import Final

from torch import Tensor

from kneematch.errors import SettingsError, TemplateError
from kneematch.matching.annotation import Annotation, load_annotation
from kneematch.matching.template import Template, cut_from_half
from kneematch.minimisers.adam import adam
from kneematch.minimisers.carried import carried
from kneematch.minimisers.model import Model
from kneematch.minimisers.nearby import nearby
from kneematch.minimisers.neural import Poses, neural, sharpened
from kneematch.minimisers.problem import Minimiser
from kneematch.radiograph.read import read
from kneematch.radiograph.split import SIDES, split
from kneematch.radiograph.view import View

AUTO: Final = "auto"
NEURAL: Final = ("neural", "neural+sharpen")
WITHOUT_NETWORKS: Final = ("search", "grid", "sliding")  # each a function in a file of its name


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


def choose(
    method: str, sought: Sought, model: Model | None, *, paper: bool, device: str
) -> tuple[str, Minimiser]:
    """The minimiser of a method, and its name: auto's is that of what it stands for."""
    if method in WITHOUT_NETWORKS or model is None:
        return method, getattr(import_module(f"kneematch.minimisers.{method}"), method)
    try:
        ask = neural(_poses(sought, model, device))
    except TemplateError:
        if method != AUTO:
            raise
        return choose("search", sought, None, paper=paper, device=device)
    if method == "neural":
        return method, ask
    return "neural+sharpen", sharpened(ask, adam if paper else nearby)


def _poses(sought: Sought, model: Model, device: str) -> Poses:
    networks = model.networks(device)
    if sought.half is None or sought.theta is None:
        return networks
    return carried(networks, sought.half.to(device), sought.theta)
