"""Templates: what is cut is what was drawn, on either side, and bad boxes are refused."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from kneematch.errors import TemplateError
from kneematch.films.annotation import Annotation, Box
from kneematch.films.radiograph import Radiograph
from kneematch.knee.knee_images import film_tensor
from kneematch.paper.pose import pose_matrix
from kneematch.paper.split import split
from kneematch.paper.template import cut_from_view, cut_template, normalize_local_contrast
from kneematch.sampling import View, axes_to_film, compose, rectangle_to_film, transform
from kneephantoms import phantom
from phantom_films import radiograph

SIZE = (160, 100)  # of the half, a pixel of which is two of the film
DRAWN = Annotation(
    film=Path("film.dcm"),
    side="right",
    fine=(1060.0, 600.0, 1140.0, 696.0),
    coarse=(1040.0, 580.0, 1160.0, 720.0),
    red=(1064.0, 620.0, 1088.0, 660.0),
    green=(1116.0, 624.0, 1136.0, 664.0),
    landmarks={"margin": (1065.25, 650.5), "outside": (900.0, 1000.0)},
)
SIZE = (160, 100)


def half(*, mirrored: bool = False) -> View:
    """A half that covers x from 1000 to 1200 and y from 500 to 820 of its film."""
    pixels = torch.rand(SIZE, generator=torch.Generator().manual_seed(0))
    return View(pixels, rectangle_to_film(1000, 500, 1200, 820, mirrored=mirrored))


def reflected(box: Box, width: float) -> Box:
    return width - box[2], box[1], width - box[0], box[3]


def refusal(annotation: Annotation, box: str = "fine") -> str:
    """The message of the error, which must be one line that names the film."""
    with pytest.raises(TemplateError) as caught:
        cut_from_view(half(), annotation, box)
    message = str(caught.value)
    assert message.startswith("film.dcm: ")
    assert len(message.splitlines()) == 1
    return message


def test_cut_from_view_takes_the_pixels_in_the_box() -> None:
    view = half()
    template, theta = cut_from_view(view, DRAWN)
    assert template.size == (48, 40)
    assert template.aspect == 1.2
    assert torch.allclose(template.image, view.pixels[50:98, 30:70], atol=1e-4)
    assert theta.tolist() == pytest.approx([0.4, 0.0, (-0.375 + 0.225) / 2, 0.0])


def test_cut_from_view_mirrors_the_box_in_a_mirrored_half() -> None:
    view = half(mirrored=True)
    moved = replace(DRAWN, fine=(1070.0, 600.0, 1150.0, 696.0))
    template, theta = cut_from_view(view, moved)
    assert torch.allclose(template.image, view.pixels[50:98, 25:65], atol=1e-4)
    assert float(theta[1]) == pytest.approx(-0.1)


def rotated(angle: float, *, mirrored: bool = False) -> View:
    """A view of the same place as `half`, turned by an angle in radians."""
    pixels = torch.rand(SIZE, generator=torch.Generator().manual_seed(0))
    cos, sin, right = math.cos(angle), math.sin(angle), -100 if mirrored else 100
    to_film = axes_to_film((right * cos, right * sin), (-160 * sin, 160 * cos), (1100, 660))
    return View(pixels, to_film)


@pytest.mark.parametrize("mirrored", [False, True])
def test_cut_from_view_keeps_a_box_as_drawn_in_a_rotated_view(mirrored: bool) -> None:
    view = rotated(0.1, mirrored=mirrored)
    template, theta = cut_from_view(view, DRAWN)
    assert template.size == (48, 40)
    assert float(theta[3]) == pytest.approx(0.1 if mirrored else -0.1)
    placed = compose(view.to_film, pose_matrix(theta, template.aspect, SIZE[0] / SIZE[1]))
    corners = transform(placed, torch.tensor([[-1.0, -1.0], [1.0, 1.0]]))
    x0, y0, x1, y1 = DRAWN.fine
    wanted = [[x1, y0], [x0, y1]] if mirrored else [[x0, y0], [x1, y1]]
    assert corners.numpy() == pytest.approx(np.array(wanted), abs=0.01)


def test_cut_from_view_refuses_a_box_on_a_knee_that_is_rotated_too_far() -> None:
    with pytest.raises(TemplateError, match=r"rotated by 11 degrees; expected at most 7; annotate"):
        cut_from_view(rotated(0.2), DRAWN)


def test_cut_from_view_gives_windows_in_pixels_of_the_template() -> None:
    template, _ = cut_from_view(half(), DRAWN)
    assert template.red == (..., slice(10, 30), slice(2, 14))
    assert template.green == (..., slice(12, 32), slice(28, 38))
    mirrored, _ = cut_from_view(half(mirrored=True), DRAWN)
    assert mirrored.red == (..., slice(10, 30), slice(26, 38))
    assert mirrored.green == (..., slice(12, 32), slice(2, 12))


def test_cut_from_view_gives_both_templates_the_same_windows_on_the_film() -> None:
    fine, _ = cut_from_view(half(), DRAWN)
    coarse, _ = cut_from_view(half(), DRAWN, "coarse")
    assert coarse.size == (70, 60)
    assert torch.allclose(coarse.image[coarse.red], fine.image[fine.red], atol=1e-4)
    assert torch.allclose(coarse.image[coarse.green], fine.image[fine.green], atol=1e-4)


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


def test_cut_from_view_needs_no_landmarks() -> None:
    template, _ = cut_from_view(half(), replace(DRAWN, landmarks={}))
    assert template.landmarks == {}


def test_cut_template_returns_the_pose_of_the_box() -> None:
    view = half(mirrored=True)
    template, theta = cut_from_view(view, DRAWN)
    to_film = compose(view.to_film, pose_matrix(theta, template.aspect, SIZE[0] / SIZE[1]))
    (xa, ya), (xb, yb) = transform(to_film, torch.tensor([[-1.0, -1], [1, 1]])).tolist()
    assert (xb, ya, xa, yb) == pytest.approx(DRAWN.fine)


@pytest.mark.parametrize("seed", range(6))
def test_cut_template_of_a_left_knee_equals_the_mirrored_right_one(
    seed: int,
) -> None:
    size = (400 + seed, 500 + seed % 3)
    film = radiograph(phantom(seed, size=size))
    mirror = Radiograph(np.ascontiguousarray(film.pixels[:, ::-1]))
    x, y = 0.27 * size[1], 0.5 * size[0]
    left = Annotation(
        Path("film"),
        "left",
        fine=(x - 50, y - 45, x + 50, y + 45),
        coarse=(x - 60, y - 60, x + 60, y + 60),
        red=(x - 45.3, y - 20, x - 20.1, y + 10),
        green=(x + 18.2, y - 18, x + 43.4, y + 12),
        landmarks={"margin": (x - 31.5, y)},
    )
    right = replace(
        left,
        side="right",
        **{
            name: reflected(getattr(left, name), size[1])
            for name in ("fine", "coarse", "red", "green")
        },
        landmarks={"margin": (size[1] - (x - 31.5), y)},
    )
    for box in ("fine", "coarse"):
        one, theta = cut_template(film, left, box)
        two, other = cut_template(mirror, right, box)
        assert torch.allclose(one.image, two.image, atol=1e-4)
        assert torch.allclose(theta, other)
        assert (one.red, one.green) == (two.red, two.green)
        assert one.landmarks["margin"] == pytest.approx(two.landmarks["margin"])


def test_cut_template_equals_cut_from_view() -> None:
    film = radiograph(phantom(2, size=(400, 500)))
    annotation = Annotation(Path("film"), "right", *[(320.0, 150.0, 420.0, 250.0)] * 4)
    halves = split(film_tensor(film))
    one, theta = cut_template(film, annotation)
    two, other = cut_from_view(View(halves.pixels[1], halves.to_film[1]), annotation)
    assert torch.equal(one.image, two.image)
    assert torch.equal(theta, other)


def test_template_to_takes_the_dtype_of_a_tensor() -> None:
    template, _ = cut_from_view(half(), DRAWN)
    double = template.to(torch.zeros(1, dtype=torch.float64))
    assert double.image.dtype == double.local_contrast.dtype == torch.float64
    assert (double.red, double.landmarks) == (template.red, template.landmarks)


def test_template_for_local_contrast_covers_the_same_patch() -> None:
    template, _ = cut_from_view(half(), DRAWN)
    fine = template.for_local_contrast()
    assert fine.size == template.size
    assert torch.equal(fine.image, template.local_contrast)


@pytest.mark.parametrize(
    "fine",
    [
        (990.0, 600.0, 1090.0, 696.0),
        (1130.0, 600.0, 1210.0, 696.0),
        (1060.0, 490.0, 1140.0, 580.0),
        (1060.0, 740.0, 1140.0, 830.0),
        (60.0, 600.0, 140.0, 696.0),
    ],
    ids=["left", "right", "top", "bottom", "the other half"],
)
def test_cut_template_refuses_a_box_that_leaves_the_half(fine: Box) -> None:
    assert "leaves the right half" in refusal(replace(DRAWN, fine=fine))


def test_cut_template_names_a_coarse_box_that_leaves_the_half() -> None:
    wide = replace(DRAWN, coarse=(980.0, 580.0, 1160.0, 720.0))
    assert "the coarse box leaves" in refusal(wide, "coarse")
    cut_from_view(half(), wide)  # the fine one is none the worse


def test_cut_template_accepts_a_box_on_the_edge_of_the_half() -> None:
    fine = (999.5, 600.0, 1100.0, 696.0)
    template, _ = cut_from_view(half(), replace(DRAWN, fine=fine, green=DRAWN.red))
    assert template.size == (48, 50)


@pytest.mark.parametrize(
    ("fine", "width"),
    [((1002.0, 600.0, 1198.0, 696.0), 196), ((1086.0, 600.0, 1114.0, 628.0), 28)],
)
def test_cut_template_refuses_a_box_wider_or_narrower_than_any_patch(fine: Box, width: int) -> None:
    message = refusal(replace(DRAWN, fine=fine))
    assert f"is {width} film pixels wide; expected 30 to 190 on this film" in message


def test_cut_template_refuses_a_box_taller_in_shape_than_the_half() -> None:
    tall = replace(DRAWN, fine=(1060.0, 560.0, 1140.0, 760.0))
    assert "taller in shape" in refusal(tall)


@pytest.mark.parametrize("name", ["red", "green"])
def test_cut_template_names_a_window_of_a_few_pixels(name: str) -> None:
    tiny: dict[str, Any] = {name: (1070.0, 620.0, 1076.0, 660.0)}
    message = refusal(replace(DRAWN, **tiny))
    assert f"the {name} box is too small, 6 x 40 film pixels; expected at least 10 x 10" in message


def test_cut_template_refuses_a_fine_box_without_height() -> None:
    flat = (1060.0, 640.0, 1140.0, 640.5)
    assert "too small" in refusal(replace(DRAWN, fine=flat, red=flat, green=flat))


@pytest.mark.parametrize("name", ["red", "green"])
def test_cut_template_names_a_window_on_a_single_grey(name: str) -> None:
    view = half()
    x0, y0, x1, y1 = (int(value) for value in getattr(DRAWN, name))
    rows = slice((y0 - 500) // 2 - 1, (y1 - 500) // 2 + 1)
    view.pixels[rows, (x0 - 1000) // 2 - 1 : (x1 - 1000) // 2 + 1] = 0.0
    with pytest.raises(TemplateError, match=f"the {name} box shows a single grey"):
        cut_from_view(view, DRAWN)


def texture(seed: int = 0) -> Tensor:
    """Grain of a few pixels around a middle grey."""
    noise = torch.randn(1, 1, *SIZE, generator=torch.Generator().manual_seed(seed))
    return 0.5 + 0.1 * torch.nn.functional.avg_pool2d(noise, 3, stride=1, padding=1)[0, 0]


def likeness(a: Tensor, b: Tensor) -> float:
    a, b = a - a.mean(), b - b.mean()
    return float((a * b).sum() / (a.norm() * b.norm()))


@pytest.mark.parametrize(("gain", "offset"), [(3.0, 0.0), (0.2, 5.0), (1.0, -2.0)])
def test_normalize_local_contrast_ignores_gain_and_offset(gain: float, offset: float) -> None:
    half = texture().double()
    assert torch.allclose(
        normalize_local_contrast(gain * half + offset), normalize_local_contrast(half), atol=1e-9
    )


def test_normalize_local_contrast_of_a_negative_is_the_negative() -> None:
    half = texture().double()
    assert torch.allclose(
        normalize_local_contrast(1 - half), -normalize_local_contrast(half), atol=1e-9
    )


def test_normalize_local_contrast_removes_slow_changes() -> None:
    half = texture()
    shaded = half + torch.linspace(0, 0.3, SIZE[0])[:, None]
    assert likeness(half, shaded) < 0.7
    inner = (..., slice(10, -10), slice(10, -10))
    assert (
        likeness(normalize_local_contrast(half)[inner], normalize_local_contrast(shaded)[inner])
        > 0.95
    )


def test_normalize_local_contrast_evens_strong_and_weak_contrast() -> None:
    half = 0.5 + (texture() - 0.5) * torch.where(torch.arange(SIZE[0]) < 80, 1.0, 0.25)[:, None]
    fine = normalize_local_contrast(half)

    def ratio(image: Tensor) -> float:
        third = len(image) // 3
        return float(image[:third].std() / image[-third:].std())

    assert ratio(half) > 3
    assert ratio(fine) < 0.8 * ratio(half)


@pytest.mark.parametrize("grey", [0.0, 0.7, 1.0])
def test_normalize_local_contrast_of_a_constant_half_is_finite(grey: float) -> None:
    assert bool(normalize_local_contrast(torch.full(SIZE, grey)).isfinite().all())


def test_normalize_local_contrast_of_a_black_half_is_zero() -> None:
    assert normalize_local_contrast(torch.zeros(SIZE)).abs().max() == 0


def test_normalize_local_contrast_does_not_depend_on_the_batch() -> None:
    halves = torch.stack([texture(0), texture(1) * 3]).expand(2, 2, *SIZE)
    together = normalize_local_contrast(halves)
    assert together.shape[:-2] == halves.shape[:-2]
    assert torch.allclose(together[1, 1], normalize_local_contrast(texture(1) * 3), atol=1e-5)


def test_normalize_local_contrast_keeps_the_dtype() -> None:
    assert normalize_local_contrast(texture()).dtype == torch.float32
    assert normalize_local_contrast(texture().double()).dtype == torch.float64
