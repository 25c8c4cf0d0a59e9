"""Calibrate `expected_error_px` on phantoms, and check it there and on labelled real films.

    python benchmarks/expected_error.py --films 100 [--real FOLDER]

Split conformal prediction: half of the phantoms calibrates, the other half checks, with as many
films of every framing, and as many with metal, which match worst. The first table has, by mismatch,
the margin error, in widths of the area, that nine of ten knees stay below: on phantoms, and
multiplied by one factor, so that nine of ten knees of real films stay below it, too. The second
table is the share of knees below it: as `EXPECTED_ERROR` of detection/quality.py stands in the
code, as calibrated on phantoms, and with the factor; for each real film, that of the others. Run it
again after every change of the built-in networks, and copy the last row of the first table.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from films import benchmark_parser, table
from kinds import KNEE_FRAMINGS, Case, labelled_cases, metal_cases, phantom_case
from kneematch import Detector
from kneematch.errors import FilmError
from kneematch.knee.quality import measure_quality
from kneematch.paper.pose import pose_from_vector, pose_matrix
from kneematch.paper.problem import make_problem
from kneematch.sampling import compose

COVERAGE = 0.9
NEAR = 0.75  # widths of the plateau; a knee that is farther from the true one is another knee
METAL_STEP = 100  # between the seeds of phantoms with metal, many of which are passed over
GROUPS = 6  # of knees with similar mismatches
# (K, 3): mismatch, margin error and the expected one, in widths of the area
Knees = NDArray[np.float64]
Curve = tuple[Sequence[float], Sequence[float]]  # mismatches and errors


def main() -> None:
    parser = benchmark_parser(__doc__ or "", films=100)
    parser.add_argument("--model", help="model file; the built-in one if left out")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    detector = Detector.load(args.model, device=args.device)

    def phantoms(first: int) -> dict[str, Knees]:
        seeds = range(first, first + args.films // 2)
        found = {
            f"phantoms, {framing}": gather(detector, (phantom_case(framing, k) for k in seeds))
            for framing in KNEE_FRAMINGS
        }
        metal = metal_cases(len(seeds) // len(KNEE_FRAMINGS), METAL_STEP * first)
        return found | {"phantoms, with metal": gather(detector, metal)}

    curve = calibrate(np.concatenate(list(phantoms(args.seed).values())))
    checks = phantoms(args.seed + args.films // 2)
    checks["phantoms, all"] = np.concatenate(list(checks.values()))
    real = [gather(detector, [case]) for case in labelled_cases(args.real)] if args.real else []
    factor = real_factor(real, curve) if real else 1.0
    rows = [
        cells(name, knees, curve, below(knees, curve, factor)) for name, knees in checks.items()
    ]
    if real:
        others = [real_factor(real[:k] + real[k + 1 :], curve) for k in range(len(real))]
        left_out = [below(film, curve, each) for film, each in zip(real, others, strict=True)]
        name = "labelled real films"
        rows.append(cells(name, np.concatenate(real), curve, np.concatenate(left_out)))
    levels, errors = curve
    table(
        ("mismatch", *(f"{level:.2f}" for level in levels)),
        [
            ["margin error on phantoms", *(f"{error:.3f}" for error in errors)],
            [f"multiplied by {factor:.2f}", *(f"{factor * error:.3f}" for error in errors)],
        ],
    )
    table(COLUMNS, rows)


COLUMNS = (
    *("below the expected error", "knees", "as in the code", "as calibrated on phantoms"),
    "with the factor",
)


def cells(name: str, knees: Knees, curve: Curve, with_factor: NDArray[np.bool_]) -> list[str]:
    """Return a row of the second table."""
    shares = (knees[:, 1] <= knees[:, 2], below(knees, curve), with_factor)
    return [name, str(len(knees)), *(f"{share.mean():.3f}" for share in shares)]


def gather(detector: Detector, cases: Iterable[Case]) -> Knees:
    """Return the knees that are found on films and whose margins are known."""
    knees = [knee for case in cases for knee in find_knees(detector, case)]
    return np.array(knees).reshape(-1, 3)


def find_knees(detector: Detector, case: Case) -> Iterator[tuple[float, float, float]]:
    """Yield mismatch, margin error and expected error of the knees of a film."""
    (film,) = detector.prepare([case.film])
    if isinstance(film, FilmError) or case.margins is None:
        return
    posed = make_problem(film.views.pixels[None], detector.template)
    theta = pose_from_vector(detector.solver(posed).double(), posed.height_ratio)
    quality = measure_quality(posed, theta, detector.check, neural=True)
    matrices = pose_matrix(theta, detector.template.aspect, posed.image_aspect)
    to_film = compose(film.views.to_film, matrices[0]).numpy()  # (S, 3, 3)
    landmarks = np.array(list(detector.template.landmarks.values()))
    points = landmarks @ to_film[:, :2, :2].swapaxes(-1, -2) + to_film[:, None, :2, 2]  # (S, 2, 2)
    for ends in case.margins[np.array(case.scored, bool)]:
        apart = [points - order for order in (ends, ends[::-1])]
        errors = np.min([np.linalg.norm(each, axis=-1).mean(-1) for each in apart], 0)  # (S,)
        side = int(errors.argmin())
        if errors[side] < NEAR * np.linalg.norm(ends[1] - ends[0]):
            width = 2 * np.linalg.norm(to_film[side, :2, 0])
            error, expected = float(errors[side] / width), quality.expected_error(0, side)
            yield float(quality.mismatch[0, side]), error, expected


def calibrate(knees: Knees) -> Curve:
    """Return a curve that the errors of nine of ten knees stay below; it never falls."""
    ordered = knees[knees[:, 0].argsort()]
    groups = [group for group in np.array_split(ordered, GROUPS) if len(group)]
    middles = [float(np.median(group[:, 0])) for group in groups]
    limits = [conformal_quantile(group[:, 1]) for group in groups]
    return middles, list(isotonic_regression(limits).x)


def conformal_quantile(errors: NDArray[np.float64]) -> float:
    """Return what a further error stays below with the probability COVERAGE."""
    level = min(COVERAGE * (len(errors) + 1) / len(errors), 1.0)
    return float(np.quantile(errors, level, method="higher"))


def real_factor(films: Sequence[Knees], curve: Curve) -> float:
    """Return what a curve must be multiplied by, so that the knees of real films stay below it."""
    mismatches, errors, _ = np.concatenate(films).T
    return conformal_quantile(errors / np.interp(mismatches, *curve))


def below(knees: Knees, curve: Curve, factor: float = 1.0) -> NDArray[np.bool_]:
    """Return which knees have an error below a curve that is multiplied by a factor."""
    return np.asarray(knees[:, 1] <= factor * np.interp(knees[:, 0], *curve))


if __name__ == "__main__":
    main()
