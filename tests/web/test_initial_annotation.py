"""The annotation that the page starts with."""

from pathlib import Path

import pytest

from kneematch.errors import SettingsError
from kneematch.io.read import read
from kneematch.web.drawing import SplitFilm, find_problems
from kneematch.web.initial_annotation import detected_annotation, initial_annotation


@pytest.fixture(scope="module")
def film(films: list[Path]) -> SplitFilm:
    return SplitFilm.from_film(films[0], read(films[0]))


def test_initial_annotation_without_a_model_is_in_the_middle_of_a_half(
    film: SplitFilm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(**options: object) -> None:
        raise SettingsError("no model")

    monkeypatch.setattr("kneematch.web.initial_annotation.Detector.load", none)
    drawn, source = initial_annotation(
        film, tmp_path / "none.json", lambda: detected_annotation(film)
    )
    assert source == "middle"
    assert find_problems(drawn, film) == []
