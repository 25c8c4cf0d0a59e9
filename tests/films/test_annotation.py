"""The annotation file: what is saved is loaded, and what is malformed is refused in one line."""

import json
from pathlib import Path
from typing import Any

import pytest

from kneematch.errors import TemplateError
from kneematch.films.annotation import (
    Annotation,
    annotate,
    annotation_problems,
    load_annotation,
    save_annotation,
)

FINE, COARSE = [100, 200, 300, 380], [80, 180, 320, 400]
RED, GREEN = [110, 250, 150, 300], [250, 250, 290, 300]


@pytest.fixture(autouse=True)
def film(tmp_path: Path) -> Path:
    """The film that was drawn on."""
    path = tmp_path / "films" / "one.dcm"
    path.parent.mkdir()
    path.touch()
    return path


def valid() -> dict[str, Any]:
    return {
        "format": "kneematch-template/1",
        "film": "films/one.dcm",
        "side": "left",
        "boxes": {"fine": FINE, "coarse": COARSE, "red": RED, "green": GREEN},
        "landmarks": {"medial margin": [120.5, 290.25]},
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
    assert len(message.splitlines()) == 1
    assert message.count("; ") >= 2  # what was found; what was expected; what to do
    return message


def test_load_annotation_reads_a_valid_file(tmp_path: Path) -> None:
    found = load_annotation(written(tmp_path, valid()))
    assert found == Annotation(
        tmp_path / "films/one.dcm",
        "left",
        tuple(FINE),
        tuple(COARSE),
        tuple(RED),
        tuple(GREEN),
        {"medial margin": (120.5, 290.25)},
    )


def test_load_annotation_names_the_film_that_is_not_there(tmp_path: Path, film: Path) -> None:
    film.unlink()
    assert f"its film {film} is not there; " in refusal(written(tmp_path, valid()))


def test_save_annotation_reads_back(tmp_path: Path) -> None:
    (tmp_path / "templates").mkdir()
    path = tmp_path / "templates" / "template.json"
    saved = Annotation(
        tmp_path / "films" / "one.dcm",
        "right",
        (100.1, 200.2, 300.3, 380.4),
        (80.0, 180.0, 320.0, 400.0),
        (110.0, 250.0, 150.0, 300.0),
        (250.0, 250.0, 290.0, 300.0),
        {"Kniekehle – süd": (1.25, -7.0)},
    )
    save_annotation(saved, path)
    loaded = load_annotation(path)
    assert loaded.film.resolve() == saved.film.resolve()
    for name in ("side", "fine", "coarse", "red", "green", "landmarks"):
        assert getattr(loaded, name) == getattr(saved, name)


def test_save_annotation_stores_a_relative_path_of_the_film(tmp_path: Path) -> None:
    path = written(tmp_path, valid())
    save_annotation(load_annotation(path), path)
    assert json.loads(path.read_text(encoding="utf-8")) == valid()


def test_load_annotation_enlarges_the_fine_box_if_no_coarse_one_is_drawn(
    tmp_path: Path,
) -> None:
    data = valid()
    del data["boxes"]["coarse"]
    found = load_annotation(written(tmp_path, data))
    assert found.coarse == pytest.approx((70, 173, 330, 407))  # 1.3 times 200 x 180


@pytest.mark.parametrize("landmarks", [{}, None])
def test_load_annotation_needs_no_landmarks(
    tmp_path: Path, landmarks: dict[str, Any] | None
) -> None:
    data = valid()
    del data["landmarks"]
    if landmarks is not None:
        data["landmarks"] = landmarks
    assert load_annotation(written(tmp_path, data)).landmarks == {}


def test_load_annotation_accepts_boxes_on_each_others_edge(tmp_path: Path) -> None:
    data = valid()
    data["boxes"] |= {"red": [99.7, 250, 150, 300], "coarse": FINE}
    assert load_annotation(written(tmp_path, data)).red[0] == 99.7


@pytest.mark.parametrize(
    "content",
    ["", "no JSON", "{", '{"format": }', "\x00", "[" * 100_000],
    ids=["empty", "text", "cut", "hole", "zero", "brackets"],
)
def test_load_annotation_refuses_what_is_not_json(tmp_path: Path, content: str) -> None:
    assert "not JSON" in refusal(written(tmp_path, content))


def test_load_annotation_refuses_bytes_that_are_not_text(tmp_path: Path) -> None:
    path = tmp_path / "template.json"
    path.write_bytes(b"\xff\xfe\x00\x81")
    assert "not JSON" in refusal(path)


def test_load_annotation_refuses_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    assert "cannot be read" in refusal(tmp_path / "nowhere.json")
    assert "cannot be read" in refusal(tmp_path)


@pytest.mark.parametrize(
    "data", [[], 3, None, "text", {}, {"format": "kneematch-template/2"}, {"format": ["a\nb"]}]
)
def test_load_annotation_refuses_another_format(tmp_path: Path, data: Any) -> None:
    assert "format is" in refusal(written(tmp_path, json.dumps(data)))


@pytest.mark.parametrize("key", ["film", "side", "boxes"])
def test_load_annotation_names_a_missing_key(tmp_path: Path, key: str) -> None:
    data = valid()
    del data[key]
    assert key in refusal(written(tmp_path, data))


@pytest.mark.parametrize("name", ["fine", "red", "green"])
def test_load_annotation_names_a_missing_box(tmp_path: Path, name: str) -> None:
    data = valid()
    del data["boxes"][name]
    assert f"no {name} box" in refusal(written(tmp_path, data))


@pytest.mark.parametrize("side", ["Left", "L", "", None, 0, ["left"], "both"])
def test_load_annotation_refuses_another_side_than_left_or_right(tmp_path: Path, side: Any) -> None:
    assert "side is" in refusal(written(tmp_path, valid() | {"side": side}))


@pytest.mark.parametrize("film", [None, 3, ["one.dcm"]])
def test_load_annotation_refuses_a_film_that_is_not_a_path(tmp_path: Path, film: Any) -> None:
    assert "film" in refusal(written(tmp_path, valid() | {"film": film}))


@pytest.mark.parametrize("boxes", [None, [], [FINE, RED, GREEN], "fine"])
def test_load_annotation_refuses_boxes_without_names(tmp_path: Path, boxes: Any) -> None:
    assert "no boxes" in refusal(written(tmp_path, valid() | {"boxes": boxes}))


@pytest.mark.parametrize("name", ["fine", "coarse", "red", "green"])
@pytest.mark.parametrize(
    "box",
    [
        None,
        7,
        "1234",
        {"x0": 1},
        [],
        [1, 2, 3],
        [1, 2, 3, 4, 5],
        [110, 250, "150", 300],
        [110, 250, None, 300],
        [110, 250, [150], 300],
        [True, 250, 150, 300],
        [110, 250, 150, float("nan")],
        [110, float("-inf"), 150, 300],
        [110, 250, float("inf"), 300],
        [110, 250, 10**400, 300],
    ],
    ids=str,
)
def test_load_annotation_names_a_box_that_is_not_four_finite_numbers(
    tmp_path: Path, name: str, box: Any
) -> None:
    data = valid()
    data["boxes"][name] = box
    message = refusal(written(tmp_path, data))
    assert name in message
    assert "4 numbers" in message


@pytest.mark.parametrize("name", ["fine", "coarse", "red", "green"])
@pytest.mark.parametrize("order", [(2, 1, 0, 3), (0, 3, 2, 1), (2, 3, 0, 1), (0, 1, 0, 3)])
def test_load_annotation_names_an_inverted_or_empty_box(
    tmp_path: Path, name: str, order: tuple[int, ...]
) -> None:
    data = valid()
    data["boxes"][name] = [data["boxes"][name][k] for k in order]
    assert f"{name} box" in refusal(written(tmp_path, data))


@pytest.mark.parametrize("name", ["red", "green"])
@pytest.mark.parametrize("edge", range(4))
def test_load_annotation_refuses_a_window_outside_the_fine_box(
    tmp_path: Path, name: str, edge: int
) -> None:
    data = valid()
    box = list(data["boxes"][name])
    box[edge] = FINE[edge] + (-5 if edge < 2 else 5)
    data["boxes"][name] = box
    assert f"{name} box" in refusal(written(tmp_path, data))


@pytest.mark.parametrize("edge", range(4))
def test_load_annotation_refuses_a_fine_box_outside_the_coarse_one(
    tmp_path: Path, edge: int
) -> None:
    data = valid()
    box = list(COARSE)
    box[edge] = FINE[edge] + (5 if edge < 2 else -5)
    data["boxes"]["coarse"] = box
    assert "leaves the coarse box" in refusal(written(tmp_path, data))


@pytest.mark.parametrize(
    "landmarks",
    [
        [1, 2],
        "text",
        5,
        None,
        {"a": None},
        {"a": [1]},
        {"a": [1, 2, 3]},
        {"a": ["1", "2"]},
        {"a": [True, 2]},
        {"a": [float("nan"), 2]},
        {"two\nlines": [1]},
    ],
    ids=str,
)
def test_load_annotation_refuses_landmarks_that_are_not_named_points(
    tmp_path: Path, landmarks: Any
) -> None:
    refusal(written(tmp_path, valid() | {"landmarks": landmarks}))


def test_save_annotation_leaves_the_old_file_on_failure(tmp_path: Path) -> None:
    path = written(tmp_path, valid())
    before = path.read_bytes()
    broken = Annotation(tmp_path / "x", "left", *[tuple(FINE)] * 4, {"a": (object(), 1)})
    with pytest.raises(TypeError):
        save_annotation(broken, path)
    assert path.read_bytes() == before
    assert sorted(tmp_path.iterdir()) == [tmp_path / "films", path]


def test_annotation_problems_name_every_faulty_box() -> None:
    drawn = Annotation(
        Path("film.dcm"),
        "left",
        fine=(100.0, 200.0, 300.0, 380.0),
        coarse=(120.0, 180.0, 320.0, 400.0),
        red=(90.0, 250.0, 150.0, 300.0),
        green=(250.0, 250.0, 251.0, 300.0),
        landmarks={"centre": (1.0, 2.0)},
    )
    assert [box for box, _ in annotation_problems(drawn)] == ["green", "red", "coarse", "landmarks"]


def test_load_annotation_refuses_a_landmark_called_centre(tmp_path: Path) -> None:
    data = valid()
    data["landmarks"] = {"centre": [1, 2]}
    assert "rename it" in refusal(written(tmp_path, data))


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
