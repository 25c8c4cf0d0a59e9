"""Phantoms: pure functions of their seed whose truth lies where the picture shows it."""

import math
from dataclasses import replace

import numpy as np
import pytest

from kneematch.synthetic.phantom import Plan, knees_of, phantom, plan, render

SIZE = (400, 500)


def bare(seed: int) -> Plan:
    """A film of a seed without noise, letters, borders or metal."""
    drawn = plan(seed, (820, 1000))
    height, width = drawn.framing.size
    return replace(
        drawn,
        exposure=replace(drawn.exposure, noise=0.0, seam=(0.5, 0.0)),
        extras=replace(drawn.extras, markers=(), beads=(), coin=None, arcs=(), tilt_deg=0.0),
        framing=replace(drawn.framing, field=(0.0, 0.0, float(width), float(height))),
        hardware=None,
        negative=False,
    )


def profile(pixels: np.ndarray, start: np.ndarray, end: np.ndarray, count: int) -> np.ndarray:
    """Grey from one point to another, nearest pixels."""
    points = start + np.linspace(0, 1, count)[:, None] * (end - start)
    columns, rows = np.floor(points).astype(int).T
    height, width = pixels.shape
    return pixels[rows.clip(0, height - 1), columns.clip(0, width - 1)]


def test_the_same_seed_gives_the_same_film() -> None:
    one, two = phantom(3, size=SIZE), phantom(3, size=SIZE)
    assert np.array_equal(one.radiograph.pixels, two.radiograph.pixels)
    assert one.knees == two.knees


def test_another_seed_gives_another_film() -> None:
    one, two = phantom(3, size=SIZE), phantom(4, size=SIZE)
    assert not np.array_equal(one.radiograph.pixels, two.radiograph.pixels)


@pytest.mark.parametrize("seed", range(6))
def test_pixels_are_float32_from_zero_to_one(seed: int) -> None:
    film = phantom(seed, size=SIZE).radiograph
    assert film.pixels.dtype == np.float32
    assert film.size == SIZE
    assert (film.pixels.min(), film.pixels.max()) == (0.0, 1.0)
    assert np.isfinite(film.pixels).all()


def test_header_tells_spacing_and_both_sides() -> None:
    film = phantom(1, size=SIZE)
    left = film.knees[0]
    width_px = math.dist(left.plateau_left, left.plateau_right)
    assert film.radiograph.mm_per_px is not None
    assert 60 < width_px * film.radiograph.mm_per_px < 95
    assert film.radiograph.laterality == "B"


def test_usual_sizes_are_those_of_real_films() -> None:
    assert {plan(seed).framing.size for seed in range(60)} == {
        (1024, 1024),
        (820, 1000),
        (1000, 820),
    }


@pytest.mark.parametrize("size", [(400, 500), (1000, 820), (333, 777)])
def test_each_knee_lies_in_its_half_of_the_film(size: tuple[int, int]) -> None:
    height, width = size
    for seed in range(100):
        left, right = knees_of(plan(seed, size))
        assert (left.side, right.side) == ("left", "right")
        assert (left.laterality, right.laterality) == ("R", "L")
        assert 0 < left.plateau_left[0] < left.plateau_right[0] < width / 2
        assert width / 2 < right.plateau_left[0] < right.plateau_right[0] < width
        assert all(0 < knee.centre[1] < height for knee in (left, right))


def test_truth_agrees_with_itself() -> None:
    for seed in range(50):
        for knee in knees_of(plan(seed)):
            (x0, y0), (x1, y1) = knee.plateau_left, knee.plateau_right
            assert knee.centre == pytest.approx(((x0 + x1) / 2, (y0 + y1) / 2))
            assert knee.rotation_deg == pytest.approx(math.degrees(math.atan2(y1 - y0, x1 - x0)))
            assert abs(knee.rotation_deg) < 11
            assert knee.grade in range(5)


def test_framing_ranges_from_small_knees_to_knees_that_fill_their_half() -> None:
    widths, heights = [], []
    for seed in range(300):
        drawn = plan(seed)
        for knee in knees_of(drawn):
            wide = math.dist(knee.plateau_left, knee.plateau_right)
            widths.append(wide / drawn.framing.size[1])
            heights.append(knee.centre[1] / drawn.framing.size[0])
    assert 0.09 < min(widths) < 0.14
    assert 0.34 < max(widths) < 0.44
    assert 0.18 < np.median(widths) < 0.30
    assert min(heights) < 0.28
    assert max(heights) > 0.60


def test_one_film_in_ten_is_a_negative_and_few_hold_metal() -> None:
    drawn = [plan(seed) for seed in range(400)]
    assert 0.06 < np.mean([one.negative for one in drawn]) < 0.14
    assert 0.02 < np.mean([one.hardware is not None for one in drawn]) < 0.12
    assert {grade for one in drawn for grade in one.grades} == {0, 1, 2, 3, 4}


def test_a_negative_shows_the_same_film_inverted() -> None:
    drawn = plan(7, SIZE)
    positive, negative = (render(replace(drawn, negative=flag)) for flag in (False, True))
    assert np.allclose(positive.numpy(), 1 - negative.numpy(), atol=1e-6)


def test_the_picture_shows_an_edge_at_both_margins() -> None:
    errors = []
    for seed in range(12):
        drawn = bare(seed)
        pixels = render(drawn).numpy()
        for knee in knees_of(drawn):
            ends = np.array([knee.plateau_left, knee.plateau_right])
            along = (ends[1] - ends[0]) / np.linalg.norm(ends[1] - ends[0])
            wide = float(np.linalg.norm(ends[1] - ends[0]))
            down = np.array([-along[1], along[0]]) * 0.02 * wide  # just below the rounded rim
            for end, outwards in zip(ends, (-along, along), strict=True):
                reach = outwards * 0.1 * wide
                grey = profile(pixels, end + down - reach, end + down + reach, 41)
                steps = grey[4:] - grey[:-4]
                errors.append((int(np.argmin(steps)) + 2 - 20) / 20 * 0.1)
    assert abs(np.median(errors)) < 0.01  # of the plateau's width
    assert np.mean(np.abs(errors) < 0.025) > 0.85


def test_bone_is_brighter_than_the_joint_space_and_that_than_air() -> None:
    for seed in range(8):
        drawn = bare(seed)
        pixels = render(drawn).numpy()
        for knee, px in zip(knees_of(drawn), drawn.framing.plateau_px, strict=True):
            x, y = knee.centre
            tibia = pixels[int(y + 0.12 * px), int(x - 0.2 * px) : int(x + 0.2 * px)].mean()
            lateral = x + (-0.3 if knee.side == "left" else 0.3) * px
            column = pixels[int(y - 0.2 * px) : int(y + 0.05 * px), int(lateral)]
            assert column.min() < tibia
            assert pixels.min() < column.max()


def test_a_family_shares_its_bones_and_the_crowd_does_not() -> None:
    def spread(shapes: list[np.ndarray]) -> float:
        return float(np.std(shapes, axis=0).mean())

    alike = [plan(seed, family=5).shapes[0].femur_medial for seed in range(30)]
    anyone = [plan(seed).shapes[0].femur_medial for seed in range(30)]
    others = [plan(seed, family=seed).shapes[0].femur_medial for seed in range(30)]
    assert spread(alike) < 0.7 * spread(anyone)
    assert spread(alike) < 0.7 * spread(others)


def test_left_and_right_are_alike_but_not_equal() -> None:
    one, two = plan(2).shapes
    assert not np.array_equal(one.femur_medial, two.femur_medial)
    assert np.abs(one.femur_medial - two.femur_medial).max() < 0.06


def test_higher_grades_narrow_the_joint_and_grow_osteophytes() -> None:
    gaps: dict[int, list[float]] = {grade: [] for grade in range(5)}
    spurs: dict[int, list[float]] = {grade: [] for grade in range(5)}
    for seed in range(300):
        drawn = plan(seed)
        for shape, grade in zip(drawn.shapes, drawn.grades, strict=True):
            gaps[grade].append(float(shape.gap.max()))
            spurs[grade].append(float(shape.osteophytes.max()))
    assert np.all(np.diff([np.mean(gaps[grade]) for grade in range(5)]) > 0)
    assert np.all(np.diff([np.mean(spurs[grade]) for grade in range(5)]) > 0)


def test_metal_is_drawn_where_the_plan_says() -> None:
    drawn = bare(1)
    for kind in ("plate", "nail", "prosthesis"):
        bright = []
        for knee in (0, 1):
            pixels = render(replace(drawn, hardware=kind, hardware_knee=knee)).numpy()
            middle = pixels.shape[1] // 2
            bright.append((pixels[:, :middle] > 0.97).sum() > (pixels[:, middle:] > 0.97).sum())
        assert bright == [True, False]
