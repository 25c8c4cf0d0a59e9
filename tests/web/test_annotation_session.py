"""Drawings: the first one, their side, their coarse box, their problems and their pictures."""

import base64
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from kneematch.errors import SettingsError, TemplateError
from kneematch.films.annotation import annotate
from kneematch.films.read import read
from kneematch.knee.detector import Detector
from kneematch.web.annotation_session import (
    Drawing,
    SplitFilm,
    box_warnings,
    default_coarse,
    detected_annotation,
    find_problems,
    initial_annotation,
    landmark_warnings,
    template_pictures,
    to_annotation,
)
from kneephantoms import phantom
from kneephantoms.files import write_dicom
from phantom_films import radiograph

KNEES = phantom(0, size=(512, 512)).knees


@pytest.fixture(scope="module")
def film(films: list[Path]) -> SplitFilm:
    return SplitFilm.from_film(films[0], read(films[0]))


def drawn(side: int = 1, **boxes: tuple[float, float, float, float] | None) -> Drawing:
    knee = KNEES[side]
    wanted = annotate(Path("film"), knee.side, knee.plateau_left, knee.plateau_right)
    return replace(Drawing(wanted.fine, wanted.red, wanted.green), **boxes)


def boxes_with_problems(film: SplitFilm, drawing: Drawing) -> list[str]:
    return [found["box"] for found in find_problems(to_annotation(drawing, film), film)]


@pytest.mark.parametrize(("number", "side"), [(0, "left"), (1, "right")])
def test_to_annotation_takes_the_side_from_the_fine_box(
    film: SplitFilm, number: int, side: str
) -> None:
    annotation = to_annotation(drawn(number), film)
    assert annotation.side == side
    assert find_problems(annotation, film) == []


def test_to_annotation_takes_the_side_of_a_detected_knee(tmp_path: Path) -> None:
    made = phantom(3, framing="single")  # a left one in the picture's right half
    film = SplitFilm.from_film(tmp_path / "single.dcm", radiograph(made))
    (knee,) = made.knees
    fine, _, red, green = (
        getattr(annotate(film.path, knee.side, knee.plateau_left, knee.plateau_right), name)
        for name in ("fine", "coarse", "red", "green")
    )
    assert (knee.side, fine[0] + fine[2] > 2 * film.axis_px) == ("left", True)
    assert to_annotation(Drawing(fine, red, green), film).side == "left"
    beside = tuple(value + 300 for value in fine)
    assert to_annotation(Drawing(beside, red, green), film).side == "right"


def test_find_problems_names_the_box_of_every_problem(film: SplitFilm) -> None:
    outside = (5.0, 5.0, 25.0, 25.0)
    assert boxes_with_problems(film, drawn(red=outside)) == ["red"]
    assert boxes_with_problems(film, drawn(red=outside, green=outside)) == ["red", "green"]
    assert "coarse" in boxes_with_problems(film, drawn(coarse=outside))
    assert "fine" in boxes_with_problems(film, drawn(fine=(9.0, 9.0, 9.0, 9.0)))
    tiny = drawn().fine
    small = (tiny[0] + 9, tiny[1] + 9, tiny[0] + 11.1, tiny[1] + 11.1)
    assert boxes_with_problems(film, drawn(green=small)) == ["green"]
    assert boxes_with_problems(film, drawn(fine=(-80.0, -80.0, 700.0, 700.0)))[0] == "fine"
    drawing = replace(drawn(), landmarks={"centre": (1.0, 2.0)})
    assert boxes_with_problems(film, drawing) == ["landmarks"]


def test_box_warnings_are_about_boxes_without_a_joint(film: SplitFilm) -> None:
    annotation = to_annotation(drawn(0), film)
    assert box_warnings(annotation, film) == []
    ramp = torch.linspace(0.1, 0.11, film.halves.pixels[0].numel())
    even = replace(film.halves, pixels=ramp.reshape(1, 800, 500).repeat(2, 1, 1))
    (warning,) = box_warnings(annotation, replace(film, halves=even))
    assert warning.startswith("The fine box is mostly a single grey")
    x0, y0, x1, y1 = annotation.fine
    (warning,) = box_warnings(replace(annotation, fine=(x0, y0, x1, (y0 + y1) / 2)), film)
    assert warning.startswith("The fine box does not hold the middle of a tibial plateau")


def test_landmark_warnings_name_landmarks_that_swap_sides(film: SplitFilm) -> None:
    names = ("plateau_left", "RIGHT_margin", "plateau_medial", "tip")
    drawing = replace(drawn(), landmarks=dict.fromkeys(names, (1.0, 2.0)))
    warnings = landmark_warnings(to_annotation(drawing, film))
    assert [text.split()[1] for text in warnings] == ["plateau_left", "RIGHT_margin"]


@pytest.mark.parametrize(
    "fine", [(300, 200, 400, 300), (256, 0, 356, 100), (412, 412, 512, 512), (250, 10, 500, 260)]
)
def test_default_coarse_contains_the_fine_box_and_stays_in_the_half(
    film: SplitFilm, fine: tuple[float, float, float, float]
) -> None:
    frame = film.frame("right")
    coarse = default_coarse(fine, frame)
    slack = 0.1
    assert all(coarse[k] <= fine[k] + slack and coarse[k] >= frame[k] - slack for k in (0, 1))
    assert all(coarse[k] >= fine[k] - slack and coarse[k] <= frame[k] + slack for k in (2, 3))
    aspects = [(box[3] - box[1]) / (box[2] - box[0]) for box in (fine, coarse)]
    assert aspects[0] == pytest.approx(aspects[1], rel=0.01)


def test_initial_annotation_without_a_model_is_in_the_middle_of_a_half(
    film: SplitFilm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(**options: object) -> None:
        raise SettingsError("no model")

    detected_annotation.cache_clear()
    monkeypatch.setattr("kneematch.web.annotation_session.Detector.load", none)
    drawn, source = initial_annotation(film, tmp_path / "none.json")
    assert source == "middle"
    assert find_problems(drawn, film) == []


def test_initial_annotation_is_around_the_knee_of_a_film_with_one(tmp_path: Path) -> None:
    made = phantom(1, framing="single")  # its knee lies across the line between the halves
    path = tmp_path / "single.dcm"
    drawn, source = initial_annotation(SplitFilm.from_film(path, radiograph(made)), path)
    (knee,) = made.knees
    x0, y0, x1, y1 = drawn.fine
    assert source == "model"
    assert x0 < knee.plateau_medial[0] < x1
    assert x0 < knee.plateau_lateral[0] < x1
    assert y0 < knee.plateau_medial[1] < y1


def test_annotation_of_a_knee_across_both_halves_is_found_by_detect(tmp_path: Path) -> None:
    made = phantom(1, framing="single")
    path = tmp_path / "single.dcm"
    write_dicom(path, made.pixels, mm_per_px=None, laterality=None)
    film = SplitFilm.from_film(path, read(path))
    drawn, _ = initial_annotation(film, tmp_path / "none.json")
    assert find_problems(drawn, film) == []
    (warning,) = box_warnings(drawn, film)
    assert "need boxes in one half" in warning
    centres = [(box[0] + box[2]) / 2 for box in (drawn.fine, drawn.coarse)]
    assert centres[0] == pytest.approx(centres[1], abs=0.2)
    with pytest.raises(TemplateError, match="leaves the left half"):
        Detector.load(template=drawn, method="search")
    detector = Detector.load(template=drawn)
    (found,) = detector.detect(path)
    assert detector.method == "locator"
    assert found.side == made.knees[0].side
    x0, y0, x1, y1 = drawn.fine
    assert found.centre == pytest.approx(((x0 + x1) / 2, (y0 + y1) / 2), abs=0.02 * (x1 - x0))
    assert found.width_px == pytest.approx(x1 - x0, rel=0.02)


def pixels(address: str) -> np.ndarray:
    data = base64.b64decode(address.removeprefix("data:image/png;base64,"))
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))


def test_template_pictures_are_mirror_images_of_each_other(film: SplitFilm) -> None:
    for side in (0, 1):
        pictures = template_pictures(to_annotation(drawn(side), film), film)
        left, right = pixels(pictures["left"]), pixels(pictures["right"])
        assert (left == right[:, ::-1]).all()
        x0, y0, x1, y1 = to_annotation(drawn(side), film).fine
        assert pictures["film_size"] == [round(x1 - x0), round(y1 - y0)]
