"""Measure what each departure from the paper's energy gains in the exhaustive search.

    python benchmarks/ablation.py --real FOLDER [--films N]

First table, on labelled real films: local contrast and detail, each alone and together. Its columns
are the scores with the folder's own template, then the mean over all templates (`--templates`, cut
from other labelled knees) and the mean IoU of the worst template. Second table, on phantoms whose
film ends closely beside the joint: the margin that is added beside the film. See films.py for the
columns of scores.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from kneephantoms.phantom import Phantom, phantom
from torch import Tensor

from accuracy import other_templates
from films import (
    FAMILY,
    SCORE_COLUMNS,
    Film,
    benchmark_parser,
    film_of_phantom,
    halves_of,
    phantom_template,
    real_films,
    real_template,
    score,
    table,
)
from kneematch.knee.knee_images import SIDE_MARGIN
from kneematch.paper.energy import (
    CONTRAST,
    LOCAL_CONTRAST_WEIGHT,
    Terms,
    deviation,
    paper_terms,
    robust_terms,
)
from kneematch.paper.pose import pose_from_vector
from kneematch.paper.problem import Problem
from kneematch.paper.template import Template
from kneematch.search import ncc_bank as bank
from kneematch.search.exhaustive_search import exhaustive_search

Build = Callable[[Tensor, Template], Terms]


def with_contrast(halves: Tensor, template: Template) -> Terms:
    """Return the paper's term with a penalty on patches of low contrast."""
    (term,) = paper_terms(halves, template)
    return (replace(term, floor=CONTRAST * deviation(halves)),)


def with_detail(halves: Tensor, template: Template) -> Terms:
    """Return the paper's term and the same term on high-pass filtered images."""
    (term,) = paper_terms(halves, template)
    fine = robust_terms(halves, template)[1]
    (same,) = paper_terms(fine.halves, fine.template)
    return replace(term, weight=1 - LOCAL_CONTRAST_WEIGHT), replace(
        same, weight=LOCAL_CONTRAST_WEIGHT
    )


def poses(films: list[Film], template: Template, build: Build, args: argparse.Namespace) -> Tensor:
    """Return the poses (N, S, 4) that the search finds for an energy."""
    found = []
    for first in range(0, len(films), args.batch):
        halves = halves_of(films[first : first + args.batch], args.device)
        problem = Problem(build(halves, template.to(halves)))
        found.append(pose_from_vector(exhaustive_search(problem), problem.height_ratio))
    return torch.cat(found).cpu()


def on_real_films(args: argparse.Namespace) -> None:
    """Print one row per energy, over all templates."""
    films = real_films(args.real)
    templates = [real_template(args.real)]
    templates += [one for _, one in other_templates(films, args.templates - 1, args.seed)]
    rows = []
    usual = bank.CONTRAST
    for name, build, floor in (
        ("the paper's, without contrast in the NCC bank", paper_terms, 0.0),
        ("the paper's", paper_terms, usual),
        ("with contrast", with_contrast, usual),
        ("with detail", with_detail, usual),
        ("with both: the robust energy", robust_terms, usual),
    ):
        bank.CONTRAST = floor  # type: ignore[misc]
        found = [score(films, one, poses(films, one, build, args)) for one in templates]
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
    print(f"{len(films)} real films; the folder's template, and all {len(templates)} templates.\n")
    table(
        (
            "energy",
            "mean IoU",
            "recall at 0.75",
            "all templates: mean IoU",
            "recall at 0.75",
            "worst template's IoU",
        ),
        rows,
    )


def cut_off(made: Phantom, share: float) -> Phantom:
    """Crop a phantom's film at a share of the plateau's width beside the outer margins."""
    left, right = made.knees
    beside = share * (left.plateau_right[0] - left.plateau_left[0])
    x0 = max(0, int(left.plateau_left[0] - beside))
    x1 = int(right.plateau_right[0] + beside)
    pixels = np.ascontiguousarray(made.radiograph.pixels[:, x0:x1])
    knees = tuple(
        replace(
            knee,
            plateau_medial=(knee.plateau_medial[0] - x0, knee.plateau_medial[1]),
            plateau_lateral=(knee.plateau_lateral[0] - x0, knee.plateau_lateral[1]),
        )
        for knee in made.knees
    )
    return replace(made, radiograph=replace(made.radiograph, pixels=pixels), knees=knees)


def on_cut_off_films(args: argparse.Namespace) -> None:
    """Print one row per crop, with and without a margin beside the film."""
    template = phantom_template(FAMILY)
    whole = [phantom(seed) for seed in range(args.seed, args.seed + args.films)]
    rows = []
    for share in (0.35, 0.1, 0.03):
        cut = [cut_off(made, share) for made in whole]
        for side_margin in (0.0, SIDE_MARGIN):
            films = [
                film_of_phantom(str(n), made, side_margin=side_margin) for n, made in enumerate(cut)
            ]
            scores = score(films, template, poses(films, template, robust_terms, args))
            rows.append([f"{share}", f"{side_margin}", *scores.row(films)])
    print(f"{len(whole)} phantoms cropped beside the plateaus; the template reaches 0.17 beyond.\n")
    table(("film beside the plateau", "added margin", *SCORE_COLUMNS), rows)


def main() -> None:
    """Measure and print."""
    parser = benchmark_parser(__doc__, films=60)
    parser.add_argument(
        "--templates", type=int, default=6, help="number of real templates, the folder's own first"
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.real:
        on_real_films(args)
    if args.films:
        on_cut_off_films(args)


if __name__ == "__main__":
    main()
