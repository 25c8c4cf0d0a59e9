"""How alike a method's areas are: a film's two sides, and where the joint line lies in a crop."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kneematch.detection.detection import Detection
from kneematch.errors import FilmError
from kneematch.evaluation.method_run import Trial
from kneematch.evaluation.tables import Cell, Column, Table, digits
from kneematch.io.radiograph import Radiograph
from kneematch.io.read import read
from kneematch.parallel import WorkerDied, map_in_workers

ROWS: Final = 96  # of a crop, however large its area is on the film
MIDDLE: Final = 0.7  # of its columns: the joint itself, without what lies beside it
REACH: Final = 20  # rows up or down within which the joint line is looked for
ROUNDS: Final = 3  # of shifting profiles onto their mean
FLAT: Final = 1e-6  # the least contrast that is not rounding

COLUMNS: Final = (
    Column("method"),
    Column("films", digits(0)),
    Column("height apart, mean %", digits(2)),
    Column("height apart, SD %", digits(2)),
    Column("height apart, mean mm", digits(2)),
    Column("height apart, SD mm", digits(2)),
    Column("size apart, mean %", digits(2)),
    Column("turned apart, mean degrees", digits(2)),
    Column("crops", digits(0)),
    Column("joint line, SD %", digits(2)),
    Column("joint line, median %", digits(2)),
)
CAPTION: Final = (
    "How alike areas are. Apart: a film's left side from its right one, in % of their width and, "
    "where films have spacing, in mm; turned: from where its mirror image would be. A patient's "
    "knees are not quite symmetric either, so that 0 is not the aim. Joint line: its height in "
    "upright crops, how far it is from where it usually is, in % of a crop's height: SD over all "
    "crops, which single failures raise, and median."
)

Floats = NDArray[np.float64]
Profiles = NDArray[np.float64]  # (knees, ROWS)
Lines = Mapping[str, Floats]  # by method: (knees,), in heights of the crop, downwards; NaN: unknown


def uniformity_tables(trials: Sequence[Trial], lines: Lines) -> list[Table]:
    """How much the sides of a film differ, and how the joint line's height varies."""
    rows = [(trial.method, *_sides(trial), *_spread(lines[trial.method])) for trial in trials]
    return [Table("uniformity", CAPTION, COLUMNS, tuple(rows))]


def joint_lines(
    trials: Sequence[Trial],
    films: Sequence[str],
    *,
    workers: int = 0,
    report: Callable[[], None] = lambda: None,
) -> Lines:
    """Where the joint line lies in each upright crop, without labels.

    All methods are measured against the mean of all their crops.

    Args:
        trials: what was found.
        films: those to look at; each is read once.
        workers: processes that read them; 0: this one.
        report: called after each film.
    """
    found = {film: [trial.found.get(film, ()) for trial in trials] for film in films}
    profiles: list[list[Profiles]] = [[np.empty((0, ROWS))] for _ in trials]
    measured = {}
    with closing(map_in_workers(_visit, found.items(), workers=workers)) as visits:
        for (film, knees), seen in visits:
            measured[film] = _unknown(knees) if isinstance(seen, WorkerDied) else seen
            report()
    for film in found:
        for gathered, part in zip(profiles, measured[film], strict=True):
            gathered.append(part)
    by_method = [np.concatenate(parts) for parts in profiles]
    ends = np.cumsum([len(part) for part in by_method])[:-1]
    shifts = np.split(profile_shifts(np.concatenate(by_method)) / ROWS, ends)
    return dict(zip([trial.method for trial in trials], shifts, strict=True))


def profile_shifts(profiles: Profiles) -> Floats:
    """How many rows each profile (N, ROWS) is below their common mean; NaN for one without form."""
    shifts = np.full(len(profiles), np.nan)
    contrast = profiles.std(axis=1)
    clear = contrast > FLAT  # which NaN is not
    if not clear.any():
        return shifts
    formed = profiles[clear] / contrast[clear, None]
    moved = np.zeros(len(formed))
    rows = np.arange(ROWS)
    for _ in range(ROUNDS):
        aligned = [np.interp(rows + at, rows, one) for at, one in zip(moved, formed, strict=True)]
        moved = _shifts_to(np.mean(aligned, axis=0), formed)
        moved -= np.median(moved)  # or the mean would wander off
    shifts[clear] = moved
    return shifts


def _shifts_to(reference: Floats, profiles: Profiles) -> Floats:
    """Where the middle of a reference (ROWS,) correlates best with each profile (N, ROWS)."""
    inner = _unit(reference[REACH : ROWS - REACH])
    windows = np.lib.stride_tricks.sliding_window_view(profiles, len(inner), axis=1)
    likeness = np.stack([_unit(window) @ inner for window in windows.swapaxes(0, 1)], axis=1)
    each = np.arange(len(profiles))
    best = likeness.argmax(axis=1)
    at = best.clip(1, 2 * REACH - 1)
    above, here, below = (likeness[each, at + step] for step in (-1, 0, 1))
    bend = above - 2 * here + below
    # The vertex of the parabola through three values; at the end of the reach there is none.
    peak = np.divide((above - below) / 2, bend, out=np.zeros_like(bend), where=bend < 0)
    shifts: Floats = best - REACH + np.where(best == at, peak, 0.0)
    return shifts


def _unit(values: Floats) -> Floats:
    """Without mean, and of length 1 along the last axis, or 0."""
    centred = values - values.mean(axis=-1, keepdims=True)
    unit: Floats = centred / np.maximum(np.linalg.norm(centred, axis=-1, keepdims=True), FLAT)
    return unit


def _visit(film: tuple[str, Sequence[Sequence[Detection]]]) -> list[Profiles]:
    """The profiles of each method's crops of a film."""
    path, methods = film
    if not any(methods):
        return _unknown(methods)
    try:
        pixels = read(path)
        return [
            np.array([_profile(pixels, found) for found in knees]).reshape(-1, ROWS)
            for knees in methods
        ]
    except (FilmError, OSError):  # it was there a moment ago, and has its rows
        return _unknown(methods)


def _unknown(methods: Sequence[Sequence[Detection]]) -> list[Profiles]:
    return [np.full((len(knees), ROWS), np.nan) for knees in methods]


def _profile(film: Radiograph, found: Detection) -> Floats:
    """From row to row, how much brighter the middle of an upright crop becomes: (ROWS,).

    Brightness itself would follow the exposure and the soft tissue rather than the joint.
    """
    import torch

    from kneematch.geometry.sampling import resize

    crop = torch.from_numpy(found.crop(film, mm=None, spacing_mm=None, mirror=True))
    margin = round(ROWS * (1 - MIDDLE) / 2)
    middle = resize(crop, (ROWS, ROWS))[:, margin : ROWS - margin]
    bright = middle.double().mean(1).numpy()
    smooth = np.convolve(np.pad(bright, 1, mode="edge"), [0.25, 0.5, 0.25], "valid")
    steps: Floats = np.gradient(smooth)
    return -steps if found.polarity == "negative" else steps


def _sides(trial: Trial) -> Iterator[Cell]:
    """Over films with both knees: their number, height apart, size apart, turned apart."""
    pairs = [knees for knees in trial.found.values() if len(knees) == 2]
    apart = np.array([one.centre[1] - two.centre[1] for one, two in pairs])
    width = np.array([(one.width_px + two.width_px) / 2 for one, two in pairs])
    size = np.array([one.width_px - two.width_px for one, two in pairs])
    mm = np.array([one.mm_per_px or np.nan for one, _ in pairs])
    # Mirror images are turned by opposite angles.
    turned = np.array([one.rotation_deg + two.rotation_deg for one, two in pairs])
    yield len(pairs)
    for offset in (100 * apart / width, apart * mm):
        known = offset[np.isfinite(offset)]
        yield _mean_size(known)
        yield _deviation(known)
    yield _mean_size(100 * size / width)
    yield _mean_size(turned)


def _spread(heights: Floats) -> tuple[Cell, ...]:
    """Crops, SD and median distance of the joint line in them, in %."""
    known = 100 * heights[np.isfinite(heights)]
    usual = np.median(np.abs(known - np.median(known))) if len(known) else None
    return len(known), _deviation(known), None if usual is None else float(usual)


def _mean_size(values: Floats) -> float | None:
    return float(np.abs(values).mean()) if len(values) else None


def _deviation(values: Floats) -> float | None:
    return float(values.std(ddof=1)) if len(values) > 1 else None
