"""Compare the exhaustive search with sliding windows: scikit-image (the paper's), OpenCV and MTM.

    pip install '.[benchmark]'; python benchmarks/baselines.py [--films N] [--real FOLDER]

All methods look for the same template in the same halves, at the same five scales and in both
polarities. OpenCV's matchTemplate (TM_CCOEFF_NORMED) is used as kneematch's own baseline uses
scikit-image's match_template: each side's best place at each scale, then the scale of the lowest
sum of both losses. Multi-Template-Matching gets the template at five scales and their negatives,
and its best hit in each half is taken. Columns: the paper's loss (sum of both sides, mean over the
films), the scores of films.py and the time per film on `--threads` threads; only the search uses
`--device`.
"""

import argparse
from collections.abc import Callable, Sequence

import cv2
import MTM
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from films import (
    Film,
    Found,
    benchmark_parser,
    evaluate_poses,
    find,
    score,
    sets_of_films,
    table,
    timed,
)
from kneematch.paper.energy import losses, paper_terms
from kneematch.paper.sliding_window import SCALES, sliding_window
from kneematch.paper.template import Template
from kneematch.search.exhaustive_search import exhaustive_search

Image = NDArray[np.float32]
Pose = tuple[float, float, float, float]


def opencv(film: Film, template: Template) -> Tensor:
    """Return the poses (2, 4) of OpenCV's matchTemplate at five scales of the half."""
    image = template.image.numpy()
    halves = film.halves.pixels
    theta = torch.tensor(
        [[_both_polarities(half.numpy(), image, scale) for half in halves] for scale in SCALES]
    )  # (K, S, 2, 4)
    terms = paper_terms(halves[None], template)
    loss = torch.stack(
        [
            torch.stack([losses(terms, at[None, :, polarity])[0] for polarity in (0, 1)], dim=-1)
            for at in theta
        ]
    )  # (K, S, 2)
    loss, polarity = loss.min(-1)
    best = int(loss.sum(-1).argmin())
    return theta[best, torch.arange(2), polarity[best]]


def _both_polarities(half: Image, image: Image, scale: float) -> list[Pose]:
    """Return the poses of the highest and of the lowest correlation."""
    (height, width), (rows, columns) = image.shape, half.shape
    wide = max(round(width / scale), width)
    tall = max(round(wide * rows / columns), height)
    shrinks = wide < columns
    resized = cv2.resize(
        half, (wide, tall), interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    )
    response = cv2.matchTemplate(resized, image, cv2.TM_CCOEFF_NORMED)
    _, _, low, high = cv2.minMaxLoc(np.nan_to_num(response, posinf=0, neginf=0))
    return [
        (width / wide, (2 * x + width) / wide - 1, (2 * y + height) / tall - 1, 0.0)
        for x, y in (high, low)
    ]


def mtm(film: Film, template: Template) -> Tensor:
    """Return the poses (2, 4) of Multi-Template-Matching's best hit in each half."""
    image = template.image.numpy()
    half_height, half_width = film.halves.size
    templates = []
    for scale in SCALES:
        width = round(scale * half_width)
        size = (width, round(width * template.aspect))
        resized = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
        templates += [(f"{scale}", resized), (f"-{scale}", 1 - resized)]
    poses = []
    for half in film.halves.pixels:
        hits = MTM.matchTemplates(templates, half.numpy(), N_object=1, score_threshold=0.0)
        x, y, width, height = hits[0][1] if hits else (0, 0, half_width // 2, half_width // 2)
        centre = (2 * x + width) / half_width - 1, (2 * y + height) / half_height - 1
        poses.append((width / half_width, *centre, 0.0))
    return torch.tensor(poses)


def film_by_film(
    method: Callable[[Film, Template], Tensor], films: Sequence[Film], template: Template
) -> Found:
    """Run a method on one film after another; the first film runs once more, to warm up."""
    method(films[0], template)
    theta, seconds = timed(lambda: torch.stack([method(film, template) for film in films]))
    return evaluate_poses(films, template, theta, seconds / len(films))


def rows_of(films: Sequence[Film], template: Template, args: argparse.Namespace) -> list[list[str]]:
    """Return one row per method."""
    methods = {
        "search, robust energy": find(exhaustive_search, films, template, args, paper=False),
        "search, the paper's energy": find(exhaustive_search, films, template, args, paper=True),
        "sliding (scikit-image)": find(sliding_window, films, template, args, paper=True),
        "OpenCV matchTemplate": film_by_film(opencv, films, template),
        "Multi-Template-Matching": film_by_film(mtm, films, template),
    }
    rows = []
    for name, found in methods.items():
        _, iou, recall, *_ = score(films, template, found.theta).row(films)
        loss = f"{found.loss.sum(-1).mean():.4f}"
        rows.append([name, loss, iou, recall, f"{1000 * found.seconds:.0f}"])
    return rows


def main() -> None:
    """Measure and print."""
    args = benchmark_parser(__doc__, films=100).parse_args()
    torch.set_num_threads(args.threads)
    cv2.setNumThreads(args.threads)
    for label, films, template in sets_of_films(args):
        print(f"{len(films)} films ({label}), device of the search {args.device}.\n")
        columns = ("method", "left + right loss, mean", "mean IoU", "recall at 0.75", "ms per film")
        table(columns, rows_of(films, template, args))


if __name__ == "__main__":
    main()
