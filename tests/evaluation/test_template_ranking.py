"""Templates ranked by how well each finds the others."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kneematch.errors import SettingsError, TemplateError
from kneematch.evaluation.scores import Table
from kneematch.evaluation.template_ranking import rank_templates, round_trips
from kneematch.films.annotation import (
    PLATEAU_MARGINS,
    Annotation,
    annotate,
    save_annotation,
)
from kneematch.paper.template import Box
from kneephantoms.config import SynthConfig
from kneephantoms.dataset import synthesize
from tables import read_table

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


def test_round_trips_are_zero_however_differently_templates_were_drawn() -> None:
    errors = round_trips(BOXES, FOUND)
    same = np.eye(5, dtype=bool)
    assert np.isnan(errors[same]).all()
    assert errors[~same] == pytest.approx(np.zeros(20), abs=1e-9)


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
    rows, drawn = read_table(truth), []
    for number in range(len(rows) // 2):
        row = rows[2 * number + number % 2]
        left, right = sorted(
            (float(row[f"{name}_x_px"]), float(row[f"{name}_y_px"])) for name in PLATEAU_MARGINS
        )
        drawn.append(annotate(truth.parent / row["film"], row["side"], left, right))
    return drawn


def column(table: Table, title: str) -> list[Any]:
    place = list(table.columns).index(title)
    return [row[place] for row in table.rows]


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = SynthConfig(4, "png", (320, 400), family=2, framing="knee", workers=0)
    return synthesize(tmp_path_factory.mktemp("films"), config).truth


@pytest.fixture(scope="module")
def folder(truth: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three good templates, one of them drawn larger, and one on the shaft."""
    folder = tmp_path_factory.mktemp("templates")
    *good, last = knees_of(truth)
    good[1] = drawn_larger(good[1], 1.2)
    for number, drawn in enumerate(good):
        save_annotation(drawn, folder / f"good-{number}.json")
    save_annotation(drawn_lower(last, OFF), folder / "bad.json")
    return folder


def test_rank_templates_puts_a_box_off_the_joint_last(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="kneematch")
    ranked = rank_templates(folder)
    assert caplog.messages == ["bad.json", *(f"good-{number}.json" for number in range(3))]
    assert column(ranked, "template")[-1] == "bad.json"
    *good, bad = column(ranked, "round trip, median %")
    assert good == sorted(good)
    assert 0 < good[0] < 10
    assert bad > 2 * good[-1]
    assert all(0 < loss < 1 for loss in column(ranked, "mean loss on the others"))


def test_rank_templates_refuses_too_few_templates_and_other_files(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"0 templates .* takes 3 or more"):
        rank_templates(tmp_path / "nowhere")
    for name in "abc":
        (tmp_path / f"{name}.json").write_text("{}", encoding="utf-8")
    with pytest.raises(TemplateError, match=r"a\.json"):
        rank_templates(tmp_path)
