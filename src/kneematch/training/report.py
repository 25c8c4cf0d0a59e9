"""How a training goes (metrics.csv, preview.png), and how it compares with the built-in model."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Final

import torch
from matplotlib.figure import Figure
from torch import Tensor

from kneematch.errors import TemplateError
from kneematch.films.annotation import Annotation
from kneematch.films.csv_text import write_csv
from kneematch.films.files import atomic_write
from kneematch.films.pictures import LEFT_COLOUR, RIGHT_COLOUR
from kneematch.knee.detector import Detector
from kneematch.models.two_stage import TwoStageNetworks
from kneematch.paper.algorithm2 import ENLARGE, PHASES, Networks
from kneematch.paper.pose import enlarge_pose, pose_matrix
from kneematch.paper.split import HALF_ASPECT
from kneematch.sampling import transform
from kneematch.search.robust_energy import robust_problem
from kneematch.training.recipes import Task

DPI: Final = 100
FILMS: Final = 4  # films in the preview
PANEL: Final = 4  # height of a half in the preview, in inches
STANDARD_ERRORS: Final = 2.0  # by which a mean difference must exceed 0 to count
OUTLINE: Final = ((-1.0, -1.0), (1.0, -1.0), (1.0, 1.0), (-1.0, 1.0), (-1.0, -1.0))


@dataclass(frozen=True, slots=True)
class Epoch:
    """One row of metrics.csv."""

    phase: str
    round: int
    epoch: int
    loss: float  # mean over the films, weighted by c_u after the paper's first round
    seconds: float  # since the training began


def write_metrics(epochs: Sequence[Epoch], path: str | os.PathLike[str]) -> None:
    """Write one row per epoch."""
    with write_csv(path, [each.name for each in fields(Epoch)]) as add:
        for row in epochs:
            numbers = str(row.round), str(row.epoch), f"{row.loss:.6f}", f"{row.seconds:.2f}"
            add([row.phase, *numbers])


@torch.no_grad()
def plot_preview(task: Task, networks: Networks, phase: str, path: str | os.PathLike[str]) -> None:
    """Plot the poses that the network of a phase predicts on the first films."""
    halves = task.films.halves(torch.arange(min(FILMS, len(task.films))))
    coarse, fine = (network.eval() for network in networks)
    aspects = task.templates.coarse.aspect, task.templates.fine.aspect
    both = TwoStageNetworks(coarse, fine, *aspects)
    if phase == PHASES[0]:
        theta = enlarge_pose(both.crop_poses(halves), 1 / ENLARGE)
    else:
        theta = both.poses(halves)
    plot_poses(halves, theta, aspects[PHASES.index(phase)], path)


def plot_poses(halves: Tensor, theta: Tensor, aspect: float, path: str | os.PathLike[str]) -> None:
    """Plot halves (K, 2, H, W) side by side, with a template at poses (K, 2, 4) on each."""
    matrices = pose_matrix(theta.cpu().double(), aspect, HALF_ASPECT)
    corners = transform(matrices, torch.tensor(OUTLINE)).flatten(0, 1).numpy()
    figure = Figure(figsize=(len(corners) * PANEL / HALF_ASPECT, PANEL), dpi=DPI)
    figure.subplots_adjust(0, 0, 1, 1, wspace=0.02)
    panels = figure.subplots(1, len(corners), subplot_kw={"xticks": (), "yticks": ()})
    pairs = zip(panels, halves.flatten(0, 1).cpu().numpy(), corners, strict=True)
    for number, (axes, image, points) in enumerate(pairs):
        axes.imshow(image, cmap="gray", extent=(-1, 1, 1, -1), aspect="auto")
        colour = bytes((LEFT_COLOUR, RIGHT_COLOUR)[number % 2]).hex()
        axes.plot(*points.T, color=f"#{colour}", linewidth=2)
        axes.set(xlim=(-1, 1), ylim=(1, -1))
    with atomic_write(path) as temp:
        figure.savefig(temp, format="png")


def compare_with_built_in(model: Path, drawn: Annotation, halves: Tensor) -> list[str]:
    """Return in which measures of the areas on halves (N, 2, H, W) a model is the worse one.

    The areas are those before refinement. Nothing is measured if the built-in networks see no knee
    where the template was drawn.
    """
    load = partial(Detector.load, method="neural", device=str(halves.device))
    try:
        built_in = load(template=drawn)
    except TemplateError:
        return []
    one, other = (_measure(each, built_in, halves) for each in (load(model), built_in))
    worse = []
    for name, values in one.items():
        difference = values - other[name]
        error = difference.std() / len(difference) ** 0.5  # NaN for a single film
        if difference.mean() > STANDARD_ERRORS * error:
            known = float(values.mean()), float(other[name].mean())
            worse.append("{} {:.3f}, of the built-in model {:.3f}".format(name, *known))
    return worse


@torch.no_grad()
def _measure(detector: Detector, drawn: Detector, halves: Tensor) -> dict[str, Tensor]:
    """Return measures (N,) of a detector's areas against the template as drawn; less is better."""
    problem = robust_problem(halves, detector.template)
    theta = detector.solver(problem)  # (N, 2, 4)
    left, right = theta.unbind(1)
    apart = problem.image_aspect * (left[:, 2] - right[:, 2]).abs() / (left[:, 0] + right[:, 0])
    return {
        "mean loss": robust_problem(halves, drawn.template).losses(theta).mean(1),
        "mean difference of the sides' heights, in widths": apart,
    }
