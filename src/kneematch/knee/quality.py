"""Measure how well each detection fits, and say which ones a person should review, and why."""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kneematch.devices import copy_back
from kneematch.knee.detection import CORNERS
from kneematch.models.two_stage import ConsistencyCheck
from kneematch.paper.energy import Problem, paper_problem
from kneematch.sampling import resize, transform

if TYPE_CHECKING:
    from kneematch.knee.knee_images import PreparedFilm, PreparedKnee

# Limits of the methods that work on halves, chosen on phantoms and on labelled real films;
# lab/review_flags.py counts the good and the bad areas that they flag.
MAX_LOSS: Final = 0.3
MAX_MISMATCH: Final = 0.5  # by the robust energy, which includes local contrast
WORST_MISMATCH: Final = 0.7  # above it there is no frontal knee
CERTAIN_MISMATCH: Final = 0.25  # so low that the consistency check is skipped
# Distance from where the network sees the knee, in widths of its template. A search finds its own
# template and may differ a little more.
MAX_NETWORK_DISTANCE: Final = 0.05
MAX_SEARCH_DISTANCE: Final = 0.08
# Where the locator saw a frontal knee, an unusual one is believed, but the worse it matches, the
# more closely must the network agree: by mismatch, the largest distance. Chosen on the real films
# that lab/accuracy.py reads, and on areas looked for in wrong places on the same films.
MAX_LOCATED_DISTANCE: Final = ((0.55, 0.7), (0.05, 0.025))
WORST_LOCATED_MISMATCH: Final = 0.95  # above it there is no frontal knee
CERTAIN_SCORE: Final = 0.5  # the locator is certain from this score on
MAX_SCALE_DIFFERENCE: Final = 0.15  # logarithm of the ratio of the two sides' scales
MAX_HEIGHT_DIFFERENCE: Final = 0.6  # in widths of the area
MAX_BRIGHTNESS: Final = 0.38  # the brightest 2 % over the brightest 10 %, per contrast of the area
JOINT_SHARE: Final = 0.75  # inner part of an area that must lie on the exposed part of the film
FIELD_STEP: Final = 4  # pixels between those that are looked at for the exposed part
EVEN: Final = 0.02  # range of an unexposed row or column, as a share of the film's
MIN_CONTRAST: Final = 1e-3  # anything below is rounding
# Width of a tibial plateau by the film's pixel spacing: an infant's has more, and that of a large
# person far from the detector has less. Not tuned: it is to find spacings in another unit.
PLATEAU_MM: Final = (20.0, 150.0)
HISTOGRAM_SIZE: Final = (96, 96)  # an area is resized to this before its grey levels are counted
# 90 % of the margin errors lie below these shares of the area's width, by mismatch: calibrated on
# phantoms and multiplied by 2.71, which labelled real films need (lab/review_flags.py).
# Above COMMON_MISMATCH there are too few knees to calibrate, and the values are a guess. Where the
# consistency check ran, the mismatch is capped there, and the error is at least ERROR_PER_DISTANCE
# times the distance from what the network saw.
EXPECTED_ERROR: Final = (
    (0.20, 0.24, 0.29, 0.42, 0.6, 0.7, 0.95),
    (0.014, 0.017, 0.022, 0.041, 0.041, 0.08, 0.4),
)
COMMON_MISMATCH: Final = 0.6
ERROR_PER_DISTANCE: Final = 3.0

ATYPICAL: Final = "atypical or poorly visible knee"
NO_KNEE: Final = "no frontal knee"
DISAGREE: Final = "search and network disagree"
SIDES_DIFFER: Final = "the two knees differ in size or height"
CUT: Final = "cut by the film's edge"
METAL: Final = "metal"
WRONG_SPACING: Final = "pixel spacing not plausible"
# Notes only: the position is not affected.
NEGATIVE: Final = "bright and dark are swapped"
WRONG_TAG: Final = "wrong polarity tag"


@dataclass(frozen=True, slots=True, eq=False)
class Quality:
    """Measures of the areas on a film with S sides, (S,) each; of N films, (N, S)."""

    energy: NDArray[np.float64]  # () or (N,), the paper's energy, whichever was minimised
    loss: NDArray[np.float64]  # the paper's one-sided loss
    negative: NDArray[np.bool_]  # bright and dark are swapped against the template
    mismatch: NDArray[np.float64]  # one-sided loss of the energy that was minimised
    neural: bool  # the poses come from networks
    network_distance: NDArray[np.float64] | None = None  # 0 where the check was skipped
    brightness: NDArray[np.float64] | None = None  # how far its brightest parts stand out from bone

    def of_film(self, film: int) -> "Quality":
        """Return the measures of one of N films."""
        values = (getattr(self, item.name) for item in fields(self))
        return Quality(*(v[film] if isinstance(v, np.ndarray) else v for v in values))

    def is_knee(self, side: int, score: float | None) -> bool:
        """Return whether what the locator saw is a frontal knee at all, on closer inspection.

        `score` says how certain the locator is; None if it was not used, and nothing is known.
        """
        if score is None:
            return True
        if score >= CERTAIN_SCORE:
            return bool(self.mismatch[side] <= WORST_LOCATED_MISMATCH)
        seen = self.network_distance is None or self.network_distance[side] <= MAX_NETWORK_DISTANCE
        return bool(seen and self.mismatch[side] <= WORST_MISMATCH)

    def doubts(self, side: int, score: float | None) -> list[str]:
        """Return the reasons to review an area that lie in itself; arguments as for `is_knee`."""
        mismatch = self.mismatch[side]
        limit = MAX_NETWORK_DISTANCE if self.neural else MAX_SEARCH_DISTANCE
        if score is None:
            strange = not mismatch <= MAX_MISMATCH  # NaN counts as a mismatch
            strange |= bool(self.loss[side] > MAX_LOSS)
            absent = not mismatch <= WORST_MISMATCH
        else:
            strange = score < CERTAIN_SCORE
            absent = not mismatch <= WORST_LOCATED_MISMATCH
            limit = float(np.interp(mismatch, *MAX_LOCATED_DISTANCE))
        far = self.network_distance is not None and bool(self.network_distance[side] > limit)
        doubts = {
            NO_KNEE: absent,
            ATYPICAL: not absent and (strange or (far and self.neural)),
            DISAGREE: far and not self.neural,
        }
        return [reason for reason, doubtful in doubts.items() if doubtful]

    def review(
        self, side: int, knee: "PreparedKnee", film: "PreparedFilm", *, is_cut: bool, uneven: bool
    ) -> tuple[bool, tuple[str, ...]]:
        """Return whether a person should look at an area, and the reasons and notes.

        `is_cut`: the joint leaves the exposed part of the film. `uneven`: the two knees differ too
        much, and this may be the wrong one.
        """
        metal, location = knee.metal, knee.location
        if metal is None:
            metal = self.brightness is not None and bool(self.brightness[side] > MAX_BRIGHTNESS)
        reasons = self.doubts(side, knee.score)
        reasons += [
            each for each, true in {SIDES_DIFFER: uneven, CUT: is_cut, METAL: metal}.items() if true
        ]
        notes = [WRONG_TAG if film.tagged else NEGATIVE] if self.negative[side] else []
        if location is not None and location.quarter_turns:
            notes.append(f"film turned by {90 * location.quarter_turns} degrees")
        more = [knee.laterality.conflict] if knee.laterality.conflict else []
        if location is not None and not is_spacing_plausible(location.width, film.mm_per_px):
            more.append(WRONG_SPACING)
        return bool(reasons or more), (*reasons, *notes, *more)

    def expected_error(self, side: int) -> float:
        """Return a margin error that 9 of 10 such areas stay below, in widths of the area."""
        mismatch, least = self.mismatch[side], 0.0
        if self.network_distance is not None:
            mismatch = np.minimum(mismatch, COMMON_MISMATCH)
            least = ERROR_PER_DISTANCE * self.network_distance[side]
        return float(np.maximum(np.interp(mismatch, *EXPECTED_ERROR), least))


@torch.no_grad()
def measure_quality(
    problem: Problem,
    theta: Tensor,
    check: ConsistencyCheck | None,
    *,
    neural: bool,
    located: bool = False,
) -> Quality:
    """Measure the areas at poses theta (N, S, 4), which networks found if `neural`.

    In views of located knees the brightness is not needed, since `find_metal` looks for metal.
    """
    match = paper_problem(problem.images, problem.template).match(theta)
    mismatch = problem.losses(theta.to(problem.images))
    found = {name: getattr(match, name) for name in ("energy", "loss", "negative")}
    found["mismatch"] = mismatch
    if not located:
        signs = 1 - 2 * match.negative[..., None, None].to(match.patches)
        found["brightness"] = _highlight(signs * match.patches)
    if check is not None:
        # Networks that found a good match on a film are not asked again.
        certain = mismatch.amax(1) <= (CERTAIN_MISMATCH if neural else 0.0)
        doubtful = (~certain).nonzero()[:, 0]
        distance = torch.zeros_like(mismatch)
        if len(doubtful):
            seen = check(problem.images[doubtful], theta[doubtful])
            distance[doubtful] = seen.to(distance)
        found["network_distance"] = distance
    arrays = dict(zip(found, copy_back(*found.values()), strict=True))
    return Quality(**arrays, neural=neural)


def exposed_field(pixels: NDArray[np.float32]) -> tuple[int, int, int, int]:
    """Return the exposed part (x0, y0, x1, y1) of a film (H, W): all but even borders."""
    height, width = pixels.shape
    few = pixels[::FIELD_STEP, ::FIELD_STEP].copy()  # contiguous: in half of the time
    dark, bright = np.percentile(few[::FIELD_STEP, ::FIELD_STEP], (1, 99))
    rows, columns = (np.flatnonzero(np.ptp(few, k) > EVEN * (bright - dark)) for k in (1, 0))
    if not rows.size or not columns.size:
        return 0, 0, width, height
    x0, y0, x1, y1 = (FIELD_STEP * int(k) for k in (columns[0], rows[0], columns[-1], rows[-1]))
    return x0, y0, min(x1 + FIELD_STEP, width), min(y1 + FIELD_STEP, height)


def cut_by_edge(to_film: NDArray[np.float64], fields: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which joints leave the exposed parts (N, 4) of their films, (N, S).

    `to_film` (N, S, 3, 3) maps the template's [-1, 1]^2 to film pixels.
    """
    points = transform(to_film, JOINT_SHARE * np.array(CORNERS))
    lowest, highest = fields[:, None, None, :2], fields[:, None, None, 2:]
    return np.asarray(((points < lowest) | (points > highest)).any((-2, -1)))


def sides_differ(to_film: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return on which films the two areas differ too much in size or height, (N,).

    `to_film` (N, S, 3, 3) maps the template's [-1, 1]^2 to film pixels; S is 1 or 2.
    """
    if to_film.shape[1] == 1:
        return np.zeros(len(to_film), np.bool_)
    down = to_film[..., :2, 1]  # (N, 2, 2), half the height of an area, downwards
    size = np.linalg.norm(to_film[..., :2, 0], axis=-1)  # (N, 2), half the width
    apart = to_film[:, 0, :2, 2] - to_film[:, 1, :2, 2]
    along = down.mean(1) / np.linalg.norm(down.mean(1), axis=-1, keepdims=True)
    step = np.abs((apart * along).sum(-1)) / size.sum(-1)  # in mean widths
    ratio = np.abs(np.log(size[:, 0] / size[:, 1]))
    return np.asarray((ratio > MAX_SCALE_DIFFERENCE) | (step > MAX_HEIGHT_DIFFERENCE))


def is_spacing_plausible(plateau_px: float, mm_per_px: float | None) -> bool:
    """Return whether a knee has the size of a knee, by the film's pixel spacing, if it has one."""
    low, high = PLATEAU_MM
    return mm_per_px is None or low <= plateau_px * mm_per_px <= high


def _highlight(patches: Tensor) -> Tensor:
    """Return how far the brightest 2 % of patches (N, S, h, w) stand out from bone, (N, S)."""
    levels = torch.tensor([0.1, 0.9, 0.98], device=patches.device)
    low, high, brightest = resize(patches, HISTOGRAM_SIZE).flatten(-2).quantile(levels, dim=-1)
    return (brightest - high) / (high - low).clamp(min=MIN_CONTRAST)  # type: ignore[no-any-return]
