"""Runs with several templates: one visit a film, and files that tell the templates apart."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from kneematch import DetectConfig, detect_folder
from kneematch.errors import SettingsError
from kneematch.films.annotation import save_annotation
from kneematch.knee.decision import Area, Decision
from kneematch.run.apply import apply_review
from kneematch.run.decisions import write_decisions
from kneematch.web.review import DecisionRequest, ReviewSession
from part_films import LANDMARKS, Place, part_annotation, part_film, save_film
from tables import read_table

LEFT: Place = (100.0, 100.0, 1.0, 0.0, True)
RIGHT: Place = (260.0, 105.0, 1.0, 0.0, False)
BELOW: Place = (150.0, 310.0, 1.1, 0.0, False)


def areas_on(out: Path, film: str) -> dict[str, dict[str, str]]:
    rows = read_table(out / "detections.csv")
    return {row["image_side"]: row for row in rows if row["film"].endswith(film)}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with the templates hip (a pair) and ankle (any number), without and with both parts."""
    folder = tmp_path_factory.mktemp("parts")
    save_annotation(part_annotation(folder, "pair"), folder / "hip.json")
    ankle = part_annotation(folder, "any", other=True)
    ankle = replace(ankle, landmarks={"tip": ankle.landmarks["a"]})
    save_annotation(ankle, folder / "ankle.json")
    films = folder / "films"
    films.mkdir()
    save_film(films / "both.png", part_film(LEFT, RIGHT, others=[BELOW], seed=3))
    save_film(films / "hips.png", part_film(LEFT, RIGHT, seed=4))
    config = DetectConfig(
        template=(str(folder / "hip.json"), str(folder / "ankle.json")),
        crops=True,
        overlays=True,
        export=("coco",),
        device="cpu",
        workers=0,
    )
    result = detect_folder([str(films)], folder / "found", config)
    assert (result.noun, result.films) == ("area", 2)
    return result.out


def test_detect_folder_tells_the_areas_of_several_templates_apart(found: Path) -> None:
    areas = areas_on(found, "both.png")
    assert {side: row["template"] for side, row in areas.items()} == {
        "left": "hip",
        "right": "hip",
        "right-2": "ankle",
    }
    for side, place in {"left": LEFT, "right": RIGHT, "right-2": BELOW}.items():
        assert float(areas[side]["centre_x_px"]) == pytest.approx(place[0], abs=3)
        assert float(areas[side]["centre_y_px"]) == pytest.approx(place[1], abs=3)
        assert areas[side]["review"] == ""
    points = {side: (bool(row["a_x_px"]), bool(row["tip_x_px"])) for side, row in areas.items()}
    assert points == {"left": (True, False), "right": (True, False), "right-2": (False, True)}
    only_hips = areas_on(found, "hips.png").values()
    assert [row["review"] for row in only_hips if row["template"] == "hip"] == ["", ""]
    assert all(row["review"] for row in only_hips if row["template"] == "ankle")


def test_detect_folder_makes_the_files_of_every_area(found: Path) -> None:
    rows = read_table(found / "detections.csv")
    keys = {(row["film"], row["image_side"]) for row in rows}
    assert len(keys) == len(rows)
    crops = read_table(found / "crops.csv")
    assert {(row["film"], row["image_side"]) for row in crops} == keys
    assert {row["file"] for row in crops} == {path.name for path in (found / "crops").iterdir()}
    coco = json.loads((found / "coco.json").read_text())
    names = {each["id"]: each["name"] for each in coco["categories"]}
    points = {each["name"]: each["keypoints"] for each in coco["categories"]}
    assert points == {"hip": list(LANDMARKS), "ankle": ["tip"]}
    kinds = [names[each["category_id"]] for each in coco["annotations"]]
    assert sorted(kinds) == sorted(row["template"] for row in rows)
    page = (found / "report.html").read_text(encoding="utf-8").split("Technical")[0]
    report = re.sub("(?s)<style>.*</style>|<[^>]*>", " ", page)
    assert "ankle on the image" in report
    assert "joint area" not in report
    assert not re.search(r"\bknees?\b", report, re.IGNORECASE)


def test_apply_review_keeps_the_templates_of_areas(found: Path) -> None:
    session = ReviewSession(found)
    ankle = session.row(3)  # after two hips
    assert session.free_sides(ankle) == {"left": "left-2", "right": "right-3"}
    session.decide(DecisionRequest(ankle.key, "accepted"))
    draft = session.draft(ankle, "left")
    assert draft.template == "ankle"
    area = replace(Area.from_detection(draft), centre_x_px=60.0)
    added = session.decide(DecisionRequest(ankle.key, "corrected", side="left", area=area))
    assert session.row(added).knee.name == "ankle on the image's left"
    session.close()
    apply_review(found, workers=0)
    areas = areas_on(found, "both.png")
    decided = {side: (row["template"], row["decision"]) for side, row in areas.items()}
    assert decided == {
        "left": ("hip", ""),
        "right": ("hip", ""),
        "right-2": ("ankle", "accepted"),
        "left-2": ("ankle", "corrected"),
    }


@pytest.mark.parametrize(("template", "named"), [("", "knees"), ("elbow", "elbow")])
def test_apply_review_refuses_areas_of_templates_that_the_run_does_not_have(
    found: Path, tmp_path: Path, template: str, named: str
) -> None:
    before = (found / "detections.csv").read_bytes()
    film = read_table(found / "detections.csv")[0]["film"]
    area = Area(100.0, 100.0, 50.0, 0.0)
    added = Decision("corrected", area, height_px=50.0, template=template)
    entry = ("2026-01-02T03:04:05+00:00", film, "left-5", added, False)
    write_decisions([entry], tmp_path / "review.csv")
    with pytest.raises(SettingsError, match=f"areas of {named}, which the run has no template of"):
        apply_review(found, decisions=tmp_path / "review.csv", workers=0)
    apply_review(found, workers=0)
    assert (found / "detections.csv").read_bytes() == before


def test_detect_config_refuses_what_several_templates_cannot_have(
    found: Path, template: str
) -> None:
    hip = str(found.parent / "hip.json")
    with pytest.raises(SettingsError, match="trained for one `template`"):
        DetectConfig(template=(hip, template), model="model.safetensors")
    twice = DetectConfig(template=(template, template), method="search", device="cpu")
    with pytest.raises(SettingsError, match="Only one `template`"):
        twice.load_detectors()
    with pytest.raises(SettingsError, match="need a `template` of knees"):
        DetectConfig(template=(hip,), measure=True, device="cpu").load_detectors()
    both = DetectConfig(template=(hip, template), device="cpu")
    assert list(both.load_detectors()) == ["hip", ""]


def test_detect_folder_finds_knees_beside_another_part(
    found: Path, films: Path, template: str, tmp_path: Path
) -> None:
    film = next(films.glob("*.dcm"))
    hip = str(found.parent / "hip.json")
    alone = DetectConfig(template=(template,), device="cpu", workers=0)
    detect_folder([str(film)], tmp_path / "alone", alone)
    both = replace(alone, template=(hip, template), measure=True, export=("sr",))
    detect_folder([str(film)], tmp_path / "both", both)
    knees = [row for row in read_table(tmp_path / "both" / "detections.csv") if not row["template"]]
    for knee, before in zip(knees, read_table(tmp_path / "alone" / "detections.csv"), strict=True):
        same = ("image_side", "laterality", "centre_x_px", "centre_y_px", "loss")
        assert {name: knee[name] for name in same} == {name: before[name] for name in same}
    assert len(read_table(tmp_path / "both" / "knees.csv")) == len(knees) == 2
