"""The annotation file: what is saved is loaded, and what is malformed is refused in one line."""

import json
from pathlib import Path
from typing import Any

import pytest

from kneematch.errors import TemplateError
from kneematch.films.annotation import (
    BOXES,
    Annotation,
    annotate,
    annotation_problems,
    load_annotation,
    save_annotation,
)

FINE, COARSE = [100, 200, 300, 380], [80, 180, 320, 400]
RED, GREEN = [110, 250, 150, 300], [250, 250, 290, 300]


@pytest.fixture(autouse=True)
def film(tmp_path: Path) -> None:
    """Make the film that was drawn on."""
    (tmp_path / "films").mkdir()
    (tmp_path / "films" / "one.dcm").touch()


def valid(**boxes: Any) -> dict[str, Any]:
    return {
        "format": "kneematch-template/1",
        "film": "films/one.dcm",
        "side": "left",
        "boxes": {"fine": FINE, "coarse": COARSE, "red": RED, "green": GREEN} | boxes,
        "landmarks": {"Kniekehle – süd": [120.5, -290.25]},
    }


def written(folder: Path, data: Any) -> Path:
    path = folder / "template.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    return path


def refusal(path: Path) -> str:
    """The message of the error that a file causes, which must be one line that names the file."""
    with pytest.raises(TemplateError) as caught:
        load_annotation(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    assert len(message) < len(str(path)) + 300
    return message


def test_load_annotation_reads_what_save_annotation_writes(tmp_path: Path) -> None:
    boxes: list[Any] = [tuple(map(float, box)) for box in (FINE, COARSE, RED, GREEN)]
    landmarks = {"Kniekehle – süd": (120.5, -290.25)}
    expected = Annotation(tmp_path / "films/one.dcm", "left", *boxes, landmarks)
    path = written(tmp_path, valid())
    assert load_annotation(path) == expected
    save_annotation(expected, path)
    added = {"format": "kneematch-template/2", "find": "knees", "scale_range": 1.6, "turn_deg": 7.0}
    stored = json.loads(path.read_text(encoding="utf-8"))
    assert stored == valid() | added  # the film's path is relative
    assert load_annotation(path) == expected
    assert load_annotation(written(tmp_path, valid() | {"landmarks": {}})).landmarks == {}


def test_load_annotation_needs_one_box_of_other_parts_than_knees(tmp_path: Path) -> None:
    part = valid() | {"format": "kneematch-template/2", "find": "pair", "boxes": {"fine": FINE}}
    drawn = load_annotation(written(tmp_path, part | {"scale_range": 2, "turn_deg": 20}))
    assert drawn.fine == drawn.red == drawn.green == tuple(map(float, FINE))
    assert (drawn.find, drawn.scale_range, drawn.turn_deg) == ("pair", 2, 20)
    assert "'find' must be" in refusal(written(tmp_path, part | {"find": "two"}))
    assert "'turn_deg' must be" in refusal(written(tmp_path, part | {"turn_deg": 90}))
    assert "'scale_range' must be" in refusal(written(tmp_path, part | {"scale_range": "2"}))
    assert "'red' must be" in refusal(written(tmp_path, part | {"find": "knees"}))


def test_load_annotation_takes_boxes_on_edges_and_enlarges_fine_for_coarse(tmp_path: Path) -> None:
    data = valid() | {"boxes": {"fine": FINE, "red": RED, "green": GREEN}}
    found = load_annotation(written(tmp_path, data))
    assert found.coarse == pytest.approx((70, 173, 330, 407))  # 1.3 times 200 x 180
    data = valid(red=[99.7, 250, 150, 300], coarse=FINE)
    assert load_annotation(written(tmp_path, data)).red[0] == 99.7


def test_load_annotation_refuses_what_is_not_json(tmp_path: Path) -> None:
    for content in ("", "no JSON", "{", "\x00", "[" * 100_000):
        assert "not JSON" in refusal(written(tmp_path, content))
    (tmp_path / "template.json").write_bytes(b"\xff\xfe\x00\x81")
    assert "not JSON" in refusal(tmp_path / "template.json")
    assert "cannot be read" in refusal(tmp_path / "nowhere.json")
    assert "cannot be read" in refusal(tmp_path)
    (tmp_path / "films" / "one.dcm").unlink()
    assert "one.dcm, does not exist" in refusal(written(tmp_path, valid()))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        *((data, "not of the format") for data in ([], None, "text", {}, {"format": ["a\nb"]})),
        ({"format": "kneematch-template/1"}, "'side'"),
        *((valid() | {"side": side}, "'side'") for side in ("Left", None, ["left"])),
        *((valid() | {"film": film}, "'film'") for film in (None, 3, ["one.dcm"])),
        *((valid() | {"boxes": boxes}, "'boxes'") for boxes in (None, [FINE, RED], "fine")),
        *((valid() | {"landmarks": points}, "landmarks") for points in ([1, 2], "text", None)),
        *(
            (valid() | {"landmarks": {"a": point}}, "'a' must be a list of 2 numbers")
            for point in (None, [1], [1, 2, 3], ["1", "2"], [True, 2], [float("nan"), 2])
        ),
        (valid() | {"landmarks": {"centre": [1, 2]}}, "rename it"),
        (valid() | {"landmarks": {"two\nlines": [1]}}, "must be a list"),
    ],
    ids=str,
)
def test_load_annotation_names_what_is_wrong(tmp_path: Path, data: Any, message: str) -> None:
    assert message in refusal(written(tmp_path, json.dumps(data)))


@pytest.mark.parametrize("edge", range(4))
def test_load_annotation_refuses_a_box_outside_the_one_around_it(tmp_path: Path, edge: int) -> None:
    outwards = -5 if edge < 2 else 5
    for name in ("red", "green"):
        box = list(valid()["boxes"][name])
        box[edge] = FINE[edge] + outwards
        assert f"{name} box must lie inside" in refusal(written(tmp_path, valid(**{name: box})))
    coarse = list(COARSE)
    coarse[edge] = FINE[edge] - outwards
    assert "inside the coarse box" in refusal(written(tmp_path, valid(coarse=coarse)))


def test_annotation_problems_name_every_faulty_box() -> None:
    boxes = (100, 200, 300, 380), (120, 180, 320, 400), (90, 250, 150, 300), (250, 250, 251, 300)
    drawn = Annotation(Path("film.dcm"), "left", *boxes, landmarks={"centre": (1.0, 2.0)})
    assert [box for box, _ in annotation_problems(drawn)] == ["green", "red", "coarse", "landmarks"]


def test_annotate_places_the_boxes_around_the_plateau_and_mirrors_those_of_a_left_knee() -> None:
    drawn = annotate(Path("a.png"), "right", (649, 592), (916, 592))
    assert drawn.fine == pytest.approx((605, 405, 965, 765), abs=1)
    assert drawn.coarse == pytest.approx((551, 351, 1019, 819), abs=1)
    assert drawn.red == pytest.approx((615, 535, 720, 640), abs=1)
    assert drawn.green == pytest.approx((850, 530, 955, 635), abs=1)
    assert drawn.landmarks == {"plateau_medial": (649, 592), "plateau_lateral": (916, 592)}
    left = annotate(Path("a.png"), "left", (649, 592), (916, 592))
    for name in BOXES:
        x0, y0, x1, y1 = getattr(drawn, name)
        assert getattr(left, name) == pytest.approx((1565 - x1, y0, 1565 - x0, y1), abs=0.11)
    assert left.landmarks == {"plateau_medial": (916, 592), "plateau_lateral": (649, 592)}
