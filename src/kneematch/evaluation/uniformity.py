"""Uniformity of a method's areas: left against right, and the joint line's height in crops.

Neither needs labels: on a good method's crops the joint line always lies at the same height.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Final

import numpy as np

from kneematch.errors import FilmError
from kneematch.evaluation.method_run import MethodRun
from kneematch.evaluation.statistics import Floats, mean, standard_deviation
from kneematch.evaluation.tables import Table, columns
from kneematch.films.csv_text import Cell
from kneematch.films.radiograph import Radiograph
from kneematch.films.read import read_isolated
from kneematch.knee.detection import Detection
from kneematch.parallel import WorkerDied, map_in_workers

ROWS: Final = 96  # height to which crops are resized
MIDDLE: Final = 0.7  # share of a crop's columns that show the joint itself
REACH: Final = 20  # rows up or down within which the joint line is looked for
ROUNDS: Final = 3  # of aligning the profiles with their mean
FLAT: Final = 1e-6  # contrast below this is rounding

UNIFORMITY: Final = columns(
    *("method", "films:0", "height apart, mean %:2", "height apart, SD %:2"),
    *("height apart, mean mm:2", "height apart, SD mm:2", "size apart, mean %:2"),
    *("turned apart, mean degrees:2", "crops:0", "joint line, SD %:2", "joint line, median %:2"),
)
CAPTION: Final = (
    "Uniformity of areas. Apart: difference between a film's left and right area, in % of their "
    "width and, where films have pixel spacing, in mm; turned: difference from a mirror image. A "
    "patient's knees are not quite symmetric, so 0 is not the aim. Joint line: deviation of its "
    "height in upright crops from the usual height, in % of the crop's height: SD over all crops, "
    "which single failures raise, and median."
)

JointLines = Mapping[str, Floats]
"""By method: heights of the joint line (knees,) in its crops, as shares of the crop's height below
the usual height; NaN where unknown."""


def uniformity_table(runs: Sequence[MethodRun], joint_lines: JointLines) -> Table:
    """Return how much the two areas of a film differ, and how much the joint line's height does."""
    rows = [(run.method, *_asymmetry(run), *_spread(joint_lines[run.method])) for run in runs]
    return Table("uniformity", CAPTION, UNIFORMITY, tuple(rows))


def find_joint_lines(
    runs: Sequence[MethodRun], films: Sequence[str], *, workers: int = 0
) -> JointLines:
    """Find the height of the joint line in each upright crop, without labels.

    Crops of all methods are aligned with their common mean. Each film is read once, by worker
    processes or, without any, by this one.
    """
    found = {film: [run.found.get(film, ()) for run in runs] for film in films}
    measured = {}
    with closing(map_in_workers(_profiles, found.items(), workers=workers)) as results:
        for (film, knees), result in results:
            measured[film] = _unknown(knees) if isinstance(result, WorkerDied) else result
    of_runs = [
        np.concatenate([np.empty((0, ROWS)), *(measured[film][k] for film in found)])
        for k in range(len(runs))
    ]
    shifts = profile_shifts(np.concatenate(of_runs)) / ROWS
    ends = np.cumsum([len(profiles) for profiles in of_runs])[:-1]
    return dict(zip([run.method for run in runs], np.split(shifts, ends), strict=True))


def profile_shifts(profiles: Floats) -> Floats:
    """Return by how many rows (N,) profiles (N, ROWS) are below their common mean.

    A profile without contrast has a shift of NaN.
    """
    shifts = np.full(len(profiles), np.nan)
    contrast = profiles.std(axis=1)
    usable = contrast > FLAT  # False for NaN
    if not usable.any():
        return shifts
    scaled = profiles[usable] / contrast[usable, None]
    estimate = np.zeros(len(scaled))
    rows = np.arange(ROWS)
    for _ in range(ROUNDS):
        shifted = zip(estimate, scaled, strict=True)
        aligned = [np.interp(rows + by, rows, profile) for by, profile in shifted]
        estimate = _shifts_to(np.mean(aligned, axis=0), scaled)
        estimate -= np.median(estimate)  # otherwise the mean would drift
    shifts[usable] = estimate
    return shifts


def _shifts_to(reference: Floats, profiles: Floats) -> Floats:
    """Return where the middle of a reference (ROWS,) correlates best with profiles (N, ROWS)."""
    inner = _normalised(reference[REACH : ROWS - REACH])
    windows = np.lib.stride_tricks.sliding_window_view(profiles, len(inner), axis=1)
    correlation = np.stack([_normalised(w) @ inner for w in windows.swapaxes(0, 1)], axis=1)
    each = np.arange(len(profiles))
    best = correlation.argmax(axis=1)
    at = best.clip(1, 2 * REACH - 1)
    above, here, below = (correlation[each, at + step] for step in (-1, 0, 1))
    bend = above - 2 * here + below
    # The vertex of the parabola through three values; at the end of the reach there is none.
    peak = np.divide((above - below) / 2, bend, out=np.zeros_like(bend), where=bend < 0)
    shifts: Floats = best - REACH + np.where(best == at, peak, 0.0)
    return shifts


def _normalised(values: Floats) -> Floats:
    """Return values (..., N) with mean 0 and length 1, or length 0 where they are constant."""
    centred = values - values.mean(axis=-1, keepdims=True)
    unit: Floats = centred / np.maximum(np.linalg.norm(centred, axis=-1, keepdims=True), FLAT)
    return unit


def _profiles(task: tuple[str, Sequence[Sequence[Detection]]]) -> list[Floats]:
    """Return the profiles (knees, ROWS) of all crops of a film, one array per run."""
    path, found = task
    if not any(found):
        return _unknown(found)
    try:
        film = read_isolated(path)
        profiles = ([_profile(film, knee) for knee in knees] for knees in found)
        return [np.array(each).reshape(-1, ROWS) for each in profiles]
    except (FilmError, OSError):  # the file has changed since the detection
        return _unknown(found)


def _unknown(found: Sequence[Sequence[Detection]]) -> list[Floats]:
    return [np.full((len(knees), ROWS), np.nan) for knees in found]


def _profile(film: Radiograph, found: Detection) -> Floats:
    """Return the vertical gradient (ROWS,) of the brightness in the middle of an upright crop.

    Brightness itself would follow the exposure and the soft tissue rather than the joint.
    """
    import torch

    from kneematch.sampling import resize

    crop = torch.from_numpy(found.crop(film, mm=None, spacing_mm=None, mirror=True))
    margin = round(ROWS * (1 - MIDDLE) / 2)
    middle = resize(crop, (ROWS, ROWS))[:, margin : ROWS - margin]
    brightness = middle.double().mean(1).numpy()
    smooth = np.convolve(np.pad(brightness, 1, mode="edge"), [0.25, 0.5, 0.25], "valid")
    gradient: Floats = np.gradient(smooth)
    return -gradient if found.polarity == "negative" else gradient


def _asymmetry(run: MethodRun) -> Iterator[Cell]:
    """Yield the number of films with both knees, and their height, size and angle apart."""
    pairs = [knees for knees in run.found.values() if len(knees) == 2]
    apart = np.array([left.centre[1] - right.centre[1] for left, right in pairs])
    width = np.array([(left.width_px + right.width_px) / 2 for left, right in pairs])
    size = np.array([left.width_px - right.width_px for left, right in pairs])
    mm = np.array([left.mm_per_px or np.nan for left, _ in pairs])
    # Mirror images are turned by opposite angles.
    turned = np.array([left.rotation_deg + right.rotation_deg for left, right in pairs])
    yield len(pairs)
    for offset in (100 * apart / width, apart * mm):
        known = offset[np.isfinite(offset)]
        yield mean(np.abs(known))
        yield standard_deviation(known)
    yield mean(np.abs(100 * size / width))
    yield mean(np.abs(turned))


def _spread(heights: Floats) -> tuple[Cell, ...]:
    """Return the number of crops, and the SD and median deviation of the joint line, in %."""
    known = 100 * heights[np.isfinite(heights)]
    usual = float(np.median(np.abs(known - np.median(known)))) if len(known) else None
    return len(known), standard_deviation(known), usual
