"""Boxes around a plateau."""

from pathlib import Path

import pytest

from kneematch.synthetic.annotation import annotate


def test_annotate_places_the_boxes_around_the_plateau() -> None:
    drawn = annotate(Path("a.png"), "right", (649, 592), (916, 592))
    assert drawn.fine == pytest.approx((605, 405, 965, 765), abs=1)
    assert drawn.coarse == pytest.approx((551, 351, 1019, 819), abs=1)
    assert drawn.red == pytest.approx((615, 535, 720, 640), abs=1)
    assert drawn.green == pytest.approx((850, 530, 955, 635), abs=1)
    assert drawn.landmarks == {"plateau_medial": (649, 592), "plateau_lateral": (916, 592)}


def test_annotate_mirrors_the_boxes_of_a_left_knee() -> None:
    right = annotate(Path("a.png"), "right", (100, 50), (200, 50))
    left = annotate(Path("a.png"), "left", (100, 50), (200, 50))
    for name in ("fine", "coarse", "red", "green"):
        x0, y0, x1, y1 = getattr(right, name)
        assert getattr(left, name) == pytest.approx((300 - x1, y0, 300 - x0, y1), abs=0.11)
    assert left.red[0] > left.green[0]
