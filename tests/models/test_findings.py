"""Metal and open growth plates in views of phantoms."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kneematch.knee.knee_images import knee_images
from kneematch.models.findings import NOTHING, find_findings
from kneematch.models.locator import VIEW_SIZE, KneeLocation
from kneephantoms import plan_film, render, true_knees

SEEDS = range(900, 908)


def views(seed: int, implant: str = "", growth_plates: float = 0.0) -> Tensor:
    """Views (S, 400, 250) of the knees of a phantom, all with the same implant or none."""
    plan = plan_film(seed, "bilateral")
    legs = tuple(
        replace(leg, implant=implant, shape=replace(leg.shape, growth_plates=growth_plates))
        for leg in plan.legs
    )
    plan, places = replace(plan, legs=legs), []
    for knee in true_knees(plan):
        width = math.dist(knee.plateau_medial, knee.plateau_lateral)
        places.append(KneeLocation(*knee.centre, width, 0.0, float(knee.lateral_is_left)))
    return knee_images(torch.from_numpy(render(plan)), places).pixels


@pytest.fixture(scope="module")
def plain() -> Tensor:
    return torch.cat([views(seed) for seed in SEEDS])


def test_find_findings_finds_nothing_in_ordinary_knees(plain: Tensor) -> None:
    assert find_findings(plain).count(NOTHING) >= 0.9 * len(plain)
    assert find_findings(1 - plain).count(NOTHING) >= 0.8 * len(plain)  # a negative
    assert find_findings(torch.zeros(1, *VIEW_SIZE)) == [NOTHING]


@pytest.mark.parametrize("implant", ["total", "partial", "plate", "nail"])
def test_find_findings_sees_metal(implant: str) -> None:
    shown = torch.cat([views(seed, implant) for seed in SEEDS])
    for knees in (shown, shown.flip(2), 1 - shown):  # the other side, a negative
        found = [each.metal for each in find_findings(knees)]
        assert sum(found) >= 0.7 * len(found)


def test_find_findings_sees_growth_plates() -> None:
    shown = torch.cat([views(seed, growth_plates=0.03) for seed in SEEDS])
    found = find_findings(shown)
    assert sum(each.growth_plates for each in found) >= 0.85 * len(found)
    assert sum(each.metal for each in found) <= 0.1 * len(found)


def test_find_findings_ignores_things_beside_the_bones(plain: Tensor) -> None:
    """A ball for calibration and a marker lie beside the leg, and not in it."""
    shown = plain.clone()
    shown[:, 80:120, 10:50] = 1.0
    rows, columns = (torch.arange(side) for side in VIEW_SIZE)
    shown[:, (rows[:, None] - 260).square() + (columns - 235).square() < 200] = 1.0
    assert sum(each.metal for each in find_findings(shown)) <= 1
