"""Outlines and measures of detected knees: crops, outline network, outlines in film pixels."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F

from kneematch.films.annotation import find_plateau_margins
from kneematch.films.radiograph import Radiograph
from kneematch.knee.crop import Placed, cut
from kneematch.knee.detection import Detection
from kneematch.knee.knee_images import knee_images
from kneematch.knee.measure import JointMeasures, doubts, measure_outlines
from kneematch.knee.metal import find_metal
from kneematch.knee.outlines import Array, Outlines
from kneematch.knee.quality import (
    CUT,
    METAL,
    NO_KNEE,
    cut_by_edge,
    exposed_field,
    is_spacing_plausible,
)
from kneematch.knee.refinement import move_to_edge, smooth
from kneematch.models.locator import KneeLocation
from kneematch.models.outlines import (
    JOINT_FRAME,
    LEG_FRAME,
    BorderEstimate,
    CropFrame,
    OutlineNetwork,
    load_network,
    locate,
    prepare_for_cpu,
    standardize,
)
from kneematch.sampling import axes_to_film, transform

POINTS: Final = 101  # of a border, so that they lie a hundredth of the plateau's width apart
OBSTACLES: Final = (NO_KNEE, CUT, METAL)  # reasons to review that forbid to measure
PLATEAU_SHARE: Final = 0.75  # plateau over area, where the template has no margins as landmarks
# The sides of the bones are known beyond these distances from the plateau, in plateau widths.
FEMUR_STARTS: Final = -0.16
TIBIA_STARTS: Final = 0.07
FINEST_STEP: Final = 1.5  # pixels of a film per pixel of a crop, to which films are reduced
MIN_PLATEAU_PX: Final = 16.0  # of the crop; so narrow a plateau is then refused
MAX_SIDE_SD: Final = 0.03  # in plateau widths; a side that is less certain ends there


@cache
def outline_network(path: str | None = None) -> OutlineNetwork:
    """Return the outline network of a file, or the built-in one, ready for a CPU."""
    return prepare_for_cpu(load_network(path))


def measure_knees(
    film: Radiograph, found: Sequence[Detection], network: OutlineNetwork | None = None
) -> tuple[Detection, ...]:
    """Return the detections on a film with outlines and measures.

    Args:
        film: the film on which the knees were detected.
        found: the knees.
        network: default: the built-in one.
    """
    network = outline_network() if network is None else network
    return tuple(_measured(film, knee, network) for knee in found)


def measure_placed_knees(
    film: Radiograph, placed: Sequence[Detection], network: OutlineNetwork
) -> tuple[Detection, ...]:
    """Return knees that a reviewer placed with outlines and measures; they need no review.

    Whether a knee is cut by the film's edge or has metal in it is found out at its new place.
    """
    flagged = [
        replace(knee, needs_review=True, reasons=tuple(_obstacles(film, knee))) for knee in placed
    ]
    measured = measure_knees(film, flagged, network)
    return tuple(replace(knee, needs_review=False, reasons=()) for knee in measured)


def _obstacles(film: Radiograph, knee: Detection) -> list[str]:
    """Return which of CUT and METAL are true of an area."""
    is_cut = cut_by_edge(knee.to_film[None, None], np.array([exposed_field(film.pixels)])).any()
    (x, y), across = _plateau(knee)
    width, angle = float(np.linalg.norm(across)), math.atan2(across[1], across[0])
    turns = -round(angle / (math.pi / 2))
    upright = angle + turns * math.pi / 2
    place = KneeLocation(float(x), float(y), width, upright, knee.mirrored, turns % 4)
    (metal,) = find_metal(knee_images(torch.from_numpy(film.pixels), [place]).pixels)
    return [reason for reason, true in {CUT: is_cut, METAL: metal}.items() if true]


def _measured(film: Radiograph, found: Detection, network: OutlineNetwork) -> Detection:
    if found.polarity == "negative":
        film = replace(film, pixels=1 - film.pixels)
    centre, across = _plateau(found)
    if not is_spacing_plausible(float(np.linalg.norm(across)), film.mm_per_px):
        film = replace(film, mm_per_px=None)  # no lengths in mm rather than wrong ones
    medial = "right" if found.side == "left" else "left"  # towards the other knee
    outlines = find_outlines(film, centre, across, network, medial=medial)
    measures = measure_outlines(outlines)
    obstacles = [reason for reason in found.review_reasons if reason in OBSTACLES]
    reasons = doubts(outlines, float(np.linalg.norm(across)))
    if obstacles or reasons:
        first = (obstacles or reasons)[0]
        measures = {
            name: replace(each, value=None, sd=None, reason=first)
            for name, each in measures.items()
        }
    return replace(
        found,
        measures=JointMeasures(outlines, measures),
        needs_review=found.needs_review or bool(reasons),
        reasons=(*found.reasons, *reasons),
    )


def _plateau(found: Detection) -> tuple[Array, Array]:
    """Return the middle (2,) of the plateau and the vector (2,) from its left to its right end.

    Left and right are those of the upright knee.
    """
    angle = np.radians(found.rotation_deg)
    direction = np.array([np.cos(angle), np.sin(angle)])
    margins = find_plateau_margins(found.landmarks)
    if margins is not None:
        one, other = np.array(margins)
        across = other - one
        return (one + other) / 2, across if across @ direction > 0 else -across
    return np.array(found.centre), PLATEAU_SHARE * found.width_px * direction


@torch.inference_mode()
def find_outlines(
    film: Radiograph,
    centre: Array,
    across: Array,
    network: OutlineNetwork,
    *,
    medial: str,
) -> Outlines:
    """Return the outlines of a knee.

    Args:
        film: bones bright.
        centre: (2,) of the tibial plateau, roughly, in film pixels.
        across: (2,) from its left to its right end.
        network: the outline network.
        medial: the side of the picture that is medial, "left" or "right".
    """
    joint, leg = (_place(centre, across, frame) for frame in (JOINT_FRAME, LEG_FRAME))
    near, far = (_locate(film, placed, network) for placed in (joint, leg))
    left, right = sorted(near.margins[0, :, 0].tolist())
    right = max(right, left + MIN_PLATEAU_PX)
    columns = np.arange(joint.size[1]) + 0.5
    x = np.linspace(left, right, POINTS)
    lines, deviations = [], []
    positions = near.borders[0].numpy(), near.border_sd[0].numpy()
    for y, sd, bone_above in zip(*positions, (True, False), strict=True):
        smoothed = smooth(y, sd, between=(left, right))
        line = transform(joint.pixel_map, np.stack([x, np.interp(x, columns, smoothed)], axis=1))
        width = joint.step_px * (right - left)
        lines.append(move_to_edge(film.pixels, line, width, bone_above=bone_above))
        deviations.append(joint.step_px * np.interp(x, columns, sd))
    (femur_line, tibia_line), (femur_sd, tibia_sd) = lines, deviations
    outlines = Outlines(
        femur_line, tibia_line, medial, femur_sd, tibia_sd, mm_per_px=film.mm_per_px
    )
    femur, tibia = _sides(film, outlines, leg, far)
    return replace(outlines, femur_sides=femur, tibia_sides=tibia)


def _place(centre: Array, across: Array, frame: CropFrame) -> Placed:
    """Return the upright crop around the centre (2,) of a plateau, given its ends' vector (2,)."""
    across = across / frame.px  # of one pixel of the crop
    down = np.array([-across[1], across[0]])
    height, width = frame.size
    to_film = axes_to_film(width / 2 * across, height / 2 * down, centre)
    return Placed(frame.size, float(np.linalg.norm(across)), to_film)


def _locate(film: Radiograph, placed: Placed, network: OutlineNetwork) -> BorderEstimate:
    crop = torch.from_numpy(cut(*_reduce(film, placed)))
    return locate(network(standardize(crop[None]).to(network.head.weight.dtype)))


def _reduce(film: Radiograph, placed: Placed) -> tuple[Radiograph, Placed]:
    """Return a smaller film for a crop of much larger pixels, which is quicker to cut from."""
    factor = int(placed.step_px / FINEST_STEP)
    if factor < 2:
        return film, placed
    pixels = torch.from_numpy(film.pixels)[None]
    height, width = film.size[0] // factor * factor, film.size[1] // factor * factor
    small = F.avg_pool2d(pixels[:, :height, :width], factor)[0].numpy()
    to_film = torch.diag(torch.tensor([1 / factor, 1 / factor, 1.0]).double()) @ placed.to_film
    reduced = Placed(placed.size, placed.step_px / factor, to_film)
    return replace(film, pixels=small), reduced


def _sides(
    film: Radiograph, outlines: Outlines, placed: Placed, found: BorderEstimate
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Return the sides of femur and tibia, left and right, as far as they are on the film."""
    rows = np.arange(placed.size[0]) + 0.5
    height, width = film.size
    parts: tuple[list[Array], list[Array]] = ([], [])
    for x, sd in zip(found.sides[0].numpy(), found.side_sd[0].numpy(), strict=True):
        points = transform(placed.pixel_map, np.stack([x, rows], axis=1))
        on_film = ((points > 0) & (points < [width, height])).all(1)
        certain = sd * placed.step_px < MAX_SIDE_SD * outlines.width_px
        y = outlines.in_plateau_widths(points)[:, 1]
        good = on_film & certain
        for part, beyond in zip(parts, (y < FEMUR_STARTS, y > TIBIA_STARTS), strict=True):
            part.append(points[good & beyond])
    (a, b), (c, d) = parts
    return (a, b), (c, d)
