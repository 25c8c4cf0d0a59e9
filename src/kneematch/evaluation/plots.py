"""The loss against the error: across knees, and within a knee between methods."""

from collections.abc import Iterator
from itertools import combinations, cycle
from pathlib import Path
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import (
    FuncFormatter,
    LogLocator,
    NullFormatter,
    NullLocator,
    PercentFormatter,
)
from numpy.typing import NDArray

from kneematch.evaluation.loss_and_error import LossAndError
from kneematch.evaluation.plot_style import COLOURS, FULL_WIDTH, journal_style, write_figure

HEIGHT: Final = 2.7  # inches
WIDTHS: Final = (1.35, 1)  # of the panels, relative
MOST_PARTS: Final = 10  # of knees, by loss
FEWEST: Final = 12  # knees a part
QUARTILES: Final = (25, 50, 75)
SMALLEST_PERCENT: Final = 0.05  # of error that is shown: a logarithm needs one
Z: Final = 1.96  # of 95 % intervals
PLAIN: Final = FuncFormatter(lambda value, _: f"{value:g}")

Floats = NDArray[np.float64]


def draw_loss_and_error(data: LossAndError, path: Path) -> list[Path]:
    """Write PATH.png and PATH.pdf.

    Left: every knee; of each method the median error of knees of like loss, and its quartiles.
    Right, where there are several methods: how often, of two of them on one knee, that of the
    lower loss is closer to the truth, by how far their losses are apart. The bars take pairs for
    independent, which those of one knee are not.
    """
    apart, closer = differences(data)
    count = 2 if len(apart) else 1
    with journal_style():
        figure = Figure((FULL_WIDTH, HEIGHT), layout="constrained")
        panels = figure.subplots(1, count, width_ratios=WIDTHS[:count], squeeze=False)[0]
        _draw_across(panels[0], data)
        if len(apart):
            _draw_within(panels[1], apart, closer)
            for axes, letter in zip(panels, ("(a)", "(b)"), strict=True):
                axes.set_title(letter, loc="left", weight="bold")
        handles, _ = panels[0].get_legend_handles_labels()
        figure.legend(handles=handles, loc="outside upper center", ncols=8, frameon=False)
        return write_figure(figure, path)


def quartiles_by(values: Floats, of: Floats) -> tuple[Floats, Floats]:
    """Medians (P,) of `values` in parts of equal size, and quartiles (3, P) of `of` in them."""
    parts = _parts(values)
    centres = np.array([np.median(values[part]) for part in parts])
    spread = np.array([np.percentile(of[part], QUARTILES) for part in parts]).reshape(-1, 3).T
    return centres, spread


def differences(data: LossAndError) -> tuple[Floats, NDArray[np.bool_]]:
    """For two methods on one knee: how far losses are apart, and whether the lower one is closer.

    All pairs of methods together; where losses or errors are the same, nothing is told.
    """
    apart, closer = [], []
    for one, two in _pairs(data):
        loss = data.loss[one] - data.loss[two]
        error = data.margin_percent[one] - data.margin_percent[two]
        if loss and error:
            apart.append(abs(loss))
            closer.append(loss * error > 0)
    return np.array(apart, np.float64), np.array(closer, np.bool_)


def wilson(share: Floats, count: Floats) -> tuple[Floats, Floats]:
    """The 95 % interval of shares, after Wilson."""
    middle = (share + Z**2 / (2 * count)) / (1 + Z**2 / count)
    reach = Z / (1 + Z**2 / count) * np.sqrt(share * (1 - share) / count + (Z / count) ** 2 / 4)
    return middle - reach, middle + reach


def _draw_across(axes: Axes, data: LossAndError) -> None:
    for method, colour in zip(data.methods, cycle(COLOURS), strict=False):
        at = data.method == method
        loss, error = data.loss[at], data.margin_percent[at].clip(SMALLEST_PERCENT)
        axes.scatter(loss, error, s=4, color=colour, alpha=0.35, linewidths=0, rasterized=True)
        middle, (lower, median, upper) = quartiles_by(loss, error)
        axes.fill_between(middle, lower, upper, color=colour, alpha=0.18, linewidth=0)
        axes.plot(middle, median, color=colour, linewidth=1.2, marker="o", ms=3, label=method)
    axes.set(xlabel="loss of a knee", ylabel="margin error, % of plateau width", yscale="log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(PLAIN)


def _draw_within(axes: Axes, apart: Floats, closer: NDArray[np.bool_]) -> None:
    parts = _parts(apart)
    x = np.array([np.median(apart[part]) for part in parts])
    share = np.array([closer[part].mean() for part in parts])
    low, high = wilson(share, np.array([len(part) for part in parts], np.float64))
    reach = np.stack([share - low, high - share]).clip(0)
    axes.axhline(0.5, color="#888888", linewidth=0.7, linestyle=(0, (4, 3)))
    axes.errorbar(x, share, reach, color="#222222", linewidth=1.2, elinewidth=0.8, marker="o", ms=3)
    axes.set(
        ylim=(0, 1),
        xscale="log",
        xlabel="difference of the losses of two methods",
        ylabel="the lower loss is closer",
    )
    axes.xaxis.set_major_formatter(PLAIN)
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))


def _parts(values: Floats) -> list[NDArray[np.intp]]:
    """Indices of parts of equal size, from low to high; as many as there are values for."""
    if not len(values):
        return []
    count = int(np.clip(len(values) // FEWEST, 1, MOST_PARTS))
    return np.array_split(np.argsort(values, kind="stable"), count)


def _pairs(data: LossAndError) -> Iterator[tuple[int, int]]:
    """Where two methods' entries of one knee stand."""
    knees: dict[tuple[str, str], list[int]] = {}
    for at, knee in enumerate(zip(data.film.tolist(), data.side.tolist(), strict=True)):
        knees.setdefault(knee, []).append(at)
    for entries in knees.values():
        yield from combinations(entries, 2)
