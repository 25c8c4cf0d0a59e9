"""What each departure from the paper's energy gains in the search.

On labelled real films: contrast and detail, each alone and together, over several templates. On
phantoms cut off beside the joint: the room beside the film.

Run it as `python benchmarks/ablation.py --real FOLDER` (`--help` lists the options); it prints
Markdown tables.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from accuracy import other_templates
from films import (
    FAMILY,
    SCORE_COLUMNS,
    Film,
    halves_of,
    options,
    phantom_template,
    real_films,
    real_template,
    score,
    table,
)
from kneematch.geometry.pose import pose_from_vector
from kneematch.geometry.split import ROOM, split
from kneematch.matching.energy import CONTRAST, DETAIL_WEIGHT, Terms, deviation, printed, robust
from kneematch.matching.template import Template
from kneematch.solvers import ncc_bank as bank
from kneematch.solvers.exhaustive_search import search
from kneematch.solvers.problem import Problem
from kneematch.synthetic.phantom import Phantom, phantom

Build = Callable[[Tensor, Template], Terms]


def with_contrast(halves: Tensor, template: Template) -> Terms:
    """The paper's term, in which low contrast counts against a patch."""
    (term,) = printed(halves, template)
    return (replace(term, floor=CONTRAST * deviation(halves)),)


def with_detail(halves: Tensor, template: Template) -> Terms:
    """The paper's term and the same on the fine structure."""
    (term,) = printed(halves, template)
    fine = robust(halves, template)[1]
    (same,) = printed(fine.halves, fine.template)
    return replace(term, weight=1 - DETAIL_WEIGHT), replace(same, weight=DETAIL_WEIGHT)


def poses(
    films: list[Film], template: Template, build: Build, chosen: argparse.Namespace
) -> Tensor:
    """Where the search of an energy ends, (N, S, 4)."""
    found = []
    for first in range(0, len(films), chosen.batch):
        halves = halves_of(films[first : first + chosen.batch], chosen.device)
        asked = Problem(build(halves, template.to(halves)))
        found.append(pose_from_vector(search(asked).v, asked.height_ratio))
    return torch.cat(found).cpu()


def on_real_films(chosen: argparse.Namespace) -> None:
    """A line an energy, over all templates."""
    films = real_films(chosen.real)
    templates = [real_template(chosen.real)]
    templates += [one for _, one in other_templates(films, chosen.templates - 1, chosen.seed)]
    rows = []
    usual = bank.CONTRAST
    for name, build, floor in (
        ("the paper's, and contrast does not count in the bank either", printed, 0.0),
        ("the paper's", printed, usual),
        ("with contrast", with_contrast, usual),
        ("with detail", with_detail, usual),
        ("with both: the robust energy", robust, usual),
    ):
        bank.CONTRAST = floor  # type: ignore[misc]
        found = [score(films, one, poses(films, one, build, chosen)) for one in templates]
        bank.CONTRAST = usual  # type: ignore[misc]
        iou = torch.stack([scores.iou[~scores.iou.isnan()] for scores in found])
        recall = (iou >= 0.75).double().mean(1)
        rows.append(
            [
                name,
                f"{iou[0].mean():.3f}",
                f"{recall[0]:.3f}",
                f"{iou.mean():.3f}",
                f"{recall.mean():.3f}",
                f"{iou.mean(1).min():.3f}",
            ]
        )
    print(f"{len(films)} real films; their template, and all {len(templates)} templates.\n")
    table(
        ("energy", "mean IoU", "recall at 0.75", "of all, IoU", "recall", "worst template's IoU"),
        rows,
    )


def cut_off(made: Phantom, share: float) -> Phantom:
    """A phantom whose film ends a share of the plateau's width beside the outer margins."""
    left, right = made.knees
    beside = share * (left.plateau_right[0] - left.plateau_left[0])
    x0 = max(0, int(left.plateau_left[0] - beside))
    x1 = int(right.plateau_right[0] + beside)
    pixels = np.ascontiguousarray(made.radiograph.pixels[:, x0:x1])
    knees = tuple(
        replace(
            knee,
            plateau_left=(knee.plateau_left[0] - x0, knee.plateau_left[1]),
            plateau_right=(knee.plateau_right[0] - x0, knee.plateau_right[1]),
        )
        for knee in made.knees
    )
    return replace(made, radiograph=replace(made.radiograph, pixels=pixels), knees=knees)


def on_cut_off_films(chosen: argparse.Namespace) -> None:
    """A line a framing, with and without room."""
    template = phantom_template(FAMILY)
    whole = [phantom(seed) for seed in range(chosen.seed, chosen.seed + chosen.films)]
    rows = []
    for share in (0.35, 0.1, 0.03):
        cut = [cut_off(made, share) for made in whole]
        for room in (0.0, ROOM):
            films = [
                Film(
                    str(n),
                    (),
                    split(made.radiograph, room=room),
                    torch.tensor([[k.plateau_left, k.plateau_right] for k in made.knees]).double(),
                )
                for n, made in enumerate(cut)
            ]
            scores = score(films, template, poses(films, template, robust, chosen))
            rows.append([f"{share}", f"{room}", *scores.row(films)])
    print(f"{len(whole)} phantoms cut off beside the outer margins; the template reaches 0.17.\n")
    table(("film beside the margins", "room", *SCORE_COLUMNS), rows)


def main() -> None:
    """Measure and print."""
    parser = options(__doc__, films=60)
    parser.add_argument("--templates", type=int, default=6, help="real knees, the drawn one first")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    if chosen.real:
        on_real_films(chosen)
    if chosen.films:
        on_cut_off_films(chosen)


if __name__ == "__main__":
    main()
