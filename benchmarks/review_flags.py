"""Measure how well the `review` flag separates bad areas from good ones and recognises other films.

    python benchmarks/review_flags.py --films 300 [--real FOLDER]

First table: areas with an IoU of at least 0.75 and below, and the share of each that is flagged.
Bad areas come from methods that make mistakes: the search with templates from other knees, and the
paper's baseline. Second table: films without knees from the front, and how many are flagged:
pictures of scikit-image and pydicom, drawn hands and chests, noise, phantoms on their side or
upside down, and legs from the side.
"""

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from films import (
    Film,
    benchmark_parser,
    halves_of,
    known,
    phantom_films,
    real_films,
    score,
    table,
)
from kneematch.detection.detector import Detector
from kneematch.detection.methods import NEURAL
from kneematch.detection.quality import measure_quality
from kneematch.errors import FilmError
from kneematch.geometry.pose import pose_from_vector
from kneematch.geometry.split import ROOM, SIDES, split
from kneematch.io.radiograph import Radiograph
from kneematch.io.read import read
from kneematch.solvers.problem import make_problem
from kneematch.synthetic.annotation import annotate
from kneematch.synthetic.phantom import phantom

GOOD = 0.75  # IoU
Pixels = NDArray[np.float32]


@dataclass(frozen=True)
class Flagged:
    """IoU of the areas of N films, and whether they are flagged."""

    iou: Tensor  # (N, 2)
    flagged: Tensor  # (N, 2) bool


def main() -> None:
    parser = benchmark_parser(__doc__, films=300)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    detector = Detector.load(batch_size=args.batch)
    sets: list[tuple[str, Flagged]] = []
    phantoms = phantom_films(range(args.films))
    sets.append(("phantoms, neural+sharpen", judge(phantoms, detector)))
    if args.real:
        sets += list(on_real_films(args, detector))
    rows = [[name, *counts([flagged_set])] for name, flagged_set in sets]
    table(COLUMNS, [*rows, ["all", *counts([flagged_set for _, flagged_set in sets])]])
    table(("films without knees", "films", "flagged", "not flagged"), without_knees(detector))


COLUMNS = ("areas", "good", "of these flagged", "bad (IoU < 0.75)", "of these flagged")


def counts(sets: Sequence[Flagged]) -> list[str]:
    iou = torch.cat([flagged_set.iou.flatten() for flagged_set in sets])
    flagged = torch.cat([flagged_set.flagged.flatten() for flagged_set in sets])
    cells = []
    for part in (iou >= GOOD, iou < GOOD):
        share = f"{flagged[part].double().mean():.1%}" if part.any() else "-"
        cells += [str(int(part.sum())), share]
    return cells


def on_real_films(args: argparse.Namespace, detector: Detector) -> Iterator[tuple[str, Flagged]]:
    films = real_films(args.real)
    yield "real films, neural+sharpen", judge(films, detector)
    own = args.real / "template.json"
    yield (
        "real films, neural+sharpen, their own template",
        judge(films, Detector.load(template=own)),
    )
    for method in ("search", "sliding"):
        other = Detector.load(template=own, method=method)
        yield f"real films, {method}, their own template", judge(films, other)
    others = [film for film in known(films) if film.name.endswith(("3", "5", "8"))][:3]
    for k, film in enumerate(others):
        (path,) = (args.real / "films").glob(f"{film.name}.*")
        left, right = ((float(x), float(y)) for x, y in film.margins[1])
        other = Detector.load(template=annotate(path, SIDES[1], left, right), method="search")
        yield f"real films, search, template {k + 1}", judge(films, other)


def judge(films: Sequence[Film], detector: Detector) -> Flagged:
    """Score and flag what a detector finds; knees that the film's edge cuts are not flagged."""
    theta, flagged = [], []
    for film in films:
        problem = make_problem(halves_of([film], "cpu"), detector.template)
        poses = pose_from_vector(detector.solver(problem).v, problem.height_ratio)
        quality = measure_quality(problem, poses, detector.check, neural=detector.method in NEURAL)
        flagged.append([bool(quality.review(0, side, cut=False)[0]) for side in (0, 1)])
        theta.append(poses)
    return Flagged(score(films, detector.template, torch.cat(theta)).iou, torch.tensor(flagged))


def without_knees(detector: Detector) -> Iterator[list[str]]:
    kinds = {
        "pictures of scikit-image and pydicom": pictures,
        "hands": hands,
        "chests": chests,
        "noise": noise,
        "rotated phantoms": rotated,
        "legs from the side": lateral,
    }
    total = [0, 0]
    for name, make in kinds.items():
        films = list(make())
        found = detector.detect(films)
        flagged = sum(any(knee.review for knee in knees) for knees in found)
        total = [total[0] + len(films), total[1] + flagged]
        yield [name, str(len(films)), f"{flagged / len(films):.0%}", str(len(films) - flagged)]
    yield ["all", str(total[0]), f"{total[1] / total[0]:.1%}", str(total[0] - total[1])]


def as_film(pixels: NDArray[np.floating]) -> Radiograph:
    pixels = pixels - pixels.min()
    return Radiograph(pixels=(pixels / max(float(pixels.max()), 1e-6)).astype(np.float32))


def usable(film: Radiograph) -> bool:
    try:
        split(film, room=ROOM)
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


def rotated(count: int = 10) -> Iterator[Radiograph]:
    for seed in range(count):
        pixels = phantom(7_000_000 + seed).radiograph.pixels
        yield as_film(np.flipud(pixels))
        yield as_film(np.rot90(pixels))


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
