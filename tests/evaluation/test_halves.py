"""The paper's methods on halves of films."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from kneematch.errors import TemplateError
from kneematch.evaluation.run import HalvesDetector
from kneematch.films.annotation import Annotation, annotate
from kneematch.films.radiograph import Radiograph
from kneematch.films.read import read
from kneematch.knee.knee_images import film_tensor
from kneematch.knee.template import annotated_half, cut_from_view
from kneematch.paper.energy import paper_problem
from kneematch.paper.grid_search import grid_search
from kneematch.paper.sliding_window import sliding_window
from kneematch.paper.split import split
from kneephantoms import phantom
from kneephantoms.files import write_dicom

SIZE = (480, 600)
SEED = 22  # an ordinary film: upright, whole, not a negative


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Annotation:
    """The boxes of the right knee of a phantom."""
    path, made = tmp_path_factory.mktemp("films") / "a.dcm", phantom(SEED, size=SIZE)
    write_dicom(path, made.pixels, mm_per_px=0.3, laterality="B", bits=16)
    knee = made.knees[1]
    return annotate(path, knee.side, knee.plateau_left, knee.plateau_right)


@pytest.fixture(scope="module")
def film(drawn: Annotation) -> Radiograph:
    return read(drawn.film)


def corners(drawn: Annotation) -> list[list[float]]:
    x0, y0, x1, y1 = drawn.fine
    return [[x0, y0], [x1, y0], [x1, y1], [x0, y1]]


def test_detect_places_the_areas_of_a_pose_on_the_film_and_states_the_papers_energy(
    drawn: Annotation, film: Radiograph
) -> None:
    template, theta = cut_from_view(annotated_half(film, drawn), drawn)
    theta = theta.expand(1, 2, 4)
    left, right = HalvesDetector(template, lambda _: theta, "always").detect(film)
    assert (left.side, right.side, left.mirrored) == ("left", "right", True)
    assert np.abs(right.corners - corners(drawn)).max() < 0.2
    for name, point in drawn.landmarks.items():
        assert right.landmarks[name] == pytest.approx(point, abs=0.2)
    problem = paper_problem(split(film_tensor(film)).pixels[None], template)
    assert left.energy == right.energy == pytest.approx(problem.energy(theta).item(), abs=1e-5)
    assert [left.loss, right.loss] == pytest.approx(problem.losses(theta)[0].tolist(), abs=1e-5)


@pytest.mark.parametrize(("laterality", "side"), [("R", "left"), ("L", "right")])
def test_detect_looks_for_one_knee_where_the_header_says_so(
    drawn: Annotation, film: Radiograph, laterality: str, side: str
) -> None:
    start = 0 if side == "left" else SIZE[1] // 2
    half = np.ascontiguousarray(film.pixels[:, start : start + SIZE[1] // 2])
    detector = HalvesDetector.load("neural", template=drawn)
    (found,) = detector.detect(Radiograph(half, laterality=laterality))
    assert found.energy == found.loss
    both = {knee.side: knee for knee in detector.detect(film)}
    assert found.side == side
    moved = found.centre[0] + start, found.centre[1]
    assert moved == pytest.approx(both[side].centre, abs=5)


def test_load_sharpens_what_the_networks_see(drawn: Annotation, film: Radiograph) -> None:
    raw, sharpened = (
        HalvesDetector.load(method, template=drawn).detect(film)[1]
        for method in ("neural", "neural+sharpen")
    )
    assert sharpened.loss < raw.loss < 0.1
    assert (raw.method, sharpened.method) == ("neural", "neural+sharpen")
    width = drawn.fine[2] - drawn.fine[0]
    assert np.abs(sharpened.corners - corners(drawn)).max() < 0.03 * width


def test_load_takes_a_search_by_its_name_and_needs_a_knee_for_networks_only(
    drawn: Annotation, tmp_path: Path
) -> None:
    clouds = torch.rand(SIZE, generator=torch.Generator().manual_seed(0)).numpy()
    write_dicom(tmp_path / "noise.dcm", clouds, mm_per_px=None, laterality="B")
    elsewhere = replace(drawn, film=tmp_path / "noise.dcm")
    for method, solver in (("sliding", sliding_window), ("grid", grid_search)):
        assert HalvesDetector.load(method, template=elsewhere).solver is solver
    with pytest.raises(TemplateError, match="sees no frontal knee"):
        HalvesDetector.load("neural", template=elsewhere)
