"""Annotations of phantoms from their ground truth."""

import csv
from pathlib import Path

import pytest

from kneematch.io.read import read
from kneematch.matching.template import cut_template
from kneematch.synthetic.annotation import annotate, annotation_from_truth
from kneematch.synthetic.config import SynthConfig
from kneematch.synthetic.dataset import synthesize

SIZE = (160, 200)


def rewrite(truth: Path, **values: str) -> None:
    """Give columns of a truth.csv the same value in every row."""
    with truth.open(newline="", encoding="utf-8") as file:
        rows = [row | values for row in csv.DictReader(file)]
    with truth.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows(rows)


def test_annotate_places_the_boxes_around_the_plateau() -> None:
    drawn = annotate(Path("a.png"), "right", (649, 592), (916, 592))
    assert drawn.fine == pytest.approx((605, 405, 965, 765), abs=1)
    assert drawn.coarse == pytest.approx((551, 351, 1019, 819), abs=1)
    assert drawn.red == pytest.approx((615, 535, 720, 640), abs=1)
    assert drawn.green == pytest.approx((850, 530, 955, 635), abs=1)
    assert drawn.landmarks == {"plateau_left": (649, 592), "plateau_right": (916, 592)}


def test_annotate_mirrors_the_boxes_of_a_left_knee() -> None:
    right = annotate(Path("a.png"), "right", (100, 50), (200, 50))
    left = annotate(Path("a.png"), "left", (100, 50), (200, 50))
    for name in ("fine", "coarse", "red", "green"):
        x0, y0, x1, y1 = getattr(right, name)
        assert getattr(left, name) == pytest.approx((300 - x1, y0, 300 - x0, y1), abs=0.11)
    assert left.red[0] > left.green[0]


def test_annotation_from_truth_can_be_cut(tmp_path: Path) -> None:
    drawn = annotation_from_truth(synthesize(tmp_path, SynthConfig(2, "png", SIZE)).truth)
    assert drawn is not None
    template, _ = cut_template(read(drawn.film), drawn)
    assert set(template.landmarks) == {"plateau_left", "plateau_right"}


@pytest.mark.parametrize(("column", "value"), [("hardware", "nail"), ("negative", "1")])
def test_annotation_from_truth_skips_negatives_and_hardware(
    tmp_path: Path, column: str, value: str
) -> None:
    truth = synthesize(tmp_path, SynthConfig(1, "png", SIZE)).truth
    rewrite(truth, **{column: value})
    assert annotation_from_truth(truth) is None


def test_annotation_from_truth_skips_knees_past_the_edge(tmp_path: Path) -> None:
    truth = synthesize(tmp_path, SynthConfig(1, "png", SIZE)).truth
    rewrite(truth, plateau_left_x_px="-80", plateau_right_x_px="10")
    assert annotation_from_truth(truth) is None
