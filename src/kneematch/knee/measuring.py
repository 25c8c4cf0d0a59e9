"""Outlines and measures of detected knees: crops, outline network, outlines in film pixels.

The network's borders are smoothed by their uncertainty (Whittaker's smoother: Eilers, "A perfect
smoother", Analytical Chemistry 2003) and moved to the film's steepest gradient.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import solveh_banded
from scipy.ndimage import gaussian_filter1d, map_coordinates

from kneematch.films.annotation import find_plateau_margins
from kneematch.films.radiograph import Radiograph, average_blocks
from kneematch.knee.crop import CropPlace, cut
from kneematch.knee.detection import CORNERS, Detection
from kneematch.knee.knee_images import knee_images
from kneematch.knee.measure import Array, JointMeasures, Outlines, review_reasons
from kneematch.knee.metal import see_findings
from kneematch.knee.quality import (
    CUT,
    METAL,
    cut_by_edge,
    exposed_field,
    is_spacing_plausible,
)
from kneematch.models.locator import KneeLocation
from kneematch.models.outline_inference import ByteOutlineNetwork, cpu_outline_network
from kneematch.models.outlines import (
    JOINT_FRAME,
    LEG_FRAME,
    BorderEstimate,
    CropFrame,
    OutlineNetwork,
    load_network,
    locate,
    locate_sides,
    standardize,
)
from kneematch.sampling import axes_to_film, transform

POINTS: Final = 101  # points of a border, a hundredth of the plateau's width apart
OBSTACLES: Final = (CUT, METAL)  # reasons to review that forbid to measure
PLATEAU_SHARE: Final = 0.75  # plateau over area, where the template has no margins as landmarks
# The sides of the bones are known beyond these distances from the plateau, in plateau widths.
FEMUR_STARTS: Final = -0.16
TIBIA_STARTS: Final = 0.07
FINEST_STEP: Final = 1.25  # pixels of a film per pixel of a crop, to which films are reduced
MIN_PLATEAU_PX: Final = 16.0  # pixels of the crop; so narrow a plateau is then refused
MAX_SIDE_SD: Final = 0.1  # in plateau widths; less certain points of a side are left out
# In plateau widths: where a side, followed away from the joint, jumps outwards, it is followed no
# further, such as to the edge of the exposed field. It may jump inwards, behind the fibula's head.
SIDE_JUMP: Final = 0.15

SMOOTHNESS: Final = 30.0  # weight of squared second differences
SMALLEST_SD: Final = 0.5  # pixels
NO_WEIGHT: Final = 1e-6  # weight of columns beyond the plateau

# Lengths along the normals, in plateau widths
REACH: Final = 0.02  # how far from a border its edge is looked for
# Standard deviations of the edge's distance. The tibia's is smaller, since the rims of a tilted
# plateau are edges beside its floor. By lab/measure.py, 0.004 for both fits real crops a
# little better (0.52 instead of 0.54 %) and phantoms worse (0.12 instead of 0.10 %).
FEMUR_PRIOR: Final = 0.004
TIBIA_PRIOR: Final = 0.0025
STEPS: Final = 49  # places along a normal
BLUR: Final = 2.0  # standard deviation of the blur along a normal, in places
ENDS: Final = 0.05  # share of a border at either end over which displacements fade


class JointOnFilm(NamedTuple):
    """A knee whose outlines are looked for."""

    film: Radiograph  # with bright bones
    centre: Array  # (2,), roughly the middle of the tibial plateau, in film pixels
    across: Array  # (2,), from its left to its right end
    medial: str  # the side of the picture that is medial, "left", "right", or empty if not known


@cache
def outline_network(frame: CropFrame) -> OutlineNetwork | ByteOutlineNetwork:
    """Return the built-in outline network, ready to see crops of a frame on a CPU."""
    return cpu_outline_network(load_network(), frame)


def measure_knees(film: Radiograph, found: Sequence[Detection]) -> tuple[Detection, ...]:
    """Return the detections on a film with outlines and measures."""
    obstacles = [[why for why in knee.review_reasons if why in OBSTACLES] for knee in found]
    return _measured(film, found, obstacles)


def measure_placed_knees(film: Radiograph, placed: Sequence[Detection]) -> tuple[Detection, ...]:
    """Return knees that a reviewer placed with outlines and measures; they need no review.

    Whether a knee is cut by the film's edge or has metal in it is found out at its new place.
    """
    obstacles = [_obstacles(film, knee) for knee in placed]
    measured = _measured(film, placed, obstacles)
    return tuple(replace(knee, needs_review=False, reasons=()) for knee in measured)


def _obstacles(film: Radiograph, knee: Detection) -> list[str]:
    """Return which of CUT and METAL are true of an area."""
    is_cut = cut_by_edge(knee.to_film[None], exposed_field(film.pixels)).any()
    (x, y), across = _plateau(knee)
    width, angle = float(np.linalg.norm(across)), math.atan2(across[1], across[0])
    turns = -round(angle / (math.pi / 2))
    upright = angle + turns * math.pi / 2
    place = KneeLocation(float(x), float(y), width, upright, knee.mirrored, turns % 4)
    (findings,) = see_findings(knee_images(torch.from_numpy(film.pixels), [place]).pixels)
    return [reason for reason, true in {CUT: is_cut, METAL: findings.metal}.items() if true]


def _measured(
    film: Radiograph, found: Sequence[Detection], obstacles: Sequence[Sequence[str]]
) -> tuple[Detection, ...]:
    """Return detections with outlines and measures, all left out of one that has obstacles."""
    if not found:
        return ()
    outlines = find_outlines([_joint_on_film(film, knee) for knee in found])
    measured = []
    for knee, bones, why in zip(found, outlines, obstacles, strict=True):
        measures = JointMeasures.from_outlines(bones)
        reasons = review_reasons(bones, float(np.linalg.norm(_plateau(knee)[1])))
        if why or reasons:
            measures = measures.left_out((*why, *reasons)[0])
        review = knee.needs_review or bool(reasons)
        reasons = [*knee.reasons, *reasons]
        measured.append(
            replace(knee, measures=measures, needs_review=review, reasons=tuple(reasons))
        )
    return tuple(measured)


def _joint_on_film(film: Radiograph, found: Detection) -> JointOnFilm:
    if found.polarity == "negative":
        film = replace(film, pixels=1 - film.pixels)
    centre, across = _plateau(found)
    if not is_spacing_plausible(float(np.linalg.norm(across)), film.mm_per_px):
        film = replace(film, mm_per_px=None)  # no lengths in mm rather than wrong ones
    medial = "right" if found.side == "left" else "left"  # towards the other knee
    return JointOnFilm(film, centre, across, medial if found.side_known else "")


def _plateau(found: Detection) -> tuple[Array, Array]:
    """Return the middle (2,) of the plateau and the vector (2,) from its left to its right end.

    Left and right are those of the upright knee.
    """
    angle = np.radians(found.rotation_deg)
    direction = np.array([np.cos(angle), np.sin(angle)])
    margins = find_plateau_margins(found.landmarks)
    if margins is not None and margins[0] != margins[1]:
        one, other = np.array(margins)
        across = other - one
        return (one + other) / 2, across if across @ direction > 0 else -across
    return np.array(found.centre), PLATEAU_SHARE * found.width_px * direction


@torch.inference_mode()
def find_outlines(joints: Sequence[JointOnFilm]) -> list[Outlines]:
    """Return the outlines of knees, which the network sees together."""
    near, far = (
        [crop_place(joint.centre, joint.across, frame) for joint in joints]
        for frame in (JOINT_FRAME, LEG_FRAME)
    )
    seen = locate(_look(joints, near, JOINT_FRAME))
    sides = locate_sides(_look(joints, far, LEG_FRAME))
    return [
        _outlines(joint, near[k], BorderEstimate(*(each[k] for each in seen)), far[k], shafts)
        for k, (joint, shafts) in enumerate(zip(joints, zip(*sides, strict=True), strict=True))
    ]


def _outlines(
    joint: JointOnFilm,
    near: CropPlace,
    found: BorderEstimate,
    far: CropPlace,
    shafts: tuple[torch.Tensor, torch.Tensor],
) -> Outlines:
    """Return the outlines of one knee that were located in a crop of its joint and of its leg."""
    film = joint.film
    left, right = sorted(found.margins[:, 0].tolist())
    right = max(right, left + MIN_PLATEAU_PX)
    columns = np.arange(near.size[1]) + 0.5
    x = np.linspace(left, right, POINTS)
    lines, deviations = [], []
    positions = found.borders.numpy(), found.border_sd.numpy()
    for y, sd, bone_above in zip(*positions, (True, False), strict=True):
        smoothed = smooth(y, sd, between=(left, right))
        line = transform(near.pixel_map, np.stack([x, np.interp(x, columns, smoothed)], axis=1))
        width = near.step_px * (right - left)
        lines.append(move_to_edge(film.pixels, line, width, bone_above=bone_above))
        deviations.append(near.step_px * np.interp(x, columns, sd))
    (femur_line, tibia_line), (femur_sd, tibia_sd) = lines, deviations
    outlines = Outlines(
        femur_line, tibia_line, joint.medial, femur_sd, tibia_sd, mm_per_px=film.mm_per_px
    )
    femur, tibia = _sides(film, outlines, far, *(each.numpy() for each in shafts))
    return replace(outlines, femur_sides=femur, tibia_sides=tibia)


def crop_place(centre: Array, across: Array, frame: CropFrame) -> CropPlace:
    """Return the upright crop around the centre (2,) of a plateau, given its ends' vector (2,)."""
    across = across / frame.px  # along one pixel of the crop
    down = np.array([-across[1], across[0]])
    height, width = frame.size
    return CropPlace(frame.size, axes_to_film(width / 2 * across, height / 2 * down, centre))


def _look(
    joints: Sequence[JointOnFilm], places: Sequence[CropPlace], frame: CropFrame
) -> torch.Tensor:
    """Return the network's logits (N, OUTPUTS, H, W) of the crops of knees, which have a frame."""
    crops = [_cut(joint.film, place) for joint, place in zip(joints, places, strict=True)]
    logits: torch.Tensor = outline_network(frame)(standardize(torch.from_numpy(np.stack(crops))))
    return logits


def _cut(film: Radiograph, place: CropPlace) -> NDArray[np.float32]:
    """Return a crop; cut from a smaller film if that is quicker."""
    factor = int(place.step_px / FINEST_STEP)
    if factor > 1:
        corners = transform(place.to_film.numpy(), np.array(CORNERS))
        most = np.array(film.size[::-1]) - factor
        x, y = (corners.min(0) - factor).clip(0, most).astype(int)  # what is needed of the film
        right, bottom = np.maximum(corners.max(0).astype(int), (x, y)) + 2 * factor
        film = replace(film, pixels=average_blocks(film.pixels[y:bottom, x:right], factor))
        shrink = torch.tensor([[1, 0, -x], [0, 1, -y], [0, 0, factor]]).double() / factor
        place = replace(place, to_film=shrink @ place.to_film)
    return cut(film, place, "border")


def _sides(
    film: Radiograph, outlines: Outlines, place: CropPlace, x: Array, sd: Array
) -> Iterator[tuple[Array, Array]]:
    """Yield the left and right side of the femur, then the tibia's, as far as they are shown.

    x and sd (2, H) are the sides' positions in the crop at `place`, and their deviations.
    """
    rows = np.arange(place.size[0]) + 0.5
    points = transform(place.pixel_map, np.stack([x, np.broadcast_to(rows, x.shape)], axis=-1))
    on_film = ((points > 0) & (points < film.size[::-1])).all(-1)
    good = on_film & (sd * place.step_px < MAX_SIDE_SD * outlines.width_px)
    y = outlines.in_plateau_widths(points)[..., 1]
    across = outlines.tibia[-1] - outlines.tibia[0]
    for beyond, away in ((y < FEMUR_STARTS, -1), (y > TIBIA_STARTS, 1)):
        left, right = (
            until_jump(line[chosen][::away], outward)[::away]
            for line, chosen, outward in zip(points, good & beyond, (-across, across), strict=True)
        )
        yield left, right


def until_jump(side: Array, outward: Array) -> Array:
    """Return a side (R, 2), given from the joint on, up to where it jumps outwards.

    `outward` (2,) points away from the bone, and is as long as the plateau is wide.
    """
    steps = np.diff(side, axis=0) @ outward / (outward @ outward)
    jumps = np.flatnonzero(steps > SIDE_JUMP)
    return side[: jumps[0] + 1] if len(jumps) else side


def smooth(y: Array, sd: Array, *, between: tuple[float, float]) -> Array:
    """Return a border y (W,) in pixels, smoothed between the first and last x that count.

    A column of a large standard deviation sd (W,) follows its neighbours.
    """
    columns = np.arange(len(y)) + 0.5
    weight = 1 / np.maximum(sd.astype(np.float64), SMALLEST_SD) ** 2
    weight = np.where((columns >= between[0]) & (columns <= between[1]), weight, NO_WEIGHT)
    return _whittaker(y, weight)


def _whittaker(y: Array, weight: Array) -> Array:
    """Return the smoothed values of y (W,) with weights (W,)."""
    banded = np.zeros((3, len(y)))  # upper form: second, first and main diagonal
    for k, factor in enumerate((1.0, -2.0, 1.0)):
        for j, other in enumerate((1.0, -2.0, 1.0)):
            if j >= k:
                banded[2 - (j - k), j : len(y) - 2 + j] += SMOOTHNESS * factor * other
    banded[2] += weight
    return np.asarray(solveh_banded(banded, weight * y))


def move_to_edge(
    pixels: NDArray[np.float32], line: Array, width_px: float, *, bone_above: bool
) -> Array:
    """Return a border (K, 2) moved along its normals to where the film (H, W) is steepest.

    Places where the gradient is weak follow those where it is strong. The points (x, y) run from
    left to right, bones are bright, and `width_px` is the plateau's width.
    """
    along = np.gradient(line, axis=0)
    along /= np.maximum(np.linalg.norm(along, axis=1, keepdims=True), 1e-9)
    normals = np.stack([-along[:, 1], along[:, 0]], axis=1)  # towards the foot
    distance = np.linspace(-REACH, REACH, STEPS)
    x, y = np.moveaxis(line[:, None] + width_px * distance[:, None] * normals[:, None], -1, 0)
    profile = map_coordinates(pixels, [y - 0.5, x - 0.5], order=1, mode="nearest")
    rise = np.gradient(gaussian_filter1d(profile.astype(np.float64), BLUR, axis=1), axis=1)
    edge = np.clip(-rise if bone_above else rise, 0, None)
    prior = FEMUR_PRIOR if bone_above else TIBIA_PRIOR
    edge *= np.exp(-0.5 * (distance / prior) ** 2)
    strength = edge.sum(1)
    offset = (edge * distance).sum(1) / np.maximum(strength, 1e-9)
    weight = strength / max(float(np.median(strength)), 1e-9) + NO_WEIGHT
    ends = np.linspace(0, 1, len(line))
    fade = np.clip(np.minimum(ends, 1 - ends) / ENDS, 0, 1)
    moved = fade * _whittaker(offset, weight)
    return np.asarray(line + width_px * moved[:, None] * normals)
