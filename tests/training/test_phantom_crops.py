"""Tests of the maps of phantom knees and of the random crops that are sampled from them."""

import numpy as np
import pytest
import torch

from kneematch.knee.measure import tibiofemoral_angle
from kneematch.training.outline_augmentation import TrainingCrops, find_points, sample_crops
from kneematch.training.phantom_crops import (
    JOINT,
    LEG,
    KneeMaps,
    bone_sides,
    borders,
    render_maps,
    true_outlines,
)
from kneephantoms.anatomy import KneeShape, surface_ends
from kneephantoms.film_plan import plan_film
from kneephantoms.rendering import true_knees

COUNT = 6


@pytest.fixture(scope="module")
def maps() -> KneeMaps:
    return render_maps(range(COUNT), JOINT)


@pytest.fixture(scope="module")
def batch(maps: KneeMaps) -> TrainingCrops:
    generator = torch.Generator().manual_seed(0)
    return sample_crops(maps, torch.arange(COUNT).repeat(4), generator)


def test_borders_of_the_mean_knee() -> None:
    u = np.linspace(-0.4, 0.4, 81)
    femur, tibia = borders(KneeShape(), u)
    gap = 100 * (tibia - femur)
    assert (gap > 2).all()
    assert 6 < np.median(gap[np.abs(u) > 0.2]) < 12  # in % of the plateau's width
    (left, _), (right, _) = surface_ends(KneeShape())
    assert right - left == pytest.approx(1, abs=0.02)


def test_bone_sides_are_missing_at_the_joint_only() -> None:
    v = np.array([-1.0, -0.5, -0.05, 0.3, 1.0])
    lateral, medial = bone_sides(KneeShape(), v)
    known = [True, True, False, True, True]
    assert np.isfinite(lateral).tolist() == np.isfinite(medial).tolist() == known
    assert (medial - lateral)[known].min() > 0.3


def test_true_outlines_end_at_the_margins() -> None:
    plan = plan_film(3)
    for knee, outlines in zip(true_knees(plan), true_outlines(plan), strict=True):
        ends = outlines.tibia[[0, -1]]
        known = np.array([knee.plateau_left, knee.plateau_right])
        assert np.abs(ends - known).max() < 0.03 * outlines.width_px
        assert (outlines.medial == "right") == (knee.plateau_medial == knee.plateau_right)
        assert tibiofemoral_angle(outlines) is not None


def test_render_maps_are_steepest_at_the_femoral_border(maps: KneeMaps) -> None:
    """Along profiles across both condyles, to a fifth of a pixel on average."""
    columns = torch.cat([torch.arange(100, 160), torch.arange(224, 284)])
    offsets = torch.arange(-4.0, 4.01, 0.25)
    peaks = []
    for knee in range(COUNT):
        y = (maps.femur[knee, columns, None] + offsets - 0.5).clamp(0, JOINT.size - 1.001)
        low = y.long()
        picture = maps.pixels[knee].float().T[columns]
        above, below = picture.gather(1, low), picture.gather(1, low + 1)
        profile = (above + (y - low) * (below - above)).mean(0)
        fall = (profile[:-4] - profile[4:]).numpy()  # over one pixel
        weights = np.clip(fall - 0.8 * fall.max(), 0, None)
        peaks.append(np.average(offsets[2:-2], weights=weights))
    assert abs(np.mean(peaks)) < 0.2


def test_sample_crops_has_outlines_where_the_picture_changes(batch: TrainingCrops) -> None:
    """The network can learn nothing from outlines that do not fit their picture."""
    count, height, width = batch.crops.shape
    brighter = []
    for knee in range(count):
        known = batch.borders[knee].isfinite().all(0)
        columns = torch.arange(width)[known]
        femur, tibia = batch.borders[knee][:, known]
        wide = tibia - femur > 6
        above, space = (
            batch.crops[knee, (femur + shift).clamp(0, height - 1).long(), columns][wide].mean()
            for shift in (-5, 3)
        )
        brighter.append(bool(above > space))
    assert np.mean(brighter) > 0.9


def test_sample_crops_orders_left_and_right(batch: TrainingCrops) -> None:
    left, right = batch.sides.unbind(1)
    known = left.isfinite() & right.isfinite()
    assert known.float().mean() > 0.5
    assert (left < right)[known].all()
    assert (batch.margins[:, 0, 0] < batch.margins[:, 1, 0]).all()
    femur, tibia = batch.borders.unbind(1)
    known = femur.isfinite() & tibia.isfinite()
    assert (femur < tibia + 1e-3)[known].all()


def test_sample_crops_is_reproducible(maps: KneeMaps) -> None:
    one, two = (
        sample_crops(maps, torch.arange(2), torch.Generator().manual_seed(3)) for _ in range(2)
    )
    assert torch.equal(one.crops, two.crops)
    assert torch.equal(one.borders.nan_to_num(), two.borders.nan_to_num())


def test_sample_crops_of_legs_show_both_shafts() -> None:
    legs = render_maps(range(2), LEG)
    batch = sample_crops(legs, torch.arange(2), torch.Generator().manual_seed(0))
    assert batch.sides[:, :, [5, 122]].isfinite().all()


def test_find_points_of_a_turned_crop() -> None:
    """A crop turned by 5 degrees, of pixels 0.9 long: points are found to a fraction of a pixel."""
    angle, step = torch.deg2rad(torch.tensor(5.0)), 0.9
    row, column = torch.meshgrid(torch.arange(40) + 0.5, torch.arange(60) + 0.5, indexing="ij")
    x = 7 + step * (angle.cos() * column - angle.sin() * row)
    y = 3 + step * (angle.sin() * column + angle.cos() * row)
    known = torch.tensor([12.3, 31.8]), torch.tensor([25.75, 8.1])  # columns, rows
    points = torch.stack(
        [
            7 + step * (angle.cos() * known[0] - angle.sin() * known[1]),
            3 + step * (angle.sin() * known[0] + angle.cos() * known[1]),
        ],
        -1,
    )
    found = find_points(points[None], x[None], y[None], y[None])
    assert found[0] == pytest.approx(torch.stack(known, -1), abs=1e-3)
