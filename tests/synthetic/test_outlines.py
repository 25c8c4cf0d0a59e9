"""Outlines agree with the plateau's margins and with the picture."""

import math
from dataclasses import replace

import numpy as np
import pytest

from kneematch.synthetic.film_plan import plan_film
from kneematch.synthetic.outlines import true_outlines
from kneematch.synthetic.phantom import render, true_knees


@pytest.mark.parametrize("framing", ["bilateral", "single", "full_leg", "offcentre"])
def test_true_outlines_belong_to_the_true_knees(framing: str) -> None:
    for seed in range(10):
        plan = plan_film(seed, framing)
        for knee, lines in zip(true_knees(plan), true_outlines(plan), strict=True):
            wide = math.dist(knee.plateau_medial, knee.plateau_lateral)
            for line, end in (
                (lines.tibia_lateral, knee.plateau_lateral),
                (lines.tibia_medial, knee.plateau_medial),
            ):
                assert min(math.dist(point, end) for point in line) < 0.04 * wide
            assert math.dist(lines.femur[0], knee.plateau_lateral) < 0.3 * wide
            assert math.dist(lines.tibia[-1], knee.plateau_medial) < 0.1 * wide


def test_true_outlines_keep_the_femur_above_the_tibia() -> None:
    for seed in range(40):
        for lines in true_outlines(plan_film(seed)):
            assert np.median(lines.tibia[:, 1] - lines.femur[:, 1]) > 0


def test_true_outlines_lie_on_the_edges_of_the_picture() -> None:
    brighter = []
    for seed in range(8):
        plan = plan_film(seed, size=(820, 1000))
        legs = tuple(replace(leg, implant="") for leg in plan.legs)
        plan = replace(plan, negative=False, legs=legs)
        pixels = render(plan).numpy()
        for knee, lines in zip(true_knees(plan), true_outlines(plan), strict=True):
            step = 0.02 * math.dist(knee.plateau_medial, knee.plateau_lateral)
            for x, y in lines.femur[20:60:5]:  # the lateral condyle
                above, below = pixels[int(y - step), int(x)], pixels[int(y + step), int(x)]
                brighter.append(above > below)
    assert np.mean(brighter) > 0.9
