"""Templates ranked by how well each finds the others."""

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kneematch.evaluation.ground_truth import load_ground_truth
from numpy.typing import NDArray

from kneematch.errors import SettingsError, TemplateError
from kneematch.evaluation.tables import Table
from kneematch.evaluation.template_ranking import (
    cycle_errors,
    disagreement,
    rank_templates,
)
from kneematch.films.annotation import (
    PLATEAU_MARGINS,
    Annotation,
    Box,
    annotate,
    save_annotation,
)
from kneematch.knee.detection import CORNERS, corners_to_matrix
from kneephantoms.config import SynthConfig
from kneephantoms.dataset import synthesize

Floats = NDArray[np.float64]

OFF = 0.8  # of the height of a box, so that it shows the shaft alone


def similarity(scale: float, degrees: float, x: float, y: float) -> Floats:
    turn = np.radians(degrees)
    c, s = scale * np.cos(turn), scale * np.sin(turn)
    return np.array([[c, -s, x], [s, c, y], [0, 0, 1]])


# Where five knees are on their films, and how each was framed when it was drawn.
KNEES = np.stack([similarity(40 + 9 * k, 2 * k - 4, 100 + 7 * k, 90 - 5 * k) for k in range(5)])
FRAMES = np.stack([similarity(1 + 0.1 * k, 0, 0.05 * k, -0.03 * k) for k in range(5)])
BOXES = KNEES @ FRAMES
FOUND = KNEES[None] @ FRAMES[:, None]  # each frame on each knee


def test_corners_to_matrix_is_the_map_that_placed_the_corners() -> None:
    points = np.array([(x, y, 1.0) for x, y in CORNERS])
    corners = points @ KNEES[:, :2].swapaxes(1, 2)
    assert corners_to_matrix(corners) == pytest.approx(KNEES)


def test_cycle_errors_are_zero_however_differently_templates_were_drawn() -> None:
    round_trip, triangle = cycle_errors(BOXES, FOUND)
    same = np.eye(5, dtype=bool)
    assert np.isnan(round_trip[same]).all()
    assert round_trip[~same] == pytest.approx(np.zeros(20), abs=1e-9)
    known = triangle[~np.isnan(triangle)]
    assert len(known) == 5 * 4 * 3
    assert known == pytest.approx(np.zeros(60), abs=1e-9)


def test_cycle_errors_of_a_wrong_place_are_those_of_its_pairs_alone() -> None:
    found = FOUND.copy()
    found[2, 4, 0, 2] += 0.1 * 2 * BOXES[4, 0, 0]  # a tenth of the width of what was drawn there
    round_trip, _ = cycle_errors(BOXES, found)
    assert round_trip[2, 4] == pytest.approx(10 * FRAMES[4, 0, 0] / FRAMES[2, 0, 0], rel=0.02)
    assert round_trip[4, 2] == pytest.approx(10, rel=0.02)
    round_trip[2, 4] = round_trip[4, 2] = 0
    assert np.nanmax(round_trip) < 1e-9


def test_cycle_errors_show_in_triangles_what_a_round_trip_undoes() -> None:
    found = FOUND.copy()
    drift = similarity(1.05, 0, 0, 0)
    found[0, 1] = found[0, 1] @ drift
    found[1, 0] = BOXES[0] @ np.linalg.inv(np.linalg.inv(BOXES[1]) @ found[0, 1])
    round_trip, triangle = cycle_errors(BOXES, found)
    assert np.nanmax(round_trip) < 1e-9
    assert triangle[0, 1, 2] > 1


def test_disagreement_is_that_of_the_template_that_strays() -> None:
    same = ~np.eye(5, dtype=bool)
    assert disagreement(FOUND)[same] == pytest.approx(np.zeros(20), abs=1e-9)
    strayed = FOUND.copy()
    strayed[3, :, 0, 2] += 0.05 * np.array([-10, 5, 0, 8, -6])
    apart = disagreement(strayed)
    assert np.nanmedian(apart, axis=1).argmax() == 3


def test_disagreement_ignores_one_knee_of_many() -> None:
    strayed = FOUND.copy()
    strayed[1, 0, 1, 2] += 50
    assert np.nanmax(disagreement(strayed)) < 1e-9


def test_cycle_errors_do_not_depend_on_the_size_of_a_box() -> None:
    generator = np.random.default_rng(0)
    noise = np.stack([similarity(1, d, x, y) for d, x, y in 0.02 * generator.normal(size=(25, 3))])
    found = KNEES[None] @ noise.reshape(5, 5, 3, 3)
    larger = np.diag([1.4, 1.4, 1.0])
    before, before_triangle = cycle_errors(KNEES, found @ np.eye(3))
    frames = np.stack([larger, *[np.eye(3)] * 4])
    after, after_triangle = cycle_errors(KNEES @ frames, found @ frames[:, None])
    # Only the width of which it is a share has changed, and how far out the corners are.
    assert after[1:, 1:] == pytest.approx(before[1:, 1:], nan_ok=True)
    assert after[1:, 0] == pytest.approx(before[1:, 0])
    assert after_triangle[1:] == pytest.approx(before_triangle[1:], nan_ok=True)
    assert np.nanmax(after[0] / before[0]) <= 1.001


def drawn_lower(drawn: Annotation, share: float) -> Annotation:
    """All boxes lower by a share of the fine one's height."""
    by = share * (drawn.fine[3] - drawn.fine[1])

    def lower(box: Box) -> Box:
        return box[0], box[1] + by, box[2], box[3] + by

    boxes = (drawn.fine, drawn.coarse, drawn.red, drawn.green)
    fine, coarse, red, green = map(lower, boxes)
    return replace(drawn, fine=fine, coarse=coarse, red=red, green=green)


def drawn_larger(drawn: Annotation, factor: float) -> Annotation:
    """A larger fine box, the coarse one around it."""
    x0, y0, x1, y1 = drawn.fine
    dx, dy = (factor - 1) * (x1 - x0) / 2, (factor - 1) * (y1 - y0) / 2
    return replace(drawn, fine=(x0 - dx, y0 - dy, x1 + dx, y1 + dy))


def knees_of(truth: Path) -> list[Annotation]:
    """A knee of each film, left and right ones by turns."""
    with truth.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    drawn = []
    for number in range(len(rows) // 2):
        row = rows[2 * number + number % 2]
        left, right = sorted(
            (float(row[f"{name}_x_px"]), float(row[f"{name}_y_px"])) for name in PLATEAU_MARGINS
        )
        drawn.append(annotate(truth.parent / row["film"], row["side"], left, right))
    return drawn


def column(table: Table, title: str) -> list[Any]:
    place = [each.title for each in table.columns].index(title)
    return [row[place] for row in table.rows]


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = SynthConfig(5, "png", (320, 400), family=2, framing="knee", workers=0)
    return synthesize(tmp_path_factory.mktemp("films"), config).truth


@pytest.fixture(scope="module")
def folder(truth: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four good templates, one of them drawn larger, and one on the shaft."""
    folder = tmp_path_factory.mktemp("templates")
    *good, last = knees_of(truth)
    good[1] = drawn_larger(good[1], 1.2)
    for number, drawn in enumerate(good):
        save_annotation(drawn, folder / f"good-{number}.json")
    save_annotation(drawn_lower(last, OFF), folder / "bad.json")
    return folder


@pytest.fixture(scope="module")
def tables(folder: Path, truth: Path) -> list[Table]:
    films = [str(path) for path in sorted(truth.parent.glob("*.png"))]
    return rank_templates(folder, films, load_ground_truth(truth))


def test_rank_templates_puts_a_box_off_the_joint_last(tables: list[Table]) -> None:
    assert column(tables[0], "template")[-1] == "bad.json"
    *good, bad = column(tables[0], "round trip, median %")
    assert good == sorted(good)
    assert bad > 2 * good[-1]


def test_rank_templates_agrees_with_labels(tables: list[Table]) -> None:
    *good, bad = column(tables[0], "margins, median %")
    assert bad > max(good)
    *good, bad = column(tables[0], "mean IoU")
    assert bad < min(good)
    assert min(good) > 0.85


def test_rank_templates_compares_templates_on_further_films(tables: list[Table]) -> None:
    *good, bad = column(tables[0], "disagreement on films %")
    assert bad > max(good)


def test_rank_templates_lists_pairs_in_the_order_of_the_ranks(tables: list[Table]) -> None:
    ranked, pairs = tables
    names = column(ranked, "template")
    assert column(pairs, "template") == names
    assert [each.title for each in pairs.columns[1:]] == names
    errors = np.array([[np.nan if cell is None else cell for cell in r[1:]] for r in pairs.rows])
    assert np.isnan(errors.diagonal()).all()
    assert np.nanmedian(errors, axis=1) == pytest.approx(column(ranked, "round trip, median %"))
    assert np.nanmax(errors, axis=1) == pytest.approx(column(ranked, "round trip, worst %"))


def test_rank_templates_takes_the_margins_of_annotations_for_labels(
    truth: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="kneematch")
    first, second, third, *_ = knees_of(truth)
    for number, drawn in enumerate((first, second, third)):
        save_annotation(drawn, tmp_path / f"{number}.json")
    ranked, _ = rank_templates(tmp_path, paper=True)
    assert caplog.messages == ["0.json", "1.json", "2.json"]
    titles = [each.title for each in ranked.columns]
    assert "disagreement on films %" not in titles
    assert all(0 < error < 10 for error in column(ranked, "margins, median %"))
    assert column(ranked, "recall at 0.75") == [1.0, 1.0, 1.0]


def test_rank_templates_refuses_too_few_templates(truth: Path, tmp_path: Path) -> None:
    for number, drawn in enumerate(knees_of(truth)[:2]):
        save_annotation(drawn, tmp_path / f"{number}.json")
    with pytest.raises(SettingsError, match=r"2 templates; expected 3 or more"):
        rank_templates(tmp_path)
    with pytest.raises(SettingsError, match=r"0 templates"):
        rank_templates(tmp_path / "nowhere")


def test_rank_templates_names_a_file_that_is_no_template(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.json").write_text("{}", encoding="utf-8")
    with pytest.raises(TemplateError, match=r"a\.json"):
        rank_templates(tmp_path)
