"""Measure how well each detection fits, and say which ones a person should review, and why."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kneematch.devices import copy_back
from kneematch.knee.detection import CORNERS, Detection
from kneematch.models.two_stage import ConsistencyCheck
from kneematch.paper.energy import Problem, paper_problem
from kneematch.sampling import transform

Array = NDArray[np.float64]

if TYPE_CHECKING:
    from kneematch.knee.knee_images import PreparedFilm, PreparedKnee
    from kneematch.models.locator import KneeLocation

# Other parts of the body: limits of the mismatch by the robust energy, with local contrast, and of
# how far parts match back. Right areas of heads, feet and chests match back within 0.006 to 0.04 of
# the area's size, and areas in wrong places, by chance, within 0.04 to 0.08.
MAX_MISMATCH: Final = 0.5
MAX_MATCH_BACK: Final = 0.04
LEAST_MATCH_BACK: Final = 0.02  # a run in which all areas match well flags none below
FEWEST_AREAS: Final = 10  # areas that the statistics of a run need
WORST_MISMATCH: Final = 0.7  # above it there is no frontal knee
CERTAIN_MISMATCH: Final = 0.25  # so low that the consistency check is skipped
# Distance from where the network sees the knee, in widths of its template.
MAX_NETWORK_DISTANCE: Final = 0.05
# Where the locator saw a frontal knee, an unusual one is believed, but the worse it matches, the
# more closely must the network agree: by mismatch, the largest distance. Chosen on the real films
# that lab/accuracy.py reads, and on areas looked for in wrong places on the same films.
MAX_LOCATED_DISTANCE: Final = ((0.55, 0.7), (0.05, 0.025))
SEARCH_SLACK: Final = 1.6  # a search may differ so many times as much from what the network sees
WORST_LOCATED_MISMATCH: Final = 0.95  # above it there is no frontal knee
CERTAIN_SCORE: Final = 0.5  # the locator is certain from this score on
LEAST_AGAIN: Final = 0.25  # score of a knee in a closer look
MAX_SCALE_DIFFERENCE: Final = 0.15  # logarithm of the ratio of the two sides' scales
MAX_HEIGHT_DIFFERENCE: Final = 0.6  # in widths of the area
JOINT_SHARE: Final = (0.65, 0.25)  # inner part (x, y) of an area that must lie on the exposed film
FIELD_STEP: Final = 4  # pixels between those that are looked at for the exposed part
EVEN: Final = 0.02  # range of an unexposed row or column, as a share of the film's
# A second leg beside a single knee: a strip of LEG_WIDTHS plateau widths, LEG_PLACES away from the
# knee and LEG_HEIGHT high, that has nearly the knee's brightness. Of 117 films of both knees 116
# have it, of 78 films of one knee none, and half of those with the same knee from the side.
LEG_WIDTHS: Final = 0.7
LEG_PLACES: Final = (1.1, 3.0)
LEG_HEIGHT: Final = 1.2
LEG_BRIGHTNESS: Final = 0.75
# Width of a tibial plateau by the film's pixel spacing: an adult's, a little magnified, and
# one of any person. Beyond the latter, the spacing is not used.
ADULT_MM: Final = (60.0, 105.0)
PLATEAU_MM: Final = (40.0, 130.0)
# 90 % of the margin errors lie below these shares of the area's width, by mismatch: calibrated on
# phantoms and multiplied by 2.71, which labelled real films need (lab/accuracy.py).
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
DISAGREE: Final = "search and network disagree"
POOR: Final = "the area matches the template poorly"
NO_MATCH: Final = "parts of the area do not match the template"
OUTLIER: Final = "the area matches worse than others of the run"
AREAS_DIFFER: Final = "the two areas differ in size or height"
NO_PARTNER: Final = "the other knee was seen, but not found"
SIDES_DIFFER: Final = "the two knees differ in size or height"
MORE_KNEES: Final = "more knees are visible than were found"
CUT: Final = "cut by the film's edge"
METAL: Final = "metal"
GROWTH_PLATES: Final = "growth plates"
WRONG_SPACING: Final = "pixel spacing not plausible"
# Notes only: the position is not affected.
NEGATIVE: Final = "bright and dark are swapped"
WRONG_TAG: Final = "wrong polarity tag"
SECOND_LEG: Final = "another leg is visible, but no second knee found"


@dataclass(frozen=True, slots=True)
class Quality:
    """How well one area fits its knee."""

    energy: float  # the paper's energy of the film, whichever was minimised
    loss: float  # the paper's one-sided loss
    negative: bool  # bright and dark are swapped against the template
    mismatch: float  # one-sided loss of the energy that was minimised
    network_distance: float | None  # 0 where the check was skipped; None without a check
    neural: bool  # the pose comes from networks

    def is_knee(self, knee: "PreparedKnee") -> bool:
        """Return whether what the locator saw is a frontal knee at all, on closer inspection."""
        location = knee.location
        if location is None:  # another part, which the locator does not know
            return True
        if location.distinct or location.score >= CERTAIN_SCORE:
            return self.mismatch <= WORST_LOCATED_MISMATCH
        seen = self.network_distance is None or self.network_distance <= MAX_NETWORK_DISTANCE
        return seen and self.mismatch <= WORST_MISMATCH

    def doubts(self, knee: "PreparedKnee") -> list[str]:
        """Return the reasons to review an area that lie in itself."""
        location = knee.location
        if location is None:
            return _true({POOR: not self.mismatch <= MAX_MISMATCH})  # NaN counts as a mismatch
        again = location.seen_again
        unsure = not location.distinct and max(location.score, again) < CERTAIN_SCORE
        strange = unsure or again < LEAST_AGAIN or not self.mismatch <= WORST_LOCATED_MISMATCH
        limit = float(np.interp(self.mismatch, *MAX_LOCATED_DISTANCE))
        limit *= 1 if self.neural else SEARCH_SLACK
        far = self.network_distance is not None and self.network_distance > limit
        return _true(
            {
                ATYPICAL: strange or (far and self.neural),
                DISAGREE: far and not self.neural,
            }
        )

    def review(
        self, knee: "PreparedKnee", film: "PreparedFilm", *, is_cut: bool, uneven: bool
    ) -> tuple[bool, tuple[str, ...]]:
        """Return whether a person should look at an area, and the reasons and notes.

        `is_cut`: the joint leaves the exposed part of the film. `uneven`: the two knees differ too
        much, and this may be the wrong one.
        """
        location, conflict = knee.location, knee.laterality.conflict
        turns = 0 if location is None else location.quarter_turns
        plausible = location is None or is_spacing_plausible(
            location.width, film.mm_per_px, ADULT_MM
        )
        reasons = self.doubts(knee)
        differ = AREAS_DIFFER if location is None else SIDES_DIFFER
        reasons += _true({differ: uneven, CUT: is_cut})
        seen = knee.findings
        reasons += _true({METAL: seen.metal, GROWTH_PLATES: seen.growth_plates})
        turned, alone = f"film turned by {90 * turns} degrees", len(film.knees) == 1
        notes = {
            WRONG_TAG if film.tagged else NEGATIVE: self.negative,
            turned: turns > 0 and not alone,
            SECOND_LEG: film.second_leg and not self.negative,
        }
        more = _true(
            {
                MORE_KNEES: location is not None and location.more,
                turned: turns > 0 and alone,  # other joints fit when turned
                conflict: bool(conflict),
                WRONG_SPACING: not plausible,
            }
        )
        return bool(reasons or more), (*reasons, *_true(notes), *more)

    def expected_error(self) -> float:
        """Return a margin error that 9 of 10 such areas of knees stay below, in their widths."""
        mismatch, least = self.mismatch, 0.0
        if self.network_distance is not None:
            mismatch = np.minimum(mismatch, COMMON_MISMATCH)
            least = ERROR_PER_DISTANCE * self.network_distance
        return float(np.maximum(np.interp(mismatch, *EXPECTED_ERROR), least))


def _true(statements: Mapping[str, bool]) -> list[str]:
    return [statement for statement, is_true in statements.items() if is_true]


@torch.no_grad()
def measure_quality(
    problem: Problem,
    theta: Tensor,
    check: ConsistencyCheck | None,
    *,
    neural: bool,
) -> list[list[Quality]]:
    """Measure the areas at poses theta (N, S, 4), which networks found if `neural`."""
    match = paper_problem(problem.images, problem.template).match(theta)
    mismatch = problem.losses(theta.to(problem.images))
    distance = torch.zeros_like(mismatch)
    if check is not None:
        # Networks that found a good match on a film are not asked again.
        certain = mismatch.amax(1) <= (CERTAIN_MISMATCH if neural else 0.0)
        doubtful = (~certain).nonzero()[:, 0]
        if len(doubtful):
            seen = check(problem.images[doubtful], theta[doubtful])
            distance[doubtful] = seen.to(distance)
    energy = match.energy[:, None].expand_as(match.loss)
    columns = copy_back(energy, match.loss, match.negative, mismatch, distance)
    return [
        [
            Quality(f, loss, negative, worse, None if check is None else away, neural)
            for f, loss, negative, worse, away in zip(*film, strict=True)
        ]
        for film in zip(*(column.tolist() for column in columns), strict=True)
    ]


def judge_match(
    area: Detection, limit: float = MAX_MATCH_BACK, reason: str = NO_MATCH
) -> Detection:
    """Return an area of another part than the knee, flagged if it matches back too badly.

    A flag of the same reason that it had before is taken back.
    """
    reasons = tuple(each for each in area.reasons if each != reason)
    if NO_MATCH not in reasons and area.match_back is not None and not area.match_back <= limit:
        reasons = (*reasons, reason)  # NaN counts as a mismatch
    needs_review = any(each not in (CUT, NEGATIVE, WRONG_TAG) for each in reasons)
    return replace(area, reasons=reasons, needs_review=needs_review)


def run_limit(distances: Sequence[float]) -> float:
    """Return the limit of `match_back` that all areas of a run give: five robust deviations."""
    if len(distances) < FEWEST_AREAS:
        return MAX_MATCH_BACK
    median = float(np.median(distances))
    spread = 1.4826 * float(np.median(np.abs(np.array(distances) - median)))
    return min(max(median + 5 * spread, LEAST_MATCH_BACK), MAX_MATCH_BACK)


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


def shows_second_leg(
    pixels: NDArray[np.float32], knee: "KneeLocation", field: tuple[int, int, int, int]
) -> bool:
    """Return whether another leg stands beside the only knee of an upright film (H, W).

    `field` is the exposed part of the film.
    """
    (x0, y0, x1, y1), width = field, knee.width
    reach = LEG_HEIGHT / 2 * width
    top, bottom = max(round(knee.y - reach), y0), min(round(knee.y + reach), y1)
    exposed = pixels[y0 : y1 : FIELD_STEP**2, x0 : x1 : FIELD_STEP**2]
    strip = pixels[top : bottom : 2 * FIELD_STEP, x0:x1:FIELD_STEP]
    if not strip.size:
        return False
    columns = np.median(strip, 0) - np.percentile(exposed, 3)
    places = x0 + FIELD_STEP * (np.arange(len(columns)) + 0.5)
    across = LEG_WIDTHS / 2 * width
    away = np.linspace(*LEG_PLACES, 20) * width
    middles = np.concatenate([knee.x - away, knee.x + away])
    middles = middles[(middles - across >= x0) & (middles + across <= x1)]
    total = np.concatenate([[0.0], np.cumsum(columns)])

    def mean(middle: Array) -> Array:
        first, last = (np.searchsorted(places, middle + end) for end in (-across, across))
        return np.asarray((total[last] - total[first]) / np.maximum(last - first, 1))

    return bool((mean(middles) > LEG_BRIGHTNESS * mean(np.array([knee.x]))).any())


def cut_by_edge(
    to_film: NDArray[np.float64], field: tuple[int, int, int, int]
) -> NDArray[np.bool_]:
    """Return which joints (S,) leave the exposed part of their film.

    `to_film` (S, 3, 3) maps the template's [-1, 1]^2 to film pixels.
    """
    points = transform(to_film, np.array(CORNERS) * JOINT_SHARE)
    return np.asarray(((points < field[:2]) | (points > field[2:])).any((-2, -1)))


def sides_differ(to_film: NDArray[np.float64]) -> bool:
    """Return whether the two areas of a film differ too much in size or height.

    `to_film` (S, 3, 3) maps the template's [-1, 1]^2 to film pixels; S is 1 or 2.
    """
    if len(to_film) == 1:
        return False
    down = to_film[:, :2, 1].mean(0)  # half the height of an area, downwards
    size = np.linalg.norm(to_film[:, :2, 0], axis=-1)  # (2,), half the width
    apart = to_film[0, :2, 2] - to_film[1, :2, 2]
    step = abs(apart @ down) / np.linalg.norm(down) / size.sum()  # in mean widths
    ratio = abs(np.log(size[0] / size[1]))
    return bool(ratio > MAX_SCALE_DIFFERENCE or step > MAX_HEIGHT_DIFFERENCE)


def is_spacing_plausible(
    plateau_px: float, mm_per_px: float | None, limits: tuple[float, float] = PLATEAU_MM
) -> bool:
    """Return whether a knee has the size of a knee, by the film's pixel spacing, if it has one."""
    low, high = limits
    return mm_per_px is None or low <= plateau_px * mm_per_px <= high
