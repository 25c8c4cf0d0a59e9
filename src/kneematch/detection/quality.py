"""Measure how well each detection fits, and say which ones a person should review, and why."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kneematch.detection.detection import CORNERS
from kneematch.geometry.pose import pose_matrix
from kneematch.geometry.sampling import resize, sample
from kneematch.matching.energy import (
    Term,
    correlation,
    losses,
    one_sided_loss,
    paper_terms,
    symmetry_penalty,
)
from kneematch.networks.consistency_check import ConsistencyCheck
from kneematch.solvers.problem import Problem

# Thresholds. On phantoms and on labelled real films fewer than 1 in 25 good areas exceed any of
# them, and on films without knees every area exceeds at least one (benchmarks/review_flags.py).
MAX_LOSS: Final = 0.3
MAX_MISMATCH: Final = 0.5  # of the robust energy, which includes local contrast
CERTAIN_MISMATCH: Final = 0.25  # so low that the consistency check is skipped
# Distance from where the network sees the knee, in widths of its template. A search finds its own
# template and may differ a little more.
MAX_NETWORK_DISTANCE: Final = 0.05
MAX_SEARCH_DISTANCE: Final = 0.08
MAX_SCALE_DIFFERENCE: Final = 0.15  # logarithm of the ratio of the two sides' scales
MAX_HEIGHT_DIFFERENCE: Final = 0.35  # in widths of the area
MAX_BRIGHTNESS: Final = 0.38  # the brightest 2 % over the brightest 10 %, per contrast of the area
JOINT_SHARE: Final = 0.75  # inner part of an area that must lie on the film
MIN_CONTRAST: Final = 1e-3  # anything below is rounding
HISTOGRAM_SIZE: Final = (96, 96)  # an area is resized to this before its grey levels are counted

HIGH_ENERGY: Final = "high energy"
NO_KNEE: Final = "probably not a knee or not frontal"
DISAGREE: Final = "search and network disagree"
SIDES_DIFFER: Final = "sides disagree"
CUT: Final = "joint cut by the edge"
METAL: Final = "implant-like metal"
NEGATIVE: Final = "wrong polarity tag"  # a note only: the position is not affected
YES: Final = "yes"


@dataclass(frozen=True, slots=True, eq=False)
class Quality:
    """Measures of areas on N films with S sides each; arrays are (N, S) unless noted."""

    energy: NDArray[np.float64]  # (N,), the paper's energy, whichever was minimised
    loss: NDArray[np.float64]  # the paper's one-sided loss
    negative: NDArray[np.bool_]  # bright and dark are swapped against the template
    mismatch: NDArray[np.float64]  # one-sided loss of the energy that was minimised
    network_distance: NDArray[np.float64] | None  # 0 where the check was skipped
    scale_difference: NDArray[np.float64]
    height_difference: NDArray[np.float64]
    brightness: NDArray[np.float64]
    neural: bool  # the poses come from networks

    def review(self, film: int, side: int, *, cut: bool) -> tuple[str, str]:
        """Return `review` ("yes" or empty) and `reason` of one area."""
        at = film, side
        limit = MAX_NETWORK_DISTANCE if self.neural else MAX_SEARCH_DISTANCE
        far = self.network_distance is not None and bool(self.network_distance[at] > limit)
        strange = not self.mismatch[at] <= MAX_MISMATCH  # NaN counts as a mismatch
        uneven = (
            self.scale_difference[at] > MAX_SCALE_DIFFERENCE
            or self.height_difference[at] > MAX_HEIGHT_DIFFERENCE
        )
        doubts = {
            HIGH_ENERGY: self.loss[at] > MAX_LOSS,
            NO_KNEE: strange or (far and self.neural),
            DISAGREE: far and not self.neural,
            SIDES_DIFFER: uneven,
            CUT: cut,
            METAL: self.brightness[at] > MAX_BRIGHTNESS,
        }
        reasons = [reason for reason, doubtful in doubts.items() if doubtful]
        notes = [NEGATIVE] if self.negative[at] else []
        return YES if reasons else "", "; ".join(reasons + notes)


@torch.no_grad()
def measure_quality(
    problem: Problem, theta: Tensor, check: ConsistencyCheck | None, *, neural: bool
) -> Quality:
    """Measure the areas at poses theta (N, S, 4).

    Args:
        problem: the films and the template.
        theta: poses in the half images.
        check: the consistency check; None leaves it out.
        neural: whether networks found the poses.
    """
    term, *others = problem.terms
    template, image_aspect = term.template, problem.image_aspect
    matrices = pose_matrix(theta, template.aspect, image_aspect).to(term.halves)
    patches = sample(term.halves, matrices, template.size)
    (paper,) = paper_terms(term.halves, template)
    loss = one_sided_loss(patches, template, paper.floor)
    mismatch = term.weight * one_sided_loss(patches, template, term.floor)
    mismatch = mismatch + losses(tuple(others), theta.to(term.halves))
    negative = _is_negative(patches, paper)
    positive = torch.where(negative[..., None, None], -patches, patches)
    distance = None
    if check is not None:
        distance = _network_distance(check, term.halves, theta, mismatch, neural=neural)
    scale_difference, height_difference = _side_differences(theta, image_aspect)
    return Quality(
        energy=_array(loss.sum(-1) + symmetry_penalty(theta).to(loss)),
        loss=_array(loss),
        negative=_array(negative),
        mismatch=_array(mismatch),
        network_distance=None if distance is None else _array(distance),
        scale_difference=_array(scale_difference),
        height_difference=_array(height_difference),
        brightness=_array(_highlight(resize(positive, HISTOGRAM_SIZE))),
        neural=neural,
    )


def cut_by_edge(to_film: NDArray[np.float64], film_sizes: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which joints leave their film, (N, S).

    Args:
        to_film: (N, S, 3, 3), from the template's [-1, 1]^2 to film pixels.
        film_sizes: (N, 2), (height, width) of the films.
    """
    corners = JOINT_SHARE * np.array(CORNERS)
    points = corners @ to_film[..., :2, :2].swapaxes(-1, -2) + to_film[..., None, :2, 2]
    largest = film_sizes[:, None, None, ::-1]  # (x, y)
    return np.asarray(((points < 0) | (points > largest)).any((-2, -1)))


def _array(values: Tensor) -> NDArray[Any]:
    array: NDArray[Any] = values.cpu().numpy()
    return array


def _network_distance(
    check: ConsistencyCheck, halves: Tensor, theta: Tensor, mismatch: Tensor, *, neural: bool
) -> Tensor:
    """Return how far from the poses the network sees the knees, (N, S).

    Skipped, and 0, for films on which networks found a good match themselves.
    """
    doubtful = ~(mismatch.amax(1) <= (CERTAIN_MISMATCH if neural else 0.0))
    distance = torch.zeros_like(mismatch)
    if doubtful.any():
        distance[doubtful] = check(halves[doubtful], theta[doubtful]).to(distance)
    return distance


def _is_negative(patches: Tensor, paper: Term) -> Tensor:
    """Return where the loss is that of the image negative, (N, S)."""
    image = paper.template.image
    whole, red, green = (
        correlation(patches[window], image[window], paper.floor)
        for window in (..., paper.template.red, paper.template.green)
    )
    # cost(-1) < cost(+1) in one_sided_loss: min and max of two numbers add up to their sum.
    return 2 * whole + red + green < 0


def _side_differences(theta: Tensor, image_aspect: float) -> tuple[Tensor, Tensor]:
    """Return how much the sides differ in scale and in height, both (N, S); 0 for one side."""
    if theta.shape[1] == 1:
        return torch.zeros_like(theta[..., 0]), torch.zeros_like(theta[..., 0])
    left, right = theta.unbind(1)
    scale = (left[:, 0] / right[:, 0]).log().abs()
    mean_width = left[:, 0] + right[:, 0]  # scales are half widths
    height = image_aspect * (left[:, 2] - right[:, 2]).abs() / mean_width
    return scale[:, None].expand(-1, 2), height[:, None].expand(-1, 2)


def _highlight(patches: Tensor) -> Tensor:
    """Return how far the brightest 2 % of patches (N, S, h, w) stand out from bone, (N, S)."""
    levels = torch.tensor([0.1, 0.9, 0.98], device=patches.device)
    low, high, brightest = patches.flatten(-2).quantile(levels, dim=-1)
    return (brightest - high) / (high - low).clamp(min=MIN_CONTRAST)  # type: ignore[no-any-return]
