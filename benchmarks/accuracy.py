"""Measure how often and how precisely the exhaustive search finds the knees.

    python benchmarks/accuracy.py [--films N] [--real FOLDER] [--other-templates N]

One row per group of phantoms (ordinary, negative, with implants, and of the template's family,
whose bones are similar) and per source of labelled real films; see films.py for the columns. The
template of phantoms is cut from one of them, with boxes of the same geometry as those drawn on the
real films' template. `--other-templates` cuts templates of that geometry from other real knees, at
their labelled margins, to show how much the choice matters. The knee that a template was cut from
is among those scored.
"""

import argparse
from collections.abc import Sequence
from contextlib import suppress

import torch

from films import (
    FAMILY,
    SCORE_COLUMNS,
    Film,
    benchmark_parser,
    find,
    phantom_films,
    phantom_template,
    real_films,
    real_template,
    rows_by_tag,
    score,
    table,
    template_at,
)
from kneematch.errors import TemplateError
from kneematch.paper.template import Template
from kneematch.search.exhaustive_search import exhaustive_search

FAMILY_SEED = 500_000  # seed of the first film of the template's family
MISSED = 0.75


def on_phantoms(args: argparse.Namespace) -> None:
    """Print the table of phantoms."""
    template = phantom_template(FAMILY)
    films = phantom_films(range(args.seed, args.seed + args.films))
    relatives = phantom_films(range(FAMILY_SEED, FAMILY_SEED + args.family_films), FAMILY)
    found = find(exhaustive_search, films, template, args, paper=args.paper)
    rows = rows_by_tag(score(films, template, found.theta), films)
    if relatives:
        found = find(exhaustive_search, relatives, template, args, paper=args.paper)
        rows.append(
            ["the template's family", *score(relatives, template, found.theta).row(relatives)]
        )
    print(f"{len(films)} phantoms, {1000 * found.seconds:.0f} ms per film.\n")
    table(("phantoms", *SCORE_COLUMNS), rows)


def on_real_films(args: argparse.Namespace) -> None:
    """Print the table of real films, one row per source, and the missed knees."""
    films, template = real_films(args.real), real_template(args.real)
    found = find(exhaustive_search, films, template, args, paper=args.paper)
    scores = score(films, template, found.theta)
    print(f"{len(films)} labelled real films, {1000 * found.seconds:.0f} ms per film.\n")
    table(("real films", *SCORE_COLUMNS), rows_by_tag(scores, films))
    missed = [
        f"{film.name} {'LR'[side]} ({iou:.2f})"
        for film, both in zip(films, scores.iou.tolist(), strict=True)
        for side, iou in enumerate(both)
        if iou < MISSED
    ]
    print(f"Below an IoU of {MISSED}: {', '.join(missed) or 'none'}.\n")


def with_other_templates(args: argparse.Namespace) -> None:
    """Print the scores of the same films with templates from other knees."""
    films = real_films(args.real)
    rows, means = [], []
    for name, template in other_templates(films, args.other_templates, args.seed):
        found = find(exhaustive_search, films, template, args, paper=args.paper)
        scores = score(films, template, found.theta)
        rows.append([name, *scores.row(films)])
        known = scores.iou[~scores.iou.isnan()]
        means.append([float(known.mean()), float((known >= MISSED).double().mean())])
    table(("template from", *SCORE_COLUMNS), rows)
    low, high = torch.tensor(means).aminmax(dim=0)
    print(
        f"Mean IoU from {low[0]:.3f} to {high[0]:.3f}, recall at {MISSED} from {low[1]:.3f} to "
        f"{high[1]:.3f}.\n"
    )


def other_templates(films: Sequence[Film], count: int, seed: int) -> list[tuple[str, Template]]:
    """Return templates of random labelled knees whose boxes lie inside the half."""
    order = torch.randperm(2 * len(films), generator=torch.Generator().manual_seed(seed))
    templates: list[tuple[str, Template]] = []
    for film, side in ((films[k // 2], k % 2) for k in order.tolist()):
        if len(templates) == count:
            break
        if film.margins[side].isnan().any():
            continue
        with suppress(TemplateError):
            templates.append((f"{film.name} {'LR'[side]}", template_at(film, side)))
    return templates


def main() -> None:
    """Measure and print."""
    parser = benchmark_parser(__doc__, films=500)
    parser.add_argument(
        "--family-films", type=int, default=100, help="number of phantoms of the template's family"
    )
    parser.add_argument(
        "--other-templates", type=int, default=0, help="number of templates from other real knees"
    )
    parser.add_argument("--paper", action="store_true", help="minimise the paper's energy")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    energy = "the paper's" if args.paper else "the robust"
    print(f"Exhaustive search, {energy} energy, device {args.device}.\n")
    if args.films:
        on_phantoms(args)
    if args.real:
        on_real_films(args)
    if args.real and args.other_templates:
        with_other_templates(args)


if __name__ == "__main__":
    main()
