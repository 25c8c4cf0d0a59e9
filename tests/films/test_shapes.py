"""Boxes and points of other programs: each format, and the way there and back."""

import json
from pathlib import Path
from typing import Any

import pytest

from kneematch.errors import TemplateError
from kneematch.films.shapes import Shape, read_shapes, write_markups, write_points

POINTS = {"plateau_a": (310.25, 402.5), "plateau_b": (520.125, 411.0625)}
BOX = Shape("fine", (10.0, 20.0, 110.0, 140.0))


def saved(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def points(shapes: list[Shape]) -> dict[str, Any]:
    return {shape.name: pytest.approx(shape.values, abs=1e-3) for shape in shapes}


def coco(*images: str) -> dict[str, Any]:
    """A COCO file as CVAT exports it: a box, and a skeleton with a point that was not drawn."""
    skeleton = {"id": 2, "name": "knee", "keypoints": ["a", "hidden", "b"]}
    drawn = {"image_id": 1, "iscrowd": 0}
    return {
        "images": [{"id": k, "file_name": name} for k, name in enumerate(images, start=1)],
        "categories": [{"id": 1, "name": "fine"}, skeleton],
        "annotations": [
            {"id": 1, "category_id": 1, "bbox": [10, 20, 100, 120], **drawn},
            {
                "id": 2,
                "category_id": 2,
                "bbox": [0, 0, 9, 9],
                "keypoints": [3, 4, 2, 0, 0, 0, 5, 6, 1],
                **drawn,
            },
            {"id": 3, "category_id": 1, "image_id": 2, "bbox": [0, 0, 1, 1]},
        ],
    }


@pytest.mark.parametrize("mm_per_px", [None, 0.143])
def test_write_markups_and_read_shapes_are_inverse(tmp_path: Path, mm_per_px: float | None) -> None:
    path = tmp_path / "knee.mrk.json"
    write_markups(path, POINTS, mm_per_px)
    assert points(read_shapes(path, "film.dcm", mm_per_px=mm_per_px)) == POINTS
    (first, _) = json.loads(path.read_text())["markups"][0]["controlPoints"]
    # The centre of the first pixel, (0.5, 0.5) in film pixels, is Slicer's origin.
    expected = [309.75 * (mm_per_px or 1), 402 * (mm_per_px or 1), 0]
    assert first["position"] == pytest.approx(expected, abs=1e-4)


def test_write_points_and_read_shapes_are_inverse(tmp_path: Path) -> None:
    path = tmp_path / "knee.pts"
    write_points(path, POINTS)
    assert points(read_shapes(path, "film.dcm", point_names=list(POINTS))) == POINTS
    unnamed = read_shapes(path, "film.dcm")
    assert [shape.name for shape in unnamed] == ["point_1", "point_2"]
    with pytest.raises(TemplateError, match="2 points, but 3 `names`"):
        read_shapes(path, "film.dcm", point_names=("a", "b", "c"))


def test_read_shapes_chooses_the_image_of_a_coco_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = saved(tmp_path / "coco.json", coco("folder/film.png", "other.png"))
    found = read_shapes(path, "film.dcm")  # which was converted for the other program
    assert found[0] == BOX
    assert [(shape.name, shape.values) for shape in found[2:]] == [("a", (3, 4)), ("b", (5, 6))]
    with pytest.raises(TemplateError, match=r"It has 2 images; .*third\.dcm"):
        read_shapes(path, "third.dcm")
    one = saved(tmp_path / "one.json", coco("film.png"))
    assert read_shapes(one, "film.dcm")
    assert caplog.text == ""
    assert read_shapes(one, "other.dcm")
    assert "names the film film.png, and other.dcm is used. Check" in caplog.text


def test_read_shapes_understands_boxes_of_slicer_in_both_systems(tmp_path: Path) -> None:
    roi = {"type": "ROI", "size": [20, 24, 10], "controlPoints": [{"label": "fine"}]}
    systems = {"LPS": [11.9, 15.9, 0], "RAS": [-11.9, -15.9, 0]}
    for system, centre in systems.items():
        content = {"markups": [roi | {"coordinateSystem": system, "center": centre}]}
        path = saved(tmp_path / "roi.mrk.json", content)
        (shape,) = read_shapes(path, "film.dcm", mm_per_px=0.2)
        assert shape.is_box
        assert shape.values == pytest.approx((10, 20, 110, 140))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", "not JSON"),
        ("a.json", "[]"),
        ("a.json", "{}"),
        ("a.json", {"something": 1}),
        ("a.json", {"annotations": []}),
        ("a.json", coco("film.png") | {"categories": []}),
        ("a.mrk.json", {"markups": [{"type": "Fiducial", "coordinateSystem": "IJK"}]}),
        ("a.pts", "1 2"),
        ("a.pts", "{\n1 2 3\n}"),
        ("a.pts", "{\n1 nan\n}"),
        ("a.json", "[" * 100_000),
        ("a.json", json.dumps(coco("film.png")).replace("120]", "9" * 401 + "]")),
    ],
)
def test_read_shapes_refuses_other_files_in_one_line(
    tmp_path: Path, name: str, content: Any
) -> None:
    path = saved(tmp_path / name, content)
    with pytest.raises(TemplateError, match="cannot be read"):
        read_shapes(tmp_path / "gone.json", "film.png")
    with pytest.raises(TemplateError) as caught:
        read_shapes(path, "film.png")
    assert str(caught.value).startswith(f"{path}: The file is not valid COCO, .mrk.json")
    assert "\n" not in str(caught.value)
