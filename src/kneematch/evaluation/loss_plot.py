"""Plot of loss against error: does a lower loss mean a better position?"""

from itertools import combinations, cycle
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
from scipy.stats import binomtest

from kneematch.evaluation.figures import COLOURS, FULL_WIDTH
from kneematch.evaluation.loss_tables import found_knees, paired_differences
from kneematch.evaluation.scores import Scores
from kneematch.evaluation.statistics import Floats, Indices, quantile_groups

HEIGHT: Final = 2.7  # inches
PANEL_WIDTHS: Final = (1.35, 1)  # relative
MOST_GROUPS: Final = 10  # of knees with similar loss
FEWEST_KNEES: Final = 12  # per group
SMALLEST_PERCENT: Final = 0.05  # smallest error on the logarithmic axis
PLAIN: Final = FuncFormatter(lambda value, _: f"{value:g}")


def draw_loss_and_error(scores: Scores) -> Figure:
    """Plot whether a lower loss means a smaller error; at least one knee must have been found.

    (a): every knee, and for each method the median and quartiles of the error of knees with similar
    loss. (b), with several methods: how often, of two methods on one knee, the one with the lower
    loss is closer to the label, by the difference of their losses. The bars (Wilson's 95 %
    intervals) treat pairs as independent, which those of one knee are not.
    """
    found = found_knees(scores)
    pairs = [paired_differences(found[one], found[two]) for one, two in combinations(found, 2)]
    apart = np.concatenate([np.empty(0), *(differences for differences, _ in pairs)])
    closer = np.concatenate([np.empty(0, np.bool_), *(lower for _, lower in pairs)])
    count = 2 if len(apart) else 1
    figure = Figure((FULL_WIDTH, HEIGHT), layout="constrained")
    panels = figure.subplots(1, count, width_ratios=PANEL_WIDTHS[:count], squeeze=False)[0]
    _draw_across_knees(panels[0], found)
    if len(apart):
        _draw_between_methods(panels[1], apart, closer)
        for axes, letter in zip(panels, ("(a)", "(b)"), strict=True):
            axes.set_title(letter, loc="left", weight="bold")
    handles, _ = panels[0].get_legend_handles_labels()
    figure.legend(handles=handles, loc="outside upper center", ncols=8, frameon=False)
    return figure


def quartiles_by(values: Floats, of: Floats) -> tuple[Floats, Floats]:
    """Return the medians (G,) of `values` in groups, and the quartiles (3, G) of `of` in these."""
    groups = _groups(values)
    centres = np.array([np.median(values[group]) for group in groups])
    return centres, np.array([np.percentile(of[group], (25, 50, 75)) for group in groups]).T


def _draw_across_knees(axes: Axes, found: Scores) -> None:
    for (method, knees), colour in zip(found.items(), cycle(COLOURS), strict=False):
        loss = np.array([knee.loss for knee in knees])
        error = np.array([knee.margin_percent for knee in knees]).clip(SMALLEST_PERCENT)
        axes.scatter(loss, error, s=4, color=colour, alpha=0.35, linewidths=0, rasterized=True)
        middle, (lower, median, upper) = quartiles_by(loss, error)
        axes.fill_between(middle, lower, upper, color=colour, alpha=0.18, linewidth=0)
        axes.plot(middle, median, color=colour, linewidth=1.2, marker="o", ms=3, label=method)
    axes.set(xlabel="loss of a knee", ylabel="margin error, % of plateau width", yscale="log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(PLAIN)


def _draw_between_methods(axes: Axes, apart: Floats, closer: NDArray[np.bool_]) -> None:
    groups = _groups(apart)
    share = np.array([closer[group].mean() for group in groups])
    intervals = [
        binomtest(int(closer[group].sum()), len(group)).proportion_ci(method="wilson")
        for group in groups
    ]
    low, high = np.array([(each.low, each.high) for each in intervals]).T
    reach = np.stack([share - low, high - share]).clip(0)
    x = [np.median(apart[group]) for group in groups]
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


def _groups(values: Floats) -> list[Indices]:
    """Return groups of similar values, as many as there are enough values for."""
    return quantile_groups(values, int(np.clip(len(values) // FEWEST_KNEES, 1, MOST_GROUPS)))
