"""Phantoms are functions of their seed, and their truth lies where the picture shows it."""

import math
from dataclasses import replace

import numpy as np
import pytest

from kneephantoms import FilmPlan, phantom, plan_film, render, true_knees
from kneephantoms.film_plan import IMPLANTS

SIZE = (400, 500)


def plain_plan(seed: int) -> FilmPlan:
    """Return the plan of a film without noise, letters, borders or metal."""
    plan = plan_film(seed, size=(820, 1000))
    height, width = plan.framing.size
    nothing = {"markers": (), "discs": (), "texts": (), "lines": (), "shields": ()}
    return replace(
        plan,
        exposure=replace(plan.exposure, noise=0.0, seam=(0.5, 0.0)),
        overlays=replace(plan.overlays, **nothing, round_field=None, field_tilt_deg=0.0),
        framing=replace(plan.framing, field=(0.0, 0.0, float(width), float(height))),
        legs=tuple(replace(leg, implant="") for leg in plan.legs),
        negative=False,
    )


def profile(pixels: np.ndarray, start: np.ndarray, end: np.ndarray, count: int) -> np.ndarray:
    """Return the grey from one point to another, of the nearest pixels."""
    points = start + np.linspace(0, 1, count)[:, None] * (end - start)
    columns, rows = np.floor(points).astype(int).T
    return pixels[rows.clip(0, pixels.shape[0] - 1), columns.clip(0, pixels.shape[1] - 1)]


def test_phantom_of_a_seed_is_always_the_same() -> None:
    one, two = phantom(3, size=SIZE), phantom(3, size=SIZE)
    assert np.array_equal(one.pixels, two.pixels)
    assert one.knees == two.knees
    assert not np.array_equal(one.pixels, phantom(4, size=SIZE).pixels)
    assert (one.pixels.dtype, one.pixels.min(), one.pixels.max()) == (np.float32, 0.0, 1.0)
    width_px = math.dist(one.knees[0].plateau_left, one.knees[0].plateau_right)
    assert 60 < width_px * one.mm_per_px < 103
    assert one.laterality == "B"


def test_true_knees_lie_in_their_halves_of_the_film() -> None:
    height, width = size = 333, 777
    for seed in range(100):
        left, right = true_knees(plan_film(seed, size=size))
        assert (left.side, right.side) == ("left", "right")
        assert (left.laterality, right.laterality) == ("R", "L")
        assert 0 < left.plateau_left[0] < left.plateau_right[0] < width / 2
        assert width / 2 < right.plateau_left[0] < right.plateau_right[0] < width
        assert all(0 < knee.centre[1] < height for knee in (left, right))


def test_plan_film_samples_negatives_implants_and_signs_of_every_grade() -> None:
    plans = [plan_film(seed) for seed in range(400)]
    assert 0.06 < np.mean([one.negative for one in plans]) < 0.14
    legs = [leg for one in plans for leg in one.legs]
    assert 0.02 < np.mean([bool(leg.implant) for leg in legs]) < 0.12
    assert {leg.implant for leg in legs} == {"", *IMPLANTS}
    for sign in ("narrowing", "osteophytes"):
        means = [
            np.mean([getattr(leg.shape, sign).max() for leg in legs if leg.grade == grade])
            for grade in range(5)
        ]
        assert np.all(np.diff(means) > 0)


def test_render_shows_an_edge_at_both_true_margins() -> None:
    errors = []
    for seed in range(12):
        plan = plain_plan(seed)
        pixels = render(plan)
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


def test_plan_film_gives_a_family_similar_bones() -> None:
    alike = [plan_film(seed, family=5).legs[0].shape.femur[1] for seed in range(30)]
    anyone = [plan_film(seed).legs[0].shape.femur[1] for seed in range(30)]
    assert np.std(alike, axis=0).mean() < 0.7 * np.std(anyone, axis=0).mean()


@pytest.mark.parametrize("kind", IMPLANTS)
def test_render_draws_an_implant_in_the_planned_knee(kind: str) -> None:
    plan = plain_plan(2)
    first, second = plan.legs
    metal = replace(plan, legs=(replace(first, implant=kind), second))
    brighter = render(metal) - render(plan) > 0.1
    left, right = np.split(brighter, 2, axis=1)
    assert left.sum() > 100 > right.sum()


@pytest.mark.parametrize(
    ("framing", "counts"),
    [
        *(("bilateral", {2}), ("single", {1}), ("full_leg", {1, 2}), ("offcentre", {1, 2})),
        *(("lateral", {0, 1}), ("other", {0}), ("any", {0, 1, 2})),
    ],
)
def test_true_knees_are_as_many_as_the_framing_shows(framing: str, counts: set[int]) -> None:
    found = set()
    for seed in range(60):
        plan = plan_film(seed, framing)
        knees = true_knees(plan)
        found.add(len(knees))
        height, width = plan.picture.size
        for knee in knees:
            for x, y in (knee.plateau_medial, knee.plateau_lateral):
                assert 0 <= x <= width
                assert 0 <= y <= height
    assert found == counts
    pixels = render(plan_film(0, framing, size=(300, 240)))
    assert pixels.shape == (300, 240)
    assert (pixels.min(), pixels.max()) == (0.0, 1.0)


@pytest.mark.parametrize(("turn_deg", "mirrored"), [(90, False), (180, True), (270, False)])
def test_plan_film_turns_and_mirrors_the_film_and_its_truth(turn_deg: int, mirrored: bool) -> None:
    upright, turned = (
        phantom(5, size=(240, 300), turn_deg=angle, mirrored=flip)
        for angle, flip in ((0, False), (turn_deg, mirrored))
    )
    pixels = upright.pixels
    expected = np.rot90(pixels[:, ::-1] if mirrored else pixels, -turn_deg // 90)
    assert np.abs(turned.pixels - expected).max() < 1e-3
    for knee in turned.knees:
        (before,) = (each for each in upright.knees if each.laterality == knee.laterality)
        around = (knee.rotation_deg - turn_deg + 180) % 360 - 180
        flipped = -before.rotation_deg if mirrored else before.rotation_deg
        assert around == pytest.approx(flipped, abs=1e-6)
        assert knee.lateral_is_left == (before.lateral_is_left != mirrored)
