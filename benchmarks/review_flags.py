"""Measure how well the `review` flag separates bad areas from good ones and recognises other films.

    python benchmarks/review_flags.py --films 300 [--real FOLDER]

First table: areas with an IoU of at least 0.75 and below, and the share of each that is flagged;
knees with metal are left out, since all of them are to be flagged. Bad areas of the default method
are provoked: it looks for the knee beside the place where the locator saw it, or at another scale.
Other bad areas come from methods that make mistakes: the search with templates from other knees,
and the paper's baseline. Second table: films without frontal knees, and how many are flagged:
pictures of scikit-image and pydicom, drawn hands and chests, noise, and legs from the side.
"""

import argparse
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from films import benchmark_parser, table
from kinds import Case, iou, labelled_cases, phantom_case
from kneematch import Detection, Detector
from kneematch.errors import FilmError
from kneematch.films.annotation import Annotation, annotate
from kneematch.films.radiograph import Radiograph
from kneematch.films.read import read
from kneematch.knee.knee_images import SIDE_MARGIN, film_tensor, knee_images
from kneematch.models.locator import KneeLocation
from kneematch.paper.split import SIDES, split

GOOD = 0.75  # IoU
HALVES = "neural+sharpen"  # the built-in networks on halves, as in the paper
# Where a knee is looked for instead: right, down (in plateau widths), and how much larger.
ASTRAY = ((0.7, 0.0, 1.0), (-0.7, 0.0, 1.0), (0.0, 0.8, 1.0), (0.0, -0.8, 1.0), (0.0, 0.0, 1.8))
Pixels = NDArray[np.float32]
Judged = list[tuple[float, bool]]  # by area: its IoU, and whether it is flagged


def main() -> None:
    parser = benchmark_parser(__doc__ or "", films=300)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    detector = Detector.load()
    seeds = range(args.seed, args.seed + args.films)
    sets = [
        ("phantoms", judge(phantoms("bilateral", seeds), detector)),
        ("phantoms, halves", judge(phantoms("bilateral", seeds), Detector.load(method=HALVES))),
        ("phantoms of every framing", judge(phantoms("any", seeds), detector)),
        ("full-leg phantoms", judge(phantoms("full_leg", seeds), detector)),
        ("phantoms, looked for astray", astray(phantoms("any", seeds[::2]), detector)),
    ]
    if args.real:
        sets += on_real_films(args, detector)
    rows = [[name, *counts(judged)] for name, judged in sets]
    table(COLUMNS, [*rows, ["all", *counts([each for _, judged in sets for each in judged])]])
    table(FILM_COLUMNS, without_knees({"auto": detector, "halves": Detector.load(method=HALVES)}))


COLUMNS = ("areas", "good", "of these flagged", "bad (IoU < 0.75)", "of these flagged")
FILM_COLUMNS = (
    *("films without knees", "films", "no knee found", "flagged", "not flagged"),
    *("halves: flagged", "halves: not flagged"),
)


def phantoms(framing: str, seeds: Iterable[int]) -> Iterator[Case]:
    return (phantom_case(framing, seed) for seed in seeds)


def counts(judged: Judged) -> list[str]:
    cells = []
    for good in (True, False):
        flags = [flagged for overlap, flagged in judged if (overlap >= GOOD) == good]
        cells += [str(len(flags)), f"{np.mean(flags):.1%}" if flags else "-"]
    return cells


def on_real_films(args: argparse.Namespace, detector: Detector) -> Iterator[tuple[str, Judged]]:
    """Yield what several methods find on the labelled films."""
    cases, own = list(labelled_cases(args.real)), args.real / "template.json"
    yield "real films", judge(cases, detector)
    yield "real films, looked for astray", astray(cases, detector)
    yield "real films, halves", judge(cases, Detector.load(method=HALVES))
    yield "real films, their own template", judge(cases, Detector.load(template=own))
    for method in ("search", "sliding"):
        other = Detector.load(template=own, method=method)
        yield f"real films, {method}, their own template", judge(cases, other)
    for number, drawn in enumerate(other_templates(cases), start=1):
        other = Detector.load(template=drawn, method="search")
        yield f"real films, search, template {number}", judge(cases, other)


def judge(cases: Iterable[Case], detector: Detector) -> Judged:
    """Return the overlap of every area with the true one, and whether it is flagged."""
    judged = []
    for case in cases:
        (result,) = detector.detect_each([case.film])
        judged += judge_film(case, result.detections)
    return judged


def judge_film(case: Case, found: Sequence[Detection]) -> Judged:
    """Judge the areas of a film, except for those of doubtful knees and of knees with metal."""
    margins = np.empty((0, 2, 2)) if case.margins is None else case.margins
    metal = case.metal or (False,) * len(margins)
    judged = []
    for knee in found:
        overlaps = [iou(knee, ends) for ends in margins]
        best = int(np.argmax(overlaps)) if any(overlaps) else None
        if best is None or (case.scored[best] and not metal[best]):
            judged.append((max(overlaps, default=0.0), knee.needs_review))
    return judged


def astray(cases: Iterable[Case], detector: Detector) -> Judged:
    """Judge what is found where the locator did not see the knees."""
    judged = []
    for case in cases:
        (prepared,) = detector.prepare([case.film])
        if isinstance(prepared, FilmError):
            continue
        seen = [knee.place for knee in prepared.knees if knee.place is not None]
        for right, down, larger in ASTRAY:
            places = [move_place(place, right, down, larger) for place in seen]
            views = knee_images(torch.from_numpy(case.film.pixels), places)
            (found,) = detector.find([replace(prepared, views=views)])
            judged += judge_film(case, found)
    return judged


def move_place(place: KneeLocation, right: float, down: float, larger: float) -> KneeLocation:
    """Shift a place in the upright picture, in plateau widths, and make it larger."""
    angle = place.rotation - math.pi / 2 * place.quarter_turns
    across = right * math.cos(angle) - down * math.sin(angle)
    along = right * math.sin(angle) + down * math.cos(angle)
    x, y = place.x + across * place.width, place.y + along * place.width
    return replace(place, x=x, y=y, width=larger * place.width)


def other_templates(cases: Sequence[Case]) -> Iterator[Annotation]:
    """Yield the usual boxes around the right knees of three of the films."""
    certain = [case for case in cases if case.margins is not None and all(case.scored)]
    for case in certain[2::12]:
        left, right = ((float(x), float(y)) for x, y in case.margins[1])
        yield annotate(case.path, SIDES[1], left, right)


def without_knees(detectors: dict[str, Detector]) -> Iterator[list[str]]:
    """Yield a row per kind of film: how many have no knee, flagged ones, and others."""
    kinds = {
        "pictures of scikit-image and pydicom": pictures,
        "hands": hands,
        "chests": chests,
        "noise": noise,
        "legs from the side": lateral,
    }
    rows = []
    for name, make in kinds.items():
        films = list(make())
        located, halves = (outcomes(films, detector) for detector in detectors.values())
        rows.append((name, len(films), *located, *halves[1:]))
        yield [str(cell) for cell in rows[-1]]
    yield ["all", *(str(sum(column)) for column in list(zip(*rows, strict=True))[1:])]


def outcomes(films: Sequence[Radiograph], detector: Detector) -> tuple[int, int, int]:
    """Return on how many films no knee was found, one was flagged, and knees were not flagged."""
    found = [result.detections for result in detector.detect_each(films)]
    none = sum(not knees for knees in found)
    flagged = sum(any(knee.needs_review for knee in knees) for knees in found)
    return none, flagged, len(films) - none - flagged


def as_film(pixels: NDArray[np.floating]) -> Radiograph:
    pixels = pixels - pixels.min()
    return Radiograph(pixels=(pixels / max(float(pixels.max()), 1e-6)).astype(np.float32))


def usable(film: Radiograph) -> bool:
    try:
        split(film_tensor(film), side_margin=SIDE_MARGIN)
    except FilmError:
        return False
    return min(film.size) >= 64


def pictures() -> Iterator[Radiograph]:
    import skimage.data
    from pydicom.data import get_testdata_files

    for name in ("camera", "coins", "moon", "brick", "grass", "gravel", "page", "text", "clock"):
        try:
            yield as_film(np.asarray(getattr(skimage.data, name)(), dtype=np.float32))
        except (OSError, ModuleNotFoundError, ValueError):  # some are not in the package
            continue
    for path in sorted(get_testdata_files("*")):
        try:
            film = read(path)
        except FilmError:
            continue
        if usable(film):
            yield film


def canvas(height: int, width: int) -> tuple[Pixels, Pixels]:
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    return x / width, y / width


def rod(x: Pixels, y: Pixels, a: Sequence[float], b: Sequence[float], radius: float) -> Pixels:
    """Return a tube of bone from a to b, denser at its border."""
    (ax, ay), (bx, by) = a, b
    along = ((x - ax) * (bx - ax) + (y - ay) * (by - ay)) / ((bx - ax) ** 2 + (by - ay) ** 2)
    along = along.clip(0, 1)
    distance = np.hypot(x - ax - along * (bx - ax), y - ay - along * (by - ay)) / radius
    thick = np.sqrt((1 - distance**2).clip(0))
    hollow = np.sqrt((1 - (distance / 0.7) ** 2).clip(0))
    return thick - 0.55 * hollow


def hands(count: int = 16) -> Iterator[Radiograph]:
    """Draw two hands, each with five rays of bones, a forearm and soft tissue."""
    for seed in range(count):
        rng = np.random.default_rng(seed)
        x, y = canvas(800, 1000)
        film = np.zeros_like(x)
        for side in (0.27, 0.73):
            mirror = 1 if side < 0.5 else -1
            wrist = side, 0.68
            for finger in range(5):
                angle = math.radians(-90 + mirror * (finger - 2) * 14 + rng.normal(0, 2))
                place = np.array(wrist) + 0.04 * np.array([mirror * (finger - 2), -1.0])
                for length, radius in ((0.13, 0.014), (0.09, 0.012), (0.06, 0.01), (0.04, 0.008)):
                    end = place + length * np.array([math.cos(angle), math.sin(angle)])
                    film += rod(x, y, place, end, radius) + 0.25 * rod(x, y, place, end, 0.03)
                    place = end + 0.012 * np.array([math.cos(angle), math.sin(angle)])
            film += rod(x, y, (side - 0.03, 0.7), (side - 0.04, 0.95), 0.025)
            film += rod(x, y, (side + 0.03, 0.7), (side + 0.04, 0.95), 0.02)
        yield as_film(film + rng.normal(0, 0.02, film.shape))


def chests(count: int = 16) -> Iterator[Radiograph]:
    """Draw lungs, ribs, spine and heart."""
    for seed in range(count):
        rng = np.random.default_rng(seed)
        x, y = canvas(1000, 1000)
        film = 1.2 * np.exp(-(((x - 0.5) / 0.42) ** 8) - ((y - 0.55) / 0.5) ** 8)
        for side in (-1, 1):
            lung = ((x - 0.5 - 0.2 * side) / 0.14) ** 2 + ((y - 0.48) / 0.3) ** 2
            film -= 0.8 / (1 + np.exp((18 * (lung - 1)).clip(max=50)))
            for rib in range(9):
                arc = 0.2 + 0.07 * rib + 0.5 * (x - 0.5) ** 2 + 0.1 * side * (x - 0.5)
                inside = (side * (x - 0.5) > 0.02) & (side * (x - 0.5) < 0.36)
                film += 0.25 * np.exp(-(((y - arc) / 0.012) ** 2)) * inside
        film += 0.5 * np.exp(-(((x - 0.5) / 0.04) ** 4))
        film += 0.6 * np.exp(-(((x - 0.56) / 0.12) ** 4) - ((y - 0.62) / 0.13) ** 4)
        yield as_film(film + rng.normal(0, 0.02, film.shape))


def noise(count: int = 16) -> Iterator[Radiograph]:
    """Draw noise from white to coarse."""
    for seed in range(count):
        rng = np.random.default_rng(seed)
        grain = 2 ** (seed % 7)
        small = rng.normal(size=(1, 1, 800 // grain, 1000 // grain)).astype(np.float32)
        large = torch.nn.functional.interpolate(
            torch.from_numpy(small), (800, 1000), mode="bicubic"
        )
        yield as_film(large[0, 0].numpy())


def lateral(count: int = 16) -> Iterator[Radiograph]:
    """Draw one or two flexed knees from the side, the patella in front."""
    for seed in range(count):
        rng = np.random.default_rng(seed)
        x, y = canvas(900, 1000)
        film = np.zeros_like(x)
        for place in (0.28, 0.74) if seed % 2 else (0.5,):
            bend = rng.uniform(0.15, 0.5)
            joint = place, 0.45 + rng.normal(0, 0.03)
            thigh = joint[0] - 0.4 * math.sin(bend), joint[1] - 0.4 * math.cos(bend)
            shin = joint[0] - 0.4 * math.sin(bend), joint[1] + 0.45 * math.cos(bend)
            film += rod(x, y, joint, thigh, 0.05)
            film += np.sqrt((1 - np.hypot(x - joint[0], y - joint[1] + 0.03) ** 2 / 0.005).clip(0))
            film += rod(x, y, (joint[0], joint[1] + 0.07), shin, 0.045)
            film += 0.8 * rod(
                x, y, (joint[0] + 0.1, joint[1] - 0.09), (joint[0] + 0.11, joint[1] - 0.02), 0.025
            )
            film += 0.3 * rod(x, y, thigh, joint, 0.12) + 0.3 * rod(x, y, joint, shin, 0.1)
        yield as_film(film + rng.normal(0, 0.02, film.shape))


if __name__ == "__main__":
    main()
