"""Measure the accuracy of a model's networks, alone and with refinement.

    python benchmarks/neural.py --films 500 [--real FOLDER] [--model MODEL] [--device cuda]

One row per method and group of films. Columns: the scores of films.py, recall at 0.5, the paper's
loss (sum of both sides) and the time per film. The model's own template is looked for; without
--model it is the built-in one.
"""

from functools import partial
from pathlib import Path

import torch

from films import SCORE_COLUMNS, benchmark_parser, film_sets, find, score, table
from kneematch.knee.methods import OWN_TRUST
from kneematch.models.model_file import builtin_model, load_model
from kneematch.models.two_stage import network_solver
from kneematch.paper.sharpening import adam
from kneematch.paper.sliding_window import sliding_window
from kneematch.search.anchored_refinement import QUICK_LEVELS, refine_anchored
from kneematch.search.exhaustive_search import exhaustive_search


def main() -> None:
    parser = benchmark_parser(__doc__, films=500)
    parser.add_argument("--model", type=Path, default=builtin_model())
    parser.add_argument("--methods", default="neural,neural+sharpen,search")
    parser.add_argument("--paper", action="store_true", help="minimise the paper's energy")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = load_model(args.model)
    networks = model.networks(args.device)
    ask = network_solver(networks)
    methods = {
        "neural": ask,
        "neural+sharpen": network_solver(
            networks, partial(refine_anchored, levels=QUICK_LEVELS, trust=OWN_TRUST)
        ),
        "neural+two levels": network_solver(networks, partial(refine_anchored, trust=OWN_TRUST)),
        "neural+gauss_newton": network_solver(networks, partial(refine_anchored, trust=0.0)),
        "neural+adam": network_solver(networks, adam),
        "search": exhaustive_search,
        "sliding": sliding_window,
    }
    columns = (*SCORE_COLUMNS, "recall at 0.5", "left + right loss", "ms per film")
    for title, films in film_sets(args).items():
        rows = []
        for name in args.methods.split(","):
            found = find(methods[name], films, model.fine_template, args, paper=args.paper)
            scores = score(films, model.fine_template, found.theta)
            for tag in (None, *sorted({tag for film in films for tag in film.tags})):
                tagged = torch.tensor([tag is None or tag in film.tags for film in films])
                iou = scores.iou[tagged]
                iou = iou[~iou.isnan()]
                rows.append(
                    [
                        f"{name}, {tag or 'all'}",
                        *scores.row(films, tag),
                        f"{(iou >= 0.5).double().mean():.3f}",
                        f"{found.loss[tagged].sum(-1).mean():.4f}",
                        f"{1000 * found.seconds:.1f}",
                    ]
                )
        table((f"{len(films)} films ({title})", *columns), rows)


if __name__ == "__main__":
    main()
