"""How often and how exactly the search finds the knees: phantoms, and labelled real films.

A knee's area is the square around the middle of its plateau's margins, 1.5 times as wide as they
are apart; the margins found are the template's landmarks, carried along. The template of phantoms
is cut from one of them, with boxes of the same geometry as those drawn on the real films' template;
its family is the films whose bones are shaped like its own. `--other-templates` cuts templates of
that geometry from other real knees, at their labelled margins, to see how much the choice matters.
The knee that a template was cut from is among those scored.

Run it as `python benchmarks/accuracy.py` (`--real FOLDER` adds labelled real films, `--help` lists
the options); it prints Markdown tables.
"""

import argparse
from collections.abc import Sequence

import torch

from films import (
    FAMILY,
    SCORE_COLUMNS,
    Film,
    find,
    options,
    phantom_films,
    phantom_template,
    real_films,
    real_template,
    score,
    table,
    transplanted,
)
from kneematch.errors import TemplateError
from kneematch.matching.template import Template
from kneematch.solvers.exhaustive_search import search

FAMILY_SEED = 500_000  # of the first film of the template's family
MISSED = 0.75


def on_phantoms(chosen: argparse.Namespace) -> None:
    """The table of phantoms."""
    template = phantom_template(FAMILY)
    films = phantom_films(range(chosen.seed, chosen.seed + chosen.films))
    relatives = phantom_films(range(FAMILY_SEED, FAMILY_SEED + chosen.family_films), FAMILY)
    found = find(search, films, template, chosen, paper=chosen.paper)
    scores = score(films, template, found.theta)
    rows = [["all", *scores.row(films)]]
    rows += [[tag, *scores.row(films, tag)] for tag in ("ordinary", "negative", "implant")]
    if relatives:
        kin = find(search, relatives, template, chosen, paper=chosen.paper)
        rows.append(
            ["the template's family", *score(relatives, template, kin.theta).row(relatives)]
        )
    print(f"{len(films)} phantoms, {1000 * found.seconds:.0f} ms a film.\n")
    table(("phantoms", *SCORE_COLUMNS), rows)


def on_real_films(chosen: argparse.Namespace) -> None:
    """The table of real films, a line a source, and the knees that were missed."""
    films, template = real_films(chosen.real), real_template(chosen.real)
    found = find(search, films, template, chosen, paper=chosen.paper)
    scores = score(films, template, found.theta)
    rows = [["all", *scores.row(films)]]
    sources = sorted({tag for film in films for tag in film.tags})
    rows += [[source, *scores.row(films, source)] for source in sources]
    print(f"{len(films)} labelled real films, {1000 * found.seconds:.0f} ms a film.\n")
    table(("real films", *SCORE_COLUMNS), rows)
    missed = [
        f"{film.name} {'LR'[side]} ({iou:.2f})"
        for film, both in zip(films, scores.iou.tolist(), strict=True)
        for side, iou in enumerate(both)
        if iou < MISSED
    ]
    print(f"Below an IoU of {MISSED}: {', '.join(missed) or 'none'}.\n")


def with_other_templates(chosen: argparse.Namespace) -> None:
    """The same films searched for other knees."""
    films = real_films(chosen.real)
    rows, means = [], []
    for name, template in other_templates(films, chosen.other_templates, chosen.seed):
        found = find(search, films, template, chosen, paper=chosen.paper)
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
    """Templates from randomly chosen labelled knees, of those whose boxes lie inside the half."""
    order = torch.randperm(2 * len(films), generator=torch.Generator().manual_seed(seed))
    chosen: list[tuple[str, Template]] = []
    for film, side in ((films[k // 2], k % 2) for k in order.tolist()):
        if len(chosen) == count:
            break
        if film.margins[side].isnan().any():
            continue
        try:
            chosen.append((f"{film.name} {'LR'[side]}", transplanted(film, side)))
        except TemplateError:
            continue
    return chosen


def main() -> None:
    """Measure and print."""
    parser = options(__doc__, films=500)
    parser.add_argument("--family-films", type=int, default=100, help="of the template's family")
    parser.add_argument("--other-templates", type=int, default=0, help="from other real knees")
    parser.add_argument("--paper", action="store_true", help="lower the paper's energy")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    energy = "the paper's" if chosen.paper else "the robust"
    print(f"Search of {energy} energy, device {chosen.device}.\n")
    if chosen.films:
        on_phantoms(chosen)
    if chosen.real:
        on_real_films(chosen)
    if chosen.real and chosen.other_templates:
        with_other_templates(chosen)


if __name__ == "__main__":
    main()
