"""Compare phantoms with labelled real films: joint spaces, the energy's ridge, and the margins.

    python benchmarks/phantoms.py --films 60 --real FOLDER

The folder holds films and labels.csv, as for the other benchmarks.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from kneephantoms.phantom import phantom
from numpy.typing import NDArray
from scipy.ndimage import map_coordinates

from films import benchmark_parser, table
from kneematch import Detector
from kneematch.evaluation.ground_truth import load_ground_truth
from kneematch.films.radiograph import Radiograph
from kneematch.films.read import read
from kneephantoms.anatomy import femur_border, tibia_border
from kneephantoms.film_plan import plan_film

Array = NDArray[np.float64]

PLATEAU_MM = 79.0
SECOND_OUTERMOST_U = 0.36  # of KNEEL's landmarks on the plateau, about
FLEXED = 0.045  # rim separation below which a knee was drawn in fixed flexion
PUBLISHED_MM = (("5.6", "4.7"), ("", "4.7"), ("", "4.6"), ("", "3.4"), ("4.8", "2.5"))  # of KNEEL
REACH, SIDE = 0.68, 220  # half side of a crop in plateau widths, and its pixels
SHIFTS = np.arange(-16, 17) / 100  # in plateau widths


@dataclass(frozen=True, slots=True, eq=False)
class LabelledFilm:
    """A film and the medial and lateral margins of its knees by their half of the picture."""

    radiograph: Radiograph
    margins: dict[str, Array]  # (2, 2)


def main() -> None:
    args = benchmark_parser(__doc__ or "", films=60).parse_args()
    torch.set_num_threads(args.threads)
    joint_spaces()
    sets = {"phantoms": list(phantoms(args.seed, args.films))}
    if args.real:
        sets["real films"] = list(real_films(args.real))
    ridges, errors = [], []
    detector = Detector.load(device=args.device)
    for name, films in sets.items():
        ridges.append([name, str(len(films)), *second_minima(films)])
        errors.append([name, *margin_errors(films, detector)])
    table(("knees with a second minimum, %", "films", "shifted down", "shifted across"), ridges)
    names = (f"{end} {way}" for end in ("medial", "lateral") for way in ("outwards", "down"))
    table(("median error of the built-in model, % of the plateau", "width", *names), errors)


def phantoms(seed: int, count: int) -> Iterator[LabelledFilm]:
    """Yield phantoms of the first framing that are no negatives and show no metal."""
    for each in range(seed, seed + count):
        made = phantom(each, framing="knee")
        if not made.negative and not any(knee.implant for knee in made.knees):
            margins = {
                knee.side: np.array([knee.plateau_medial, knee.plateau_lateral])
                for knee in made.knees
            }
            yield LabelledFilm(made.radiograph, margins)


def real_films(folder: Path) -> Iterator[LabelledFilm]:
    """Yield the labelled films of a folder."""
    truth = load_ground_truth(folder / "labels.csv")
    paths = [str(path) for path in sorted((folder / "films").iterdir())]
    for path, knees in truth.match(paths).items():
        margins = {
            knee.side: np.array([knee.left, knee.right])[:: -1 if knee.side == "left" else 1]
            for knee in knees
        }
        yield LabelledFilm(read(path), margins)


def joint_spaces() -> None:
    """Print the mean joint space of knees in fixed flexion, in mm, by grade."""
    u = SECOND_OUTERMOST_U * np.array([-1.0, 1.0])
    gaps: dict[int, list[Array]] = {grade: [] for grade in range(5)}
    for seed in range(1500):
        for leg in plan_film(seed).legs:
            shape = leg.shape
            if shape.growth_plates == 0 and shape.rim_separation.mean() < FLEXED:
                space = tibia_border(shape, u) - femur_border(shape, u)
                gaps[leg.grade].append(PLATEAU_MM * space)
    rows = [
        [str(grade), *(f"{mm:.1f}" for mm in np.mean(drawn, 0)), *known]
        for (grade, drawn), known in zip(gaps.items(), PUBLISHED_MM, strict=True)
    ]
    table(("KL grade", "lateral mm", "medial mm", "KNEEL lateral mm", "KNEEL medial mm"), rows)


def second_minima(films: list[LabelledFilm]) -> list[str]:
    """Return the share of knees whose loss against the mean knee has two minima, per direction."""
    crops = [
        cut_knee(film, margins) for film in films for margins in film.margins.values()
    ]  # larger than the template by the largest shift on all sides
    edge = (crops[0].shape[0] - SIDE) // 2
    inner = slice(edge, edge + SIDE)
    mean = np.mean([(crop[inner, inner] - crop.mean()) / crop.std() for crop in crops], 0)
    steps = np.round(SHIFTS * SIDE / (2 * REACH)).astype(int)
    shares = []
    for down, across in ((1, 0), (0, 1)):
        twice = 0
        for crop in crops:
            loss = np.array(
                [
                    1
                    - np.corrcoef(
                        mean.ravel(),
                        np.roll(crop, (-down * k, -across * k), (0, 1))[inner, inner].ravel(),
                    )[0, 1]
                    for k in steps
                ]
            )
            lower = (loss[1:-1] < loss[:-2]) & (loss[1:-1] <= loss[2:])
            twice += int(lower.sum() > 1)
        shares.append(f"{100 * twice / len(crops):.0f}")
    return shares


def cut_knee(film: LabelledFilm, margins: Array) -> Array:
    """Return an upright crop around a knee, medial to the left."""
    medial, lateral = margins
    along = lateral - medial
    down = np.array([-along[1], along[0]])
    down = down if down[1] > 0 else -down
    places = (np.arange(2 * SIDE) + 0.5) * (2 * REACH / SIDE) - 2 * REACH
    points = (medial + lateral) / 2 + places[None, :, None] * along + places[:, None, None] * down
    pixels = film.radiograph.pixels
    crop: Array = map_coordinates(pixels, points[..., ::-1].transpose(2, 0, 1) - 0.5, order=1)
    return crop.astype(np.float64)


def margin_errors(films: list[LabelledFilm], detector: Detector) -> list[str]:
    """Return medians in %: width, then each margin's error outwards and down."""
    errors = []
    results = detector.detect_each(film.radiograph for film in films)
    for film, result in zip(films, results, strict=True):
        for found in result.detections:
            if found.side not in film.margins:
                continue
            medial, lateral = truth = film.margins[found.side]
            width = float(np.linalg.norm(lateral - medial))
            along = (lateral - medial) / width
            down = np.array([-along[1], along[0]])
            down = down if down[1] > 0 else -down
            ends = np.array([found.landmarks[f"plateau_{end}"] for end in ("medial", "lateral")])
            first, second = (ends - truth) / width
            wider = float(np.linalg.norm(ends[1] - ends[0])) / width - 1
            errors.append([wider, -first @ along, first @ down, second @ along, second @ down])
    return [f"{100 * error:+.2f}" for error in np.median(errors, 0)]


if __name__ == "__main__":
    main()
