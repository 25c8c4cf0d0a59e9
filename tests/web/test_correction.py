"""Areas moved by hand: their corners, their landmarks, and the live loss."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from kneematch.batch.recipe import Recipe
from kneematch.io.read import read
from kneematch.web.correction import matcher_of, moved
from kneematch.web.detections_table import Rows, load_rows
from kneematch.web.review_log import Area, area_of


@pytest.fixture
def rows(finished_run: Path) -> Rows:
    return load_rows(finished_run)


def test_an_area_put_where_it_was_is_the_same(rows: Rows) -> None:
    for row in range(len(rows)):
        found = rows.detection(row)
        same = moved(found, area_of(rows, row))
        np.testing.assert_allclose(same.corners, found.corners, atol=0.05)  # halves are rounded
        for name, place in found.landmarks.items():
            assert same.landmarks[name] == pytest.approx(place, abs=0.05)
        assert same.height_px == pytest.approx(found.height_px)


def test_landmarks_go_where_the_area_goes(rows: Rows) -> None:
    for row in (0, 1):
        found, area = rows.detection(row), area_of(rows, row)
        shifted = moved(
            found,
            Area(area.centre_x_px + 7, area.centre_y_px - 3, area.width_px, area.rotation_deg),
        )
        for name, (x, y) in found.landmarks.items():
            assert shifted.landmarks[name] == pytest.approx((x + 7, y - 3), abs=0.05)
        larger = moved(
            found,
            Area(area.centre_x_px, area.centre_y_px, 2 * area.width_px, area.rotation_deg),
        )
        centre = np.array(found.centre)
        for name, place in found.landmarks.items():
            grown = centre + 2 * (np.array(place) - centre)
            assert larger.landmarks[name] == pytest.approx(tuple(grown), abs=0.05)


def test_the_live_loss_is_the_one_that_detect_has_told(rows: Rows, finished_run: Path) -> None:
    matcher, why = matcher_of(finished_run)
    assert matcher is not None, why
    for row in range(len(rows)):
        film = matcher.prepare(read(rows.text(row, "film")))
        found = rows.detection(row)
        assert matcher.loss(film, found) == pytest.approx(found.loss, abs=2e-4)
        area = area_of(rows, row)
        elsewhere = Area(area.centre_x_px + 9, area.centre_y_px, area.width_px, area.rotation_deg)
        away = matcher.loss(film, moved(found, elsewhere))
        assert away is not None
        assert away > found.loss + 0.05


def test_without_the_runs_own_template_there_is_no_loss(run_folder: Path) -> None:
    path = run_folder / "run.json"
    told = json.loads(path.read_text())
    hashes = dict.fromkeys(told["sha256"], "0" * 64)
    path.write_text(json.dumps({**told, "sha256": hashes}))
    assert matcher_of(run_folder) == (None, "the run's template has changed since")
    gone = {**told["settings"], "template": "gone.json"}
    path.write_text(json.dumps({**told, "settings": gone}))
    assert matcher_of(run_folder)[0] is None
    path.write_text("[]")
    assert matcher_of(run_folder)[0] is None
    path.unlink()
    matcher, why = matcher_of(run_folder)
    assert matcher is None
    assert "run.json" in why


def test_the_template_of_a_model_is_found_too(run_folder: Path) -> None:
    path, recipe = run_folder / "run.json", Recipe()  # the model in the box
    told = {"settings": asdict(recipe), "sha256": recipe.hashes()}
    path.write_text(json.dumps(told))
    matcher, why = matcher_of(run_folder)
    assert matcher is not None, why
    assert {"plateau_left", "plateau_right"} <= set(matcher.template.landmarks)
