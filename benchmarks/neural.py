"""The networks alone and with sharpening, on phantoms and real films.

    python benchmarks/neural.py --films 500 --real FOLDER [--model MODEL] [--device cuda]

Without --model it is the shipped one. A model's own template is looked for.
"""

from pathlib import Path

import torch

from films import SCORE_COLUMNS, find, options, phantom_films, real_films, score, table
from kneematch.networks.model_file import load_model, shipped_model
from kneematch.networks.two_stage import neural, sharpened
from kneematch.solvers.adam import adam
from kneematch.solvers.anchored_refinement import nearby
from kneematch.solvers.exhaustive_search import search
from kneematch.solvers.gauss_newton import gauss_newton
from kneematch.solvers.sliding_window import sliding


def main() -> None:
    parser = options(__doc__, films=500)
    parser.add_argument("--model", type=Path, default=shipped_model())
    parser.add_argument("--methods", default="neural,neural+sharpen,search")
    parser.add_argument("--paper", action="store_true", help="lower the energy as printed")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    model = load_model(chosen.model)
    networks = model.networks(chosen.device)
    ask = neural(networks)
    methods = {
        "neural": ask,
        "neural+sharpen": sharpened(networks, nearby),
        "neural+gauss_newton": sharpened(networks, gauss_newton),
        "neural+adam": sharpened(networks, adam),
        "search": search,
        "sliding": sliding,
    }
    sets = []
    if chosen.films:
        seeds = range(chosen.seed, chosen.seed + chosen.films)
        sets.append((f"{chosen.films} phantoms", phantom_films(seeds)))
    if chosen.real:
        sets.append(("real films", real_films(chosen.real)))
    columns = (*SCORE_COLUMNS, "recall at 0.5", "left + right loss", "ms a film")
    for title, films in sets:
        rows = []
        for name in chosen.methods.split(","):
            found = find(methods[name], films, model.fine_template, chosen, paper=chosen.paper)
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
        table((title, *columns), rows)


if __name__ == "__main__":
    main()
