"""Phantoms are functions of their seed, and their truth lies where the picture shows it."""

import math
from dataclasses import replace

import numpy as np
import pytest

from kneematch.synthetic.film_plan import FilmPlan, plan_film
from kneematch.synthetic.phantom import phantom, render, true_knees

SIZE = (400, 500)


def plain_plan(seed: int) -> FilmPlan:
    """Return the plan of a film without noise, letters, borders or metal."""
    plan = plan_film(seed, (820, 1000))
    height, width = plan.framing.size
    return replace(
        plan,
        exposure=replace(plan.exposure, noise=0.0, seam=(0.5, 0.0)),
        overlays=replace(plan.overlays, markers=(), discs=(), round_field=None, field_tilt_deg=0.0),
        framing=replace(plan.framing, field=(0.0, 0.0, float(width), float(height))),
        hardware=None,
        negative=False,
    )


def profile(pixels: np.ndarray, start: np.ndarray, end: np.ndarray, count: int) -> np.ndarray:
    """Return the grey from one point to another, of the nearest pixels."""
    points = start + np.linspace(0, 1, count)[:, None] * (end - start)
    columns, rows = np.floor(points).astype(int).T
    height, width = pixels.shape
    return pixels[rows.clip(0, height - 1), columns.clip(0, width - 1)]


def test_phantom_of_a_seed_is_always_the_same() -> None:
    one, two = phantom(3, size=SIZE), phantom(3, size=SIZE)
    assert np.array_equal(one.radiograph.pixels, two.radiograph.pixels)
    assert one.knees == two.knees


def test_phantom_of_another_seed_differs() -> None:
    one, two = phantom(3, size=SIZE), phantom(4, size=SIZE)
    assert not np.array_equal(one.radiograph.pixels, two.radiograph.pixels)


@pytest.mark.parametrize("seed", range(6))
def test_phantom_pixels_are_float32_from_zero_to_one(seed: int) -> None:
    film = phantom(seed, size=SIZE).radiograph
    assert film.pixels.dtype == np.float32
    assert film.size == SIZE
    assert (film.pixels.min(), film.pixels.max()) == (0.0, 1.0)
    assert np.isfinite(film.pixels).all()


def test_phantom_header_has_spacing_and_laterality() -> None:
    film = phantom(1, size=SIZE)
    left = film.knees[0]
    width_px = math.dist(left.plateau_left, left.plateau_right)
    assert film.radiograph.mm_per_px is not None
    assert 60 < width_px * film.radiograph.mm_per_px < 95
    assert film.radiograph.laterality == "B"


def test_plan_film_uses_the_sizes_of_real_films() -> None:
    assert {plan_film(seed).framing.size for seed in range(60)} == {
        (1024, 1024),
        (820, 1000),
        (1000, 820),
    }


@pytest.mark.parametrize("size", [(400, 500), (1000, 820), (333, 777)])
def test_true_knees_lie_in_their_halves_of_the_film(size: tuple[int, int]) -> None:
    height, width = size
    for seed in range(100):
        left, right = true_knees(plan_film(seed, size))
        assert (left.side, right.side) == ("left", "right")
        assert (left.laterality, right.laterality) == ("R", "L")
        assert 0 < left.plateau_left[0] < left.plateau_right[0] < width / 2
        assert width / 2 < right.plateau_left[0] < right.plateau_right[0] < width
        assert all(0 < knee.centre[1] < height for knee in (left, right))


def test_true_knees_are_consistent() -> None:
    for seed in range(50):
        for knee in true_knees(plan_film(seed)):
            (x0, y0), (x1, y1) = knee.plateau_left, knee.plateau_right
            assert knee.centre == pytest.approx(((x0 + x1) / 2, (y0 + y1) / 2))
            assert knee.rotation_deg == pytest.approx(math.degrees(math.atan2(y1 - y0, x1 - x0)))
            assert abs(knee.rotation_deg) < 11
            assert knee.grade in range(5)


def test_plan_film_frames_small_knees_and_knees_that_fill_their_half() -> None:
    widths, heights = [], []
    for seed in range(300):
        plan = plan_film(seed)
        for knee in true_knees(plan):
            wide = math.dist(knee.plateau_left, knee.plateau_right)
            widths.append(wide / plan.framing.size[1])
            heights.append(knee.centre[1] / plan.framing.size[0])
    assert 0.09 < min(widths) < 0.14
    assert 0.34 < max(widths) < 0.44
    assert 0.18 < np.median(widths) < 0.30
    assert min(heights) < 0.28
    assert max(heights) > 0.60


def test_plan_film_draws_negatives_hardware_and_all_grades() -> None:
    plans = [plan_film(seed) for seed in range(400)]
    assert 0.06 < np.mean([one.negative for one in plans]) < 0.14
    assert 0.02 < np.mean([one.hardware is not None for one in plans]) < 0.12
    assert {grade for one in plans for grade in one.grades} == {0, 1, 2, 3, 4}


def test_render_inverts_a_negative() -> None:
    plan = plan_film(7, SIZE)
    positive, negative = (render(replace(plan, negative=flag)) for flag in (False, True))
    assert np.allclose(positive.numpy(), 1 - negative.numpy(), atol=1e-6)


def test_render_shows_an_edge_at_both_true_margins() -> None:
    errors = []
    for seed in range(12):
        plan = plain_plan(seed)
        pixels = render(plan).numpy()
        for knee in true_knees(plan):
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


def test_render_shows_bone_brighter_than_the_joint_space_and_that_than_air() -> None:
    for seed in range(8):
        plan = plain_plan(seed)
        pixels = render(plan).numpy()
        for knee, px in zip(true_knees(plan), plan.framing.plateau_px, strict=True):
            x, y = knee.centre
            tibia = pixels[int(y + 0.12 * px), int(x - 0.2 * px) : int(x + 0.2 * px)].mean()
            lateral = x + (-0.3 if knee.side == "left" else 0.3) * px
            column = pixels[int(y - 0.2 * px) : int(y + 0.05 * px), int(lateral)]
            assert column.min() < tibia
            assert pixels.min() < column.max()


def test_plan_film_gives_a_family_similar_bones() -> None:
    def spread(shapes: list[np.ndarray]) -> float:
        return float(np.std(shapes, axis=0).mean())

    alike = [plan_film(seed, family=5).shapes[0].femur[1] for seed in range(30)]
    anyone = [plan_film(seed).shapes[0].femur[1] for seed in range(30)]
    others = [plan_film(seed, family=seed).shapes[0].femur[1] for seed in range(30)]
    assert spread(alike) < 0.7 * spread(anyone)
    assert spread(alike) < 0.7 * spread(others)


def test_plan_film_gives_a_person_similar_but_unequal_knees() -> None:
    one, two = plan_film(2).shapes
    assert not np.array_equal(one.femur, two.femur)
    assert np.abs(one.femur - two.femur).max() < 0.06


def test_plan_film_narrows_the_joint_and_grows_osteophytes_with_the_grade() -> None:
    gaps: dict[int, list[float]] = {grade: [] for grade in range(5)}
    spurs: dict[int, list[float]] = {grade: [] for grade in range(5)}
    for seed in range(300):
        plan = plan_film(seed)
        for shape, grade in zip(plan.shapes, plan.grades, strict=True):
            gaps[grade].append(float(shape.narrowing.max()))
            spurs[grade].append(float(shape.osteophytes.max()))
    assert np.all(np.diff([np.mean(gaps[grade]) for grade in range(5)]) > 0)
    assert np.all(np.diff([np.mean(spurs[grade]) for grade in range(5)]) > 0)


def test_render_draws_hardware_in_the_planned_knee() -> None:
    plan = plain_plan(1)
    for kind in ("plate", "nail", "prosthesis"):
        bright = []
        for knee in (0, 1):
            pixels = render(replace(plan, hardware=kind, hardware_knee=knee)).numpy()
            middle = pixels.shape[1] // 2
            bright.append((pixels[:, :middle] > 0.97).sum() > (pixels[:, middle:] > 0.97).sum())
        assert bright == [True, False]


def test_plan_film_of_a_kind_changes_only_the_framing() -> None:
    legs = [plan_film(seed, kind="leg") for seed in range(6)]
    mixed = [plan_film(seed) for seed in range(6)]
    assert {film.framing.kind for film in legs} == {"leg"}
    assert len({film.framing.kind for film in mixed}) > 1
    for leg, film in zip(legs, mixed, strict=True):
        assert (leg.grades, leg.hardware, leg.negative) == (
            film.grades,
            film.hardware,
            film.negative,
        )


@pytest.mark.parametrize(
    ("kind", "seed", "block_means"),
    [
        ("knee", 0, [0.33024, 0.21609, 0.24934, 0.15598, 0.28183, 0.20370, 0.21079, 0.16353]),
        ("wide", 1, [0.23842, 0.32867, 0.27192, 0.29766, 0.35592, 0.42998, 0.45302, 0.38346]),
        ("leg", 2, [0.47256, 0.37785, 0.35529, 0.47989, 0.60448, 0.29302, 0.35773, 0.49337]),
        ("fill", 3, [0.51444, 0.27965, 0.27457, 0.49631, 0.64947, 0.31987, 0.34645, 0.62871]),
    ],
)
def test_phantom_is_the_one_that_the_built_in_model_was_trained_on(
    kind: str, seed: int, block_means: list[float]
) -> None:
    """Compare with the films of version 0.1.0."""
    pixels = phantom(seed, size=(96, 128), kind=kind).radiograph.pixels.astype(np.float64)
    assert pixels.reshape(2, 48, 4, 32).mean((1, 3)).ravel() == pytest.approx(block_means, abs=2e-5)
