"""Parts of the body other than knees, on whole films."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kneematch import DetectConfig, Detection, Detector, detect_folder, read
from kneematch.errors import TemplateError
from kneematch.films.annotation import BOXES, load_annotation, save_annotation
from kneematch.knee.quality import MAX_MATCH_BACK, NO_MATCH, OUTLIER, POOR, judge_match, run_limit
from kneematch.web.annotate import (
    SplitFilm,
    find_problems,
    find_warnings,
    initial_annotation,
    template_pictures,
)
from part_films import (
    LANDMARKS,
    PART,
    Place,
    landmark,
    part_annotation,
    part_film,
    save_film,
)
from tables import read_table

PLACE: Place = (150.0, 230.0, 1.15, 5.0, False)
MIRRORED: Place = (110.0, 250.0, 1.0, 0.0, True)
BESIDE: Place = (250.0, 250.0, 1.0, 0.0, False)


def detector(folder: Path, find: str, **changes: float) -> Detector:
    return Detector.load(template=replace(part_annotation(folder, find), **changes), device="cpu")  # type: ignore[arg-type]


def assert_found(area: Detection, place: Place) -> None:
    assert math.dist(area.centre, place[:2]) < 3
    assert area.width_px == pytest.approx(place[2] * PART, rel=0.04)
    assert area.name == f"area on the image's {'left' if place[4] else 'right'}"
    assert area.review_reasons == ()


def test_detector_finds_one_part_and_its_landmarks_anywhere_on_a_film(tmp_path: Path) -> None:
    (area,) = detector(tmp_path, "one").detect(part_film(PLACE, seed=2))
    assert_found(area, PLACE)
    assert area.rotation_deg == pytest.approx(PLACE[3], abs=1)
    assert list(area.landmarks) == list(LANDMARKS)
    for name, found in area.landmarks.items():
        assert math.dist(found, landmark(name, PLACE)) < 1
        assert 0 < area.landmark_sd_px[name] < 3


@pytest.mark.parametrize("find", ["one", "pair", "any"])
@pytest.mark.parametrize("scale_range", [1.0, 1.6])  # no scale of the search lies in the first
def test_detector_finds_one_part_or_also_its_mirror_image(
    tmp_path: Path, find: str, scale_range: float
) -> None:
    part = detector(tmp_path, find, scale_range=scale_range)
    found = part.detect(part_film(BESIDE, MIRRORED, seed=2))
    sound = {area.half: area for area in found if not area.needs_review}
    assert_found(sound["right"], BESIDE)
    assert (find == "one") == ("left" not in sound)
    if find == "pair":
        assert_found(sound["left"], MIRRORED)
        assert math.dist(sound["left"].landmarks["a"], landmark("a", MIRRORED)) < 1


def test_detector_counts_parts_once_that_two_turns_of_the_film_show(tmp_path: Path) -> None:
    centres = [(55, 55), (305, 55), (55, 365), (305, 365), (180, 50), (180, 370)]
    places: list[Place] = [(x, y, 0.65, 7.45, False) for x, y in [*centres, (55, 210), (305, 210)]]
    found = detector(tmp_path, "any", turn_deg=15.0).detect(part_film(*places, seed=4))
    assert len(found) == len(places)
    for x, y, *_ in places:
        assert any(math.dist(area.centre, (x, y)) < 5 for area in found)


def test_detector_finds_any_number_of_parts_and_names_them_apart(tmp_path: Path) -> None:
    places: list[Place] = [(85, 90, 1, 0, False), (250, 120, 1.1, 0, False), (150, 320, 1, 0, True)]
    found = detector(tmp_path, "any").detect(part_film(*places, seed=4))
    assert [area.side for area in found] == ["right", "left", "right-2"]
    for area, place in zip(found, (places[0], places[2], places[1]), strict=True):
        assert_found(area, place)


@pytest.mark.parametrize(("find", "reason"), [("one", NO_MATCH), ("any", POOR)])
def test_detector_flags_the_best_area_of_a_film_without_the_part(
    tmp_path: Path, find: str, reason: str
) -> None:
    (area,) = detector(tmp_path, find).detect(part_film(seed=5))
    assert reason in area.review_reasons


def test_detector_follows_turns_that_the_template_allows(tmp_path: Path) -> None:
    turned = (*PLACE[:3], 20.0, False)
    (area,) = detector(tmp_path, "one", turn_deg=25.0).detect(part_film(turned, seed=6))
    assert_found(area, turned)
    (area,) = detector(tmp_path, "one").detect(part_film(turned, seed=6))
    assert abs(area.rotation_deg) < 10


def test_load_refuses_methods_for_knees_and_a_box_that_leaves_the_film(tmp_path: Path) -> None:
    drawn = part_annotation(tmp_path, "one")
    outside = dict.fromkeys(BOXES, (300.0, 10.0, 500.0, 200.0))
    with pytest.raises(TemplateError, match="leaves the film"):
        Detector.load(template=replace(drawn, **outside))  # type: ignore[arg-type]


def test_run_limit_is_robust_and_needs_several_areas() -> None:
    assert run_limit([0.01] * 9) == MAX_MATCH_BACK
    usual = [0.024, 0.025, 0.026] * 5
    assert run_limit([*usual, 0.039]) == pytest.approx(0.025 + 5 * 1.4826 * 0.001)
    assert run_limit([0.5] * 20) == MAX_MATCH_BACK


def test_judge_match_flags_and_takes_back() -> None:
    area = Detection(np.eye(3), "right", "search", match_back=0.03)
    assert not judge_match(area).needs_review
    flagged = judge_match(area, 0.02, OUTLIER)
    assert flagged.review_reasons == (OUTLIER,)
    assert judge_match(flagged, 0.035, OUTLIER).reasons == ()
    assert judge_match(replace(area, match_back=math.nan)).needs_review


def test_detect_folder_writes_parts_with_their_deviations(tmp_path: Path) -> None:
    drawn = part_annotation(tmp_path, "any")
    save_annotation(drawn, tmp_path / "part.json")
    assert load_annotation(tmp_path / "part.json") == drawn
    film = save_film(tmp_path / "pair.png", part_film(MIRRORED, BESIDE, seed=7))
    config = DetectConfig(template=(str(tmp_path / "part.json"),), device="cpu", workers=0)
    detect_folder([str(film)], tmp_path / "out", config)
    rows = read_table(tmp_path / "out" / "detections.csv")
    assert len(rows) == 2
    assert all(0 < float(row["match_back"]) < MAX_MATCH_BACK for row in rows)
    assert all(float(row[f"{name}_sd_px"]) > 0 for row in rows for name in LANDMARKS)
    assert float(rows[0]["a_x_px"]) == pytest.approx(landmark("a", MIRRORED)[0], abs=1)


def test_annotation_page_draws_one_box_on_any_film(tmp_path: Path) -> None:
    drawn = part_annotation(tmp_path, "any")
    film = SplitFilm.from_film(drawn.film, read(drawn.film))
    assert find_problems(drawn, film) == find_warnings(drawn, film) == []
    assert template_pictures(drawn, film)["film_size"] == [PART, PART]
    initial, source = initial_annotation(film, tmp_path / "template.json")
    assert (initial.find, source) == ("one", "middle")
