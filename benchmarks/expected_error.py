"""Calibrate `expected_error_px` on phantoms, and check it there and on labelled real films.

    python benchmarks/expected_error.py --films 100 [--real FOLDER]

Split conformal prediction: phantoms with even seeds calibrate, those with odd seeds check, with as
many films of every framing. The first table is for `EXPECTED_ERROR` in detection/quality.py: by
mismatch, the margin error, in widths of the area, that nine of ten knees stay below. The second
table is the share of knees below it, as it stands in the code and as it was just calibrated. Run
it again after every change of the built-in networks, and copy the first table.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from films import benchmark_parser, table
from kinds import Case, labelled_cases, phantom_case
from kneematch import Detector
from kneematch.detection.quality import EXPECTED_ERROR, measure_quality
from kneematch.errors import FilmError
from kneematch.geometry.pose import pose_from_vector, pose_matrix
from kneematch.geometry.view import compose
from kneematch.solvers.problem import make_problem

FRAMINGS = ("bilateral", "single", "full_leg", "offcentre", "lateral")
COVERAGE = 0.9
NEAR = 0.75  # widths of the plateau; a knee that is farther from the true one is another knee
GROUPS = 6  # of knees with similar mismatches
Knees = NDArray[np.float64]  # (K, 2): mismatch and margin error, in widths of the area
Curve = tuple[Sequence[float], Sequence[float]]  # mismatches and errors


def main() -> None:
    parser = benchmark_parser(__doc__ or "", films=100)
    parser.add_argument("--model", help="model file; the built-in one if left out")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    detector = Detector.load(args.model, device=args.device)

    def phantoms(framing: str, odd: int) -> Knees:
        seeds = range(args.seed + odd, args.seed + args.films, 2)
        return gather(detector, (phantom_case(framing, seed) for seed in seeds))

    curve = calibrate(np.concatenate([phantoms(framing, 0) for framing in FRAMINGS]))
    head, cells = (
        [f"{value:.{digits}f}" for value in row] for row, digits in zip(curve, (2, 3), strict=True)
    )
    table(("mismatch", *head), [["margin error", *cells]])
    checks = {f"phantoms, {framing}": phantoms(framing, 1) for framing in FRAMINGS}
    checks["phantoms, all"] = np.concatenate(list(checks.values()))
    if args.real:
        checks["labelled real films"] = gather(detector, labelled_cases(args.real))
    rows = [
        [
            name,
            str(len(knees)),
            *(f"{covered(knees, each):.3f}" for each in (EXPECTED_ERROR, curve)),
        ]
        for name, knees in checks.items()
    ]
    table(("below the expected error", "knees", "as in the code", "as calibrated"), rows)


def gather(detector: Detector, cases: Iterator[Case]) -> Knees:
    """Return the knees that are found on films and whose margins are known."""
    knees = [knee for case in cases for knee in find_knees(detector, case)]
    return np.array(knees).reshape(-1, 2)


def find_knees(detector: Detector, case: Case) -> Iterator[tuple[float, float]]:
    """Yield the mismatch and the margin error of the knees of a film."""
    film = detector.prepare(case.film)
    if isinstance(film, FilmError) or case.margins is None:
        return
    posed = make_problem(film.views.pixels[None], detector.template)
    theta = pose_from_vector(detector.solver(posed).v.double(), posed.height_ratio)
    quality = measure_quality(posed, theta, None, neural=True)
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
            yield float(quality.mismatch[0, side]), float(errors[side] / width)


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


def covered(knees: Knees, curve: Curve) -> float:
    """Return the share of knees whose error is below the curve."""
    return float((knees[:, 1] <= np.interp(knees[:, 0], *curve)).mean())


if __name__ == "__main__":
    main()
