"""Templates: cut as they were drawn."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kneematch.errors import TemplateError
from kneematch.films.annotation import Annotation, annotate
from kneematch.knee.detector import Detector
from kneematch.knee.template import cut_from_view
from kneematch.paper.pose import pose_matrix
from kneematch.sampling import View, axes_to_film, compose, transform
from kneephantoms import phantom
from kneephantoms.files import write_dicom

SIZE = (160, 100)  # pixels of the half, each as large as two of the film
DRAWN = Annotation(
    film=Path("film.dcm"),
    side="right",
    fine=(1060.0, 600.0, 1140.0, 696.0),
    coarse=(1040.0, 580.0, 1160.0, 720.0),
    red=(1064.0, 620.0, 1088.0, 660.0),
    green=(1116.0, 624.0, 1136.0, 664.0),
    landmarks={"margin": (1065.25, 650.5), "outside": (900.0, 1000.0)},
)


def half(angle: float = 0.0, *, mirrored: bool = False) -> View:
    """A half that covers x from 1000 to 1200 and y from 500 to 820 of its film.

    It may be turned by an angle in radians.
    """
    pixels = torch.rand(SIZE, generator=torch.Generator().manual_seed(0))
    cos, sin, right = math.cos(angle), math.sin(angle), -100 if mirrored else 100
    to_film = axes_to_film((right * cos, right * sin), (-160 * sin, 160 * cos), (1100, 660))
    return View(pixels, to_film)


def test_cut_from_view_takes_the_pixels_and_windows_in_the_box() -> None:
    view = half()
    template, theta = cut_from_view(view, DRAWN)
    assert (template.size, template.aspect) == ((48, 40), 1.2)
    assert torch.allclose(template.image, view.pixels[50:98, 30:70], atol=1e-4)
    assert theta.tolist() == pytest.approx([0.4, 0.0, (-0.375 + 0.225) / 2, 0.0])
    assert template.red == (..., slice(10, 30), slice(2, 14))
    assert template.green == (..., slice(12, 32), slice(28, 38))
    mirrored, _ = cut_from_view(half(mirrored=True), DRAWN)
    assert mirrored.red == (..., slice(10, 30), slice(26, 38))
    assert mirrored.green == (..., slice(12, 32), slice(2, 12))


@pytest.mark.parametrize("mirrored", [False, True])
def test_cut_from_view_keeps_a_box_as_drawn_in_a_rotated_view(mirrored: bool) -> None:
    view = half(0.1, mirrored=mirrored)
    template, theta = cut_from_view(view, DRAWN)
    assert template.size == (48, 40)
    assert float(theta[3]) == pytest.approx(0.1 if mirrored else -0.1)
    placed = compose(view.to_film, pose_matrix(theta, template.aspect, SIZE[0] / SIZE[1]))
    corners = transform(placed, torch.tensor([[-1.0, -1.0], [1.0, 1.0]]))
    x0, y0, x1, y1 = DRAWN.fine
    wanted = [[x1, y0], [x0, y1]] if mirrored else [[x0, y0], [x1, y1]]
    assert corners.numpy() == pytest.approx(np.array(wanted), abs=0.01)


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("box", ["fine", "coarse"])
def test_cut_from_view_maps_landmarks_back_to_film_pixels(mirrored: bool, box: str) -> None:
    view = half(mirrored=mirrored)
    uneven = replace(DRAWN, fine=(1060.7, 600.2, 1141.9, 697.3))  # not whole pixels of the half
    template, theta = cut_from_view(view, uneven, box)
    to_film = compose(view.to_film, pose_matrix(theta, template.aspect, SIZE[0] / SIZE[1]))
    points = torch.tensor(list(template.landmarks.values()), dtype=torch.float64)
    found = transform(to_film, points).tolist()
    for name, point in zip(template.landmarks, found, strict=True):
        assert point == pytest.approx(DRAWN.landmarks[name], abs=1e-9)


@pytest.mark.parametrize("name", ["red", "green"])
def test_cut_from_view_names_a_window_on_a_single_grey(name: str) -> None:
    view = half()
    x0, y0, x1, y1 = (int(value) for value in getattr(DRAWN, name))
    rows = slice((y0 - 500) // 2 - 1, (y1 - 500) // 2 + 1)
    view.pixels[rows, (x0 - 1000) // 2 - 1 : (x1 - 1000) // 2 + 1] = 0.0
    with pytest.raises(TemplateError, match=f"The {name} box shows a single grey"):
        cut_from_view(view, DRAWN)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"fine": (990.0, 600.0, 1090.0, 696.0)}, "leaves the right half"),
        ({"fine": (1060.0, 740.0, 1140.0, 830.0)}, "leaves the right half"),
        ({"fine": (60.0, 600.0, 140.0, 696.0)}, "leaves the right half"),  # the other half
        ({"fine": (1002.0, 600.0, 1198.0, 696.0)}, "196 film pixels wide.* 30 to 190"),
        ({"fine": (1086.0, 600.0, 1114.0, 628.0)}, "28 film pixels wide.* 30 to 190"),
        ({"fine": (1060.0, 560.0, 1140.0, 760.0)}, "taller in shape"),
        ({"red": (1070.0, 620.0, 1076.0, 660.0)}, "The red box is too small"),
        (dict.fromkeys(("fine", "red", "green"), (1060.0, 640.0, 1140.0, 640.5)), "too small"),
    ],
)
def test_cut_from_view_refuses_boxes_that_cannot_serve(change: Any, said: str) -> None:
    with pytest.raises(TemplateError, match=rf"^film\.dcm: .*{said}"):
        cut_from_view(half(), replace(DRAWN, **change))
    with pytest.raises(TemplateError, match=r"rotated by 11 degrees, but at most 7"):
        cut_from_view(half(0.2), DRAWN)


def test_detector_takes_a_template_of_a_knee_across_both_halves(tmp_path: Path) -> None:
    made = phantom(1, framing="single")
    film = tmp_path / "single.dcm"
    write_dicom(film, made.pixels, mm_per_px=None, laterality=None)
    (knee,) = made.knees
    ends = sorted((knee.plateau_medial, knee.plateau_lateral))
    drawn = annotate(film, knee.side, *ends)
    (found,) = Detector.load(template=drawn).detect(film)
    for name, point in drawn.landmarks.items():
        assert found.landmarks[name] == pytest.approx(point, abs=0.02 * found.width_px)
