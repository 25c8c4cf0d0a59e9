"""Which detections a person should look at, and why."""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from kneematch.detection.detection import CORNERS
from kneematch.geometry.pose import pose_matrix
from kneematch.geometry.sampling import resize, sample
from kneematch.geometry.view import transform
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

# On phantoms and on the labelled real films fewer than 1 in 25 good areas are beyond any of these,
# and on films without knees all are beyond one (benchmarks/review_flags.py).
HIGHEST_LOSS: Final = 0.3
HIGHEST_MISMATCH: Final = 0.5  # of the robust energy's, which counts fine structure
CERTAIN: Final = 0.25  # a mismatch so low that the network need not be asked again
# From where the network sees it, in widths of its template; a search goes by its own template.
FURTHEST: Final = 0.05
FURTHEST_SEARCHED: Final = 0.08
SCALES_APART: Final = 0.15  # logarithm of the sides' ratio
HEIGHTS_APART: Final = 0.35  # in widths of the area
BRIGHTER: Final = 0.38  # the brightest 2 % of an area than the brightest 10 %, over 10 % to 90 %
INNER: Final = 0.75  # of an area: the joint itself, without what was drawn around it
FLAT: Final = 1e-3  # the least contrast that is not rounding
GREYS_PX: Final = (96, 96)  # of an area, when its greys are counted

HIGH_ENERGY: Final = "high energy"
NO_KNEE: Final = "probably not a knee or not frontal"
DISAGREE: Final = "search and network disagree"
SIDES: Final = "sides disagree"
CUT: Final = "joint cut by the edge"
METAL: Final = "implant-like metal"
NEGATIVE: Final = "wrong polarity tag"  # a note: the place is none the worse for it
YES: Final = "yes"


@dataclass(frozen=True, slots=True, eq=False)
class Measures:
    """How well a template matches where it was found, and what speaks against that; (N, S)."""

    energy: Tensor  # (N,), the paper's, whatever was lowered
    loss: Tensor  # the paper's, of a side
    negative: Tensor  # bright and dark are the template's swapped
    mismatch: Tensor  # of the energy that was lowered
    apart: Tensor | None  # from where the network sees it; 0 where it was not asked
    scales: Tensor  # of the sides, apart
    heights: Tensor
    metal: Tensor

    def verdict(self, n: int, s: int, *, learnt: bool, cut: bool) -> tuple[str, str]:
        """`review` and `reason` of an area that a network has found, or another method."""
        furthest = FURTHEST if learnt else FURTHEST_SEARCHED
        far = self.apart is not None and bool(self.apart[n, s] > furthest)
        strange = not self.mismatch[n, s] <= HIGHEST_MISMATCH  # nor is what is not a number
        uneven = self.scales[n, s] > SCALES_APART or self.heights[n, s] > HEIGHTS_APART
        doubts = {
            HIGH_ENERGY: bool(self.loss[n, s] > HIGHEST_LOSS),
            NO_KNEE: strange or (far and learnt),
            DISAGREE: far and not learnt,
            SIDES: bool(uneven),
            CUT: cut,
            METAL: bool(self.metal[n, s] > BRIGHTER),
        }
        reasons = [reason for reason, doubt in doubts.items() if doubt]
        notes = [NEGATIVE] if self.negative[n, s] else []
        return YES if reasons else "", "; ".join(reasons + notes)


@torch.no_grad()
def measure(
    asked: Problem, theta: Tensor, look: ConsistencyCheck | None, *, learnt: bool
) -> Measures:
    """Measure areas at poses theta (N, S, 4), which networks have found, or another method."""
    term, *finer = asked.terms
    image_aspect, template = asked.image_aspect, term.template
    matrices = pose_matrix(theta, template.aspect, image_aspect).to(term.halves)
    patches = sample(term.halves, matrices, template.size)
    (paper,) = paper_terms(term.halves, template)
    loss = one_sided_loss(patches, template, paper.floor)
    mismatch = term.weight * one_sided_loss(patches, template, term.floor)
    mismatch = mismatch + losses(tuple(finer), theta.to(term.halves))
    negative = _negative(patches, paper)
    scales, heights = _sides_apart(theta, image_aspect)
    greys = resize(torch.where(negative[..., None, None], -patches, patches), GREYS_PX)
    measured = (
        loss.sum(-1) + symmetry_penalty(theta).to(loss),
        loss,
        negative,
        mismatch,
        None if look is None else _apart(look, term.halves, theta, mismatch, learnt=learnt),
        scales,
        heights,
        _brightest(greys),
    )
    return Measures(*(each if each is None else each.cpu() for each in measured))  # type: ignore[arg-type]


def _apart(
    look: ConsistencyCheck, halves: Tensor, theta: Tensor, mismatch: Tensor, *, learnt: bool
) -> Tensor:
    """How far from poses the network sees the knees, (N, S).

    Where networks found a good match, they are not asked again.
    """
    doubtful = ~(mismatch.amax(1) <= (CERTAIN if learnt else 0.0))
    apart = torch.zeros_like(mismatch)
    if doubtful.any():
        apart[doubtful] = look(halves[doubtful], theta[doubtful]).to(apart)
    return apart


def _negative(patches: Tensor, paper: Term) -> Tensor:
    """Where the loss is that of the negative, (N, S)."""
    image = paper.template.image
    whole, red, green = (
        correlation(patches[window], image[window], paper.floor)
        for window in (..., paper.template.red, paper.template.green)
    )
    # Where cost(-1) < cost(+1) of the loss: of two numbers, min and max add up to their sum.
    return 2 * whole + red + green < 0


def is_cut(to_film: Tensor, size: tuple[int, int]) -> bool:
    """Whether the joint, the inner part of an area that a map (3, 3) places, leaves a film."""
    corners = transform(to_film, INNER * torch.tensor(CORNERS))
    height, width = size
    return bool((corners < 0).any() or (corners > torch.tensor([width, height])).any())


def _sides_apart(theta: Tensor, image_aspect: float) -> tuple[Tensor, Tensor]:
    """How much the sides differ in scale and in height, (N, S) both; 0 of one side."""
    if theta.shape[1] == 1:
        return torch.zeros_like(theta[..., 0]), torch.zeros_like(theta[..., 0])
    left, right = theta.unbind(1)
    scales = (left[:, 0] / right[:, 0]).log().abs()
    widths = left[:, 0] + right[:, 0]  # the sum of half widths is the mean width
    heights = image_aspect * (left[:, 2] - right[:, 2]).abs() / widths
    return scales[:, None].expand(-1, 2), heights[:, None].expand(-1, 2)


def _brightest(patches: Tensor) -> Tensor:
    """How far the brightest 2 % stand out from bone, (N, S)."""
    levels = torch.tensor([0.1, 0.9, 0.98], device=patches.device)
    low, high, brightest = patches.flatten(-2).quantile(levels, dim=-1)
    apart: Tensor = (brightest - high) / (high - low).clamp(min=FLAT)
    return apart
