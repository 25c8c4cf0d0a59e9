"""Measure how well the `review` flag tells bad areas from good ones.

    python lab/review_flags.py [--films 100] [--real FOLDER]

First table: areas with an IoU of at least 0.75 and below, and the share of each that is flagged;
knees with metal are left out, since all of them are to be flagged. Bad areas come from methods that
make mistakes: the search with templates from other knees, and the paper's baseline. Second table:
films without frontal knees (other parts of the body, pictures of scikit-image and pydicom, noise),
on how many no knee is found, and how many are flagged.
"""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pydicom.data
import skimage.data
import torch
from numpy.typing import NDArray

from films import (
    Case,
    benchmark_parser,
    find_knees,
    iou,
    labelled_cases,
    phantom_case,
    radiograph,
    table,
)
from kneematch import Detector, KneematchError, Radiograph, read
from kneematch.films.annotation import Annotation, annotate
from kneephantoms import phantom

GOOD = 0.75  # IoU
HALVES = "neural+sharpen"  # the built-in networks on halves, as in the paper
Judged = list[tuple[float, bool]]  # by area: its IoU, and whether it is flagged


def main() -> None:
    parser = benchmark_parser(__doc__, films=100)
    args = parser.parse_args()
    torch.set_num_threads(1)
    detector, halves = Detector.load(), Detector.load(method=HALVES)
    seeds = range(args.seed, args.seed + args.films)
    phantoms = {
        framing: [phantom_case(framing, k) for k in seeds] for framing in ("bilateral", "any")
    }
    sets = [
        ("phantoms", judge(phantoms["bilateral"], detector)),
        ("phantoms, halves", judge(phantoms["bilateral"], halves)),
        ("phantoms of every framing", judge(phantoms["any"], detector)),
    ]
    if args.real:
        sets += on_real_films(args.real, detector, halves)
    sets.append(("all", [each for _, judged in sets for each in judged]))
    columns = ("areas", "good", "of these flagged", "bad (IoU < 0.75)", "of these flagged")
    table(columns, ([name, *counts(judged)] for name, judged in sets))
    columns = ("films without knees", "films", "no knee found", "flagged", "not flagged")
    table(columns, without_knees(seeds, {"auto": detector, "halves": halves}))


def on_real_films(real: Path, detector: Detector, halves: Detector) -> Iterator[tuple[str, Judged]]:
    """Yield what several methods find on the labelled films."""
    cases, own = list(labelled_cases(real)), real / "template.json"
    yield "real films", judge(cases, detector)
    yield "real films, halves", judge(cases, halves)
    for method in ("auto", "search", "sliding"):
        other = Detector.load(template=own, method=method)
        yield f"real films, {method}, their own template", judge(cases, other)
    for number, drawn in enumerate(other_templates(cases), start=1):
        other = Detector.load(template=drawn, method="search")
        yield f"real films, search, template {number}", judge(cases, other)


def other_templates(cases: Sequence[Case]) -> Iterator[Annotation]:
    """Yield the usual boxes around the right knees of three of the films."""
    for case in [case for case in cases if case.knees == 2 and all(case.scored)][2::12]:
        left, right = ((float(x), float(y)) for x, y in case.margins[1])
        yield annotate(case.path, "right", left, right)


def judge(cases: Iterable[Case], detector: Detector) -> Judged:
    """Return the overlap of every area with the true one, and whether it is flagged.

    Areas of doubtful knees and of knees with metal are left out.
    """
    judged = []
    for case in cases:
        margins = [] if case.margins is None else list(case.margins)
        metal = case.metal or (False,) * len(margins)
        for knee in find_knees(detector, case.film):
            overlaps = [iou(knee, ends) for ends in margins]
            best = int(np.argmax(overlaps)) if any(overlaps) else None
            if best is None or (case.scored[best] and not metal[best]):
                judged.append((max(overlaps, default=0.0), knee.needs_review))
    return judged


def counts(judged: Judged) -> list[str]:
    cells = []
    for good in (True, False):
        flags = [flagged for overlap, flagged in judged if (overlap >= GOOD) == good]
        cells += [str(len(flags)), f"{np.mean(flags):.1%}" if flags else "-"]
    return cells


def without_knees(seeds: range, detectors: dict[str, Detector]) -> Iterator[list[str]]:
    """Yield a row per kind of film and method."""
    kinds = {
        "phantoms of other parts": [radiograph(phantom(k, framing="other")) for k in seeds],
        "pictures of scikit-image and pydicom": list(pictures()),
        "noise": list(noise()),
    }
    for name, films in kinds.items():
        for method, detector in detectors.items():
            found = [find_knees(detector, film) for film in films]
            none = sum(not knees for knees in found)
            flagged = sum(any(knee.needs_review for knee in knees) for knees in found)
            numbers = len(films), none, flagged, len(films) - none - flagged
            yield [f"{name}, {method}", *map(str, numbers)]


def pictures() -> Iterator[Radiograph]:
    """Yield the grey pictures of scikit-image and the films among pydicom's test files."""
    for name in ("camera", "coins", "page", "text", "moon", "brick", "grass", "gravel"):
        yield as_film(getattr(skimage.data, name)())
    folder = Path(pydicom.data.__file__).parent / "test_files"
    for path in sorted(folder.glob("*.dcm")):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                film = read(path)
        except KneematchError:
            continue
        if min(film.size) >= 32:
            yield film


def noise(count: int = 16) -> Iterator[Radiograph]:
    """Yield noise from white to coarse."""
    for seed in range(count):
        grain = 2 ** (seed % 7)
        small = np.random.default_rng(seed).normal(size=(1, 1, 800 // grain, 1000 // grain))
        tensor = torch.from_numpy(small.astype(np.float32))
        large = torch.nn.functional.interpolate(tensor, (800, 1000), mode="bicubic")
        yield as_film(large[0, 0].numpy())


def as_film(pixels: NDArray[np.generic]) -> Radiograph:
    grey = pixels.astype(np.float32)
    grey -= grey.min()
    return Radiograph(grey / max(float(grey.max()), 1e-6))


if __name__ == "__main__":
    main()
