"""Truth: labels are read as they are meant, and knees compared with them as they should be."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kneematch.detection.detection import Detection
from kneematch.errors import SettingsError
from kneematch.evaluation.ground_truth import (
    KnownKnee,
    Truth,
    load_truth,
    margins_of,
    overlap,
    scores,
)
from kneematch.evaluation.method_run import Trial
from kneematch.synthetic.config import SynthConfig
from kneematch.synthetic.dataset import synthesize
from kneematch.synthetic.phantom import phantom

HEADER = "id,knee,x1,y1,x2,y2,flag\n"
LABELS = (
    HEADER
    + """dev-knee-01,L,100,300,300,300,
dev-knee-01,R,600,300,800,300,osteophytes
dev-leg-02,L,100,300,300,300,very doubtful
dev-leg-02,R,,,,,
dev-leg-02,r,800,310,600,300,
"""
)


def labels(folder: Path, text: str = LABELS) -> Path:
    path = folder / "labels.csv"
    path.write_text(text)
    return path


def area(side: str, left: tuple[float, float], right: tuple[float, float], **changes: Any) -> Any:
    """A detection whose margins are known; nothing else of it is looked at."""
    found = Detection(
        side=side,
        laterality="L",
        energy=0.3,
        loss=0.1,
        polarity="positive",
        method="search",
        corners=np.zeros((4, 2)),
        centre=(0.0, 0.0),
        width_px=1.0,
        height_px=1.0,
        rotation_deg=0.0,
        landmarks={"plateau_left": left, "plateau_right": right},
    )
    return replace(found, **changes)


def test_labels_are_read_and_flagged_ones_left_out(tmp_path: Path) -> None:
    truth = load_truth(labels(tmp_path))
    assert truth.left_out == 2
    assert truth.knees == (
        KnownKnee("dev-knee-01", "left", (100, 300), (300, 300), "knee"),
        KnownKnee("dev-knee-01", "right", (600, 300), (800, 300), "knee"),
        KnownKnee("dev-leg-02", "right", (600, 300), (800, 310), "leg"),
    )


def test_films_whose_names_tell_no_source_have_one_in_common(tmp_path: Path) -> None:
    text = "id,knee,x1,y1,x2,y2\n9001,L,1,1,2,2\n9002-77,L,1,1,2,2\n"
    assert {knee.source for knee in load_truth(labels(tmp_path, text)).knees} == {"other"}


def test_a_column_of_sources_is_believed(tmp_path: Path) -> None:
    text = "id,knee,x1,y1,x2,y2,source\ndev-knee-01,L,1,1,2,2,Oulu\n"
    assert load_truth(labels(tmp_path, text)).knees[0].source == "Oulu"


def test_the_truth_of_phantoms_is_read(tmp_path: Path) -> None:
    config = SynthConfig(count=2, size=(300, 360), seed=5, workers=0)
    path = synthesize(tmp_path / "films", config).truth
    truth = load_truth(path)
    assert len(truth.knees) == 4
    for k, knee in enumerate(truth.knees):
        known = phantom(5 + k // 2, size=(300, 360))
        assert knee.left == pytest.approx(known.knees[k % 2].plateau_left, abs=1e-3)
        assert knee.side == known.knees[k % 2].side
        if known.hardware is None:
            assert knee.source == ("negative" if known.negative else "ordinary")


def test_hardware_is_a_source_of_its_own(tmp_path: Path) -> None:
    columns = "film,side,plateau_left_x_px,plateau_left_y_px,plateau_right_x_px"
    text = f"{columns},plateau_right_y_px,negative,hardware\n" + "".join(
        f"a.dcm,{side},1,1,9,1,{negative},{hardware}\n"
        for side, negative, hardware in [("left", 0, "nail"), ("right", 1, "")]
    )
    knees = load_truth(labels(tmp_path, text)).knees
    assert [knee.source for knee in knees] == ["implant", "negative"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("id,knee,x1\na,L,1\n", "columns id, knee, x1; expected id, knee, x1, y1, x2, y2"),
        ("", "columns none"),
        (HEADER, "no knee"),
        (HEADER + "a,L,1,2,x,4,\n", "line 2"),
        (HEADER + "a,L,1,2\n", "line 2"),
        (HEADER + "a,middle,1,2,3,4,\n", "side 'middle'"),
        (HEADER + "a,L,1,2,1,2,\n", "points that differ"),
        (HEADER + "a,L,1,2,inf,2,\n", "line 2"),
        (HEADER + ",L,1,2,3,4,\n", "no film"),
    ],
)
def test_a_file_that_is_no_truth_is_refused(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        load_truth(labels(tmp_path, text))


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="check the path"):
        load_truth(tmp_path / "none.csv")
    (tmp_path / "film.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match="expected labels"):
        load_truth(tmp_path / "film.csv")


def known(*names: str) -> Truth:
    knees = [KnownKnee(name, "left", (100, 300), (300, 300), "other") for name in names]
    return Truth(Path("labels.csv"), tuple(knees), 0)


def test_films_match_by_name_or_stem_whatever_their_folder() -> None:
    films = ["a/one.jpg", "b/two.dcm", "c/1.2.840.7", "c/other.png"]
    matched = known("one", "two.dcm", "1.2.840.7").match(films)
    assert list(matched) == films[:3]


def test_labels_without_films_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"no film is labelled in it; .* as one;"):
        known("two").match(["a/one.jpg"])


def test_a_name_that_two_films_have_is_refused_only_if_it_is_labelled() -> None:
    films = ["a/one.jpg", "b/one.dcm", "b/two.dcm"]
    with pytest.raises(SettingsError, match=r"one may be a/one\.jpg or b/one\.dcm"):
        known("one").match(films)
    assert list(known("two", "one.dcm").match(films)) == ["b/two.dcm", "b/one.dcm"]


def test_a_knee_that_is_labelled_twice_is_refused() -> None:
    with pytest.raises(SettingsError, match="labelled twice"):
        known("one", "one.jpg").match(["a/one.jpg"])


@pytest.mark.parametrize(
    ("moved", "expected"),
    [((0, 0), 1.0), ((75, 0), 225 / 375), ((0, 150), 150 / 450), ((300, 0), 0.0), ((999, 0), 0.0)],
)
def test_areas_are_squares_one_and_a_half_plateaus_wide(
    moved: tuple[float, float], expected: float
) -> None:
    dx, dy = moved
    one, other = (
        ((100.0, 300.0), (300.0, 300.0)),
        ((100.0 + dx, 300.0 + dy), (300.0 + dx, 300 + dy)),
    )
    assert overlap(one, other) == pytest.approx(expected)
    assert overlap(other, one) == pytest.approx(expected)


def test_a_tilted_plateau_has_an_upright_area_of_its_own_length() -> None:
    level = (0.0, 0.0), (100.0, 0.0)
    tilted = (10.0, -40.0), (90.0, 40.0)  # about the middle (50, 0)
    length = math.hypot(80, 80)
    assert overlap(level, tilted) == pytest.approx(100**2 / length**2)


def test_margins_are_ordered_as_in_the_picture() -> None:
    assert margins_of(area("left", (300, 1), (100, 2))) == ((100, 2), (300, 1))
    own = area("left", (0, 0), (0, 0), landmarks={"b": (9.0, 1.0), "a": (3.0, 1.0)})
    assert margins_of(own) == ((3, 1), (9, 1))
    three = area("left", (1, 0), (2, 0))
    more = replace(three, landmarks={**three.landmarks, "spine": (0.0, 0.0)})
    assert margins_of(more) == ((1, 0), (2, 0))


@pytest.mark.parametrize("names", [(), ("a",), ("a", "b", "c")])
def test_areas_without_margins_cannot_be_compared(names: tuple[str, ...]) -> None:
    found = area("left", (0, 0), (0, 0), landmarks=dict.fromkeys(names, (1.0, 1.0)))
    with pytest.raises(SettingsError, match="expected both margins"):
        scores([Trial("search", {"one.jpg": (found,)})], known("one"))


def test_errors_are_in_percent_of_the_plateau_and_in_mm() -> None:
    found = area("left", (103, 304), (300, 300), mm_per_px=0.5, loss=0.25)
    (score,) = scores([Trial("search", {"one.jpg": (found,)})], known("one"))
    assert score.margin_percent == pytest.approx([100 * (5 + 0) / 2 / 200])
    assert score.centre_percent == pytest.approx([100 * 2.5 / 200])
    assert score.margin_mm == pytest.approx([1.25])
    assert score.centre_mm == pytest.approx([1.25])
    assert score.loss == pytest.approx([0.25])


def test_without_spacing_there_are_no_millimetres() -> None:
    found = area("left", (103, 304), (300, 300))
    (score,) = scores([Trial("search", {"one.jpg": (found,)})], known("one"))
    assert np.isnan(score.margin_mm).all()
    assert np.isfinite(score.margin_percent).all()


def test_a_knee_that_was_not_found_is_missed_and_one_never_looked_for_is_not() -> None:
    right = area("right", (100, 300), (300, 300))
    left = area("left", (100, 300), (300, 300))
    full = Trial("search", {"one.jpg": (right,), "two.jpg": (left,)}, failed={"three.jpg": "why"})
    few = Trial("grid", {"two.jpg": (left,)})
    many, some = scores([full, few], known("one", "two", "three", "never"))
    assert many.film.tolist() == ["one.jpg", "two.jpg", "three.jpg"]
    assert many.missed.tolist() == [True, False, True]
    assert many.iou.tolist() == [0, 1, 0]
    assert np.isnan(many.margin_percent).tolist() == [True, False, True]
    assert some.film.tolist() == ["two.jpg"]


def test_values_are_grouped_by_film(tmp_path: Path) -> None:
    truth = load_truth(labels(tmp_path))
    found = {f"{name}.jpg": () for name in ("dev-leg-02", "dev-knee-01")}
    (score,) = scores([Trial("search", found)], truth)
    assert score.by_film(np.array([1.0, 2.0, 3.0])) == [[1, 2], [3]]
    assert score.only(score.source == "leg").film.tolist() == ["dev-leg-02.jpg"]
