"""Compare a trained model with the built-in one on its own films, without labels."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from kneematch.detection.detector import Detector
from kneematch.errors import TemplateError
from kneematch.geometry.pose import pose_from_vector
from kneematch.matching.annotation import Annotation
from kneematch.matching.energy import losses, robust_terms
from kneematch.solvers.problem import make_problem

FILMS: Final = 32
STANDARD_ERRORS: Final = 2.0  # by which a mean difference must exceed 0 to count


@dataclass(frozen=True, slots=True)
class Measure:
    """The mean over films of a measure of which less is better."""

    name: str
    trained: float
    built_in: float
    worse: bool  # the trained model, by more than chance


def compare_with_built_in(model: Path, drawn: Annotation, halves: Tensor) -> list[Measure]:
    """Measure both models' areas, before refinement, on halves (N, 2, H, W).

    Returns:
        The measures; none if the built-in networks see no knee where the template was drawn.
    """
    load = partial(Detector.load, method="neural", device=str(halves.device), check=False)
    try:
        built_in = load(template=drawn)
    except TemplateError:
        return []
    trained = load(model)
    one, other = (_measure(detector, built_in, halves) for detector in (trained, built_in))
    return [_compare(name, one[name], other[name]) for name in one]


@torch.no_grad()
def _measure(detector: Detector, drawn: Detector, halves: Tensor) -> dict[str, Tensor]:
    """Return the measures (N,) of a detector's areas against the template as it was drawn."""
    problem = make_problem(halves, detector.template)
    theta = pose_from_vector(detector.solver(problem).v, problem.height_ratio)  # (N, 2, 4)
    left, right = theta.unbind(1)
    apart = problem.image_aspect * (left[:, 2] - right[:, 2]).abs() / (left[:, 0] + right[:, 0])
    return {
        "mean loss": losses(robust_terms(halves, drawn.template), theta).mean(1),
        "mean difference of the sides' heights, in widths": apart,
    }


def _compare(name: str, trained: Tensor, built_in: Tensor) -> Measure:
    difference = trained - built_in
    error = difference.std() / len(difference) ** 0.5
    worse = bool(difference.mean() > STANDARD_ERRORS * error)  # False for a single film (NaN)
    return Measure(name, float(trained.mean()), float(built_in.mean()), worse)
