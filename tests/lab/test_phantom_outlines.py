"""Tests of the maps of phantom knees and of the random crops that are sampled from them."""

from argparse import Namespace

import numpy as np
import pytest
import torch

from kneematch.knee.measure import tibiofemoral_angle
from kneematch.models.outlines import OutlineNetwork
from kneephantoms.film_plan import plan_film
from kneephantoms.rendering import true_knees
from make_outlines import outline_loss, train_outlines
from phantom_outlines import (
    JOINT,
    KneeMaps,
    TrainingCrops,
    render_maps,
    sample_crops,
    true_outlines,
)

COUNT = 6


@pytest.fixture(scope="module")
def maps() -> KneeMaps:
    return render_maps(range(COUNT), JOINT)


@pytest.fixture(scope="module")
def batch(maps: KneeMaps) -> TrainingCrops:
    generator = torch.Generator().manual_seed(0)
    return sample_crops(maps, torch.arange(COUNT).repeat(4), generator)


def test_true_outlines_end_at_the_margins() -> None:
    plan = plan_film(3)
    for knee, outlines in zip(true_knees(plan), true_outlines(plan), strict=True):
        ends = outlines.tibia[[0, -1]]
        known = np.array([knee.plateau_left, knee.plateau_right])
        assert np.abs(ends - known).max() < 0.03 * outlines.width_px
        assert (outlines.medial == "right") == (knee.plateau_medial == knee.plateau_right)
        assert tibiofemoral_angle(outlines) is not None


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


def test_train_outlines_lowers_the_loss(maps: KneeMaps, batch: TrainingCrops) -> None:
    torch.manual_seed(0)
    network = OutlineNetwork((4, 4, 4, 4, 4))
    before = outline_loss(network, batch).item()
    args = Namespace(steps=5, batch=2, rate=1e-2, seed=0)
    train_outlines(network, [maps], args, lambda step, loss: None)
    assert not network.training
    assert outline_loss(network, batch).item() < before
