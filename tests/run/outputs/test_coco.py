"""COCO: ids, boxes around outlines, areas, keypoints."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detections import Knees, make_record
from kneematch.run.outputs.coco import open_coco

SIZE = (200, 300)


def written(tmp_path: Path, films: Any, landmarks: Sequence[str] = ()) -> dict[str, Any]:
    with open_coco(tmp_path / "coco.json", {"": landmarks}) as add:
        for name, size, knees in films:
            add(make_record(1, *knees, path=name, size=size))
    loaded: dict[str, Any] = json.loads((tmp_path / "coco.json").read_text())
    return loaded


def test_open_coco_ids_are_unique_and_refer_to_images_and_categories(
    tmp_path: Path, knees: Knees
) -> None:
    names = ['a"b\n.dcm', "骨.png", "\udcff.dcm"]
    sizes, found = (SIZE, (50, 60), SIZE), (knees, (), knees[:1])
    coco = written(tmp_path, zip(names, sizes, found, strict=True))
    assert [image["file_name"] for image in coco["images"]] == names
    assert (coco["images"][1]["height"], coco["images"][1]["width"]) == (50, 60)
    images = [image["id"] for image in coco["images"]]
    ids = [item["id"] for item in coco["annotations"]]
    assert len(set(images)) == 3
    assert len(set(ids)) == len(ids) == 3
    assert [item["image_id"] for item in coco["annotations"]] == [images[0], images[0], images[2]]
    (category,) = coco["categories"]
    assert category["name"] == "knee_joint"
    assert {item["category_id"] for item in coco["annotations"]} == {category["id"]}


def test_open_coco_box_encloses_the_outline_and_area_is_that_of_the_rectangle(
    tmp_path: Path, knees: Knees
) -> None:
    items = written(tmp_path, [("a.dcm", SIZE, knees)])["annotations"]
    for item, found in zip(items, knees, strict=True):
        (polygon,) = item["segmentation"]
        points = np.array(polygon).reshape(-1, 2)
        np.testing.assert_allclose(points, found.corners, atol=6e-4)
        x, y, width, height = item["bbox"]
        assert points.min(0) == pytest.approx([x, y])
        assert points.max(0) == pytest.approx([x + width, y + height])
        assert item["area"] == pytest.approx(80 * 60, rel=1e-4)
        assert item["area"] < width * height
        assert item["iscrowd"] == 0


def test_open_coco_attributes_and_score_are_those_of_the_knee(tmp_path: Path, knees: Knees) -> None:
    marked = replace(knees[0], needs_review=True, reasons=("cut", "metal"))
    placed = replace(knees[1], loss=math.nan, decision="corrected", laterality_source="user")
    left, right = written(tmp_path, [("a.dcm", SIZE, (marked, placed))])["annotations"]
    assert (left["score"], "score" in right) == (0.875, False)  # that of a placed knee is unknown
    names = "image_side", "laterality", "laterality_source", "reason", "decision"
    assert [left["attributes"][name] for name in names] == ["left", "R", "", "cut; metal", ""]
    assert [right["attributes"][name] for name in names] == ["right", "L", "user", "", "corrected"]


def test_open_coco_landmarks_are_keypoints(tmp_path: Path, knees: Knees) -> None:
    known = replace(knees[0], landmarks={"rim": (10.5, 20.0), "tip": (301.0, 20.0)})
    coco = written(tmp_path, [("a.dcm", SIZE, (known, knees[1]))], ["rim", "tip"])
    assert coco["categories"][0]["keypoints"] == ["rim", "tip"]
    first, second = coco["annotations"]
    assert first["keypoints"] == [10.5, 20.0, 2, 301.0, 20.0, 1]  # the second is off the film
    assert (first["num_keypoints"], second["num_keypoints"]) == (2, 0)
    assert second["keypoints"] == [0] * 6
