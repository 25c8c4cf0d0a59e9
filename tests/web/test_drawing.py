"""What is drawn: its side, its coarse box, its problems and its pictures."""

import base64
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kneematch.errors import SettingsError
from kneematch.io.read import read
from kneematch.synthetic.annotation import annotate
from kneematch.synthetic.phantom import phantom
from kneematch.web.drawing import (
    Drawing,
    Subject,
    annotation_of,
    coarse_around,
    problems_of,
    template_pictures,
)
from kneematch.web.initial_annotation import first_guess, from_model

KNEES = phantom(0, size=(512, 512)).knees


@pytest.fixture(scope="module")
def subject(films: list[Path]) -> Subject:
    return Subject.of(films[0], read(films[0]))


def drawn(side: int = 1, **boxes: tuple[float, float, float, float] | None) -> Drawing:
    knee = KNEES[side]
    wanted = annotate(Path("film"), knee.side, knee.plateau_left, knee.plateau_right)
    return replace(Drawing(wanted.fine, wanted.red, wanted.green), **boxes)


def boxes_with_problems(subject: Subject, drawing: Drawing) -> list[str]:
    return [found["box"] for found in problems_of(annotation_of(drawing, subject), subject)]


@pytest.mark.parametrize(("number", "side"), [(0, "left"), (1, "right")])
def test_the_side_is_where_the_box_lies(subject: Subject, number: int, side: str) -> None:
    annotation = annotation_of(drawn(number), subject)
    assert annotation.side == side
    assert problems_of(annotation, subject) == []


def test_every_problem_names_its_box(subject: Subject) -> None:
    outside = (5.0, 5.0, 25.0, 25.0)
    assert boxes_with_problems(subject, drawn(red=outside)) == ["red"]
    assert boxes_with_problems(subject, drawn(red=outside, green=outside)) == ["red", "green"]
    assert "coarse" in boxes_with_problems(subject, drawn(coarse=outside))
    assert "fine" in boxes_with_problems(subject, drawn(fine=(9.0, 9.0, 9.0, 9.0)))
    tiny = drawn().fine
    small = (tiny[0] + 9, tiny[1] + 9, tiny[0] + 11.1, tiny[1] + 11.1)
    assert boxes_with_problems(subject, drawn(green=small)) == ["green"]
    assert boxes_with_problems(subject, drawn(fine=(-80.0, -80.0, 700.0, 700.0)))[0] == "fine"


def test_a_landmark_must_not_be_called_centre(subject: Subject) -> None:
    drawing = replace(drawn(), landmarks={"centre": (1.0, 2.0)})
    assert boxes_with_problems(subject, drawing) == ["landmarks"]


@pytest.mark.parametrize(
    "fine",
    [(300, 200, 400, 300), (256, 0, 356, 100), (412, 412, 512, 512), (250, 10, 500, 260)],
)
def test_the_usual_coarse_box_holds_the_fine_one_and_stays_in_the_half(
    subject: Subject, fine: tuple[float, float, float, float]
) -> None:
    frame = subject.frame("right")
    coarse = coarse_around(fine, frame)
    slack = 0.1
    assert all(coarse[k] <= fine[k] + slack and coarse[k] >= frame[k] - slack for k in (0, 1))
    assert all(coarse[k] >= fine[k] - slack and coarse[k] <= frame[k] + slack for k in (2, 3))
    aspects = [(box[3] - box[1]) / (box[2] - box[0]) for box in (fine, coarse)]
    assert aspects[0] == pytest.approx(aspects[1], rel=0.01)


def pixels(address: str) -> np.ndarray:
    data = base64.b64decode(address.removeprefix("data:image/png;base64,"))
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))


def test_the_pictures_of_the_template_are_each_others_mirror_images(subject: Subject) -> None:
    for side in (0, 1):
        told = template_pictures(annotation_of(drawn(side), subject), subject)
        left, right = pixels(told["left"]), pixels(told["right"])
        assert (left == right[:, ::-1]).all()
        assert right.shape[1::-1] == tuple(2 * length for length in told["size"])


def test_without_a_model_the_guess_is_in_the_middle_of_a_half(
    subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(**options: object) -> None:
        raise SettingsError("no model")

    monkeypatch.setattr("kneematch.web.initial_annotation.Detector.load", none)
    guess, source = first_guess(subject, tmp_path / "none.json", lambda: from_model(subject))
    assert source == "middle"
    assert problems_of(guess, subject) == []
