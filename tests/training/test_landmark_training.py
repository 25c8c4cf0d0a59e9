"""Learning landmarks from films without labels."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from kneematch import Detector, train
from kneematch.cli.main import main
from kneematch.errors import SettingsError
from kneematch.films.annotation import save_annotation
from kneematch.training import landmark_training
from part_films import Place, landmark, part_annotation, part_film, save_film

PLACES: list[Place] = [
    (140.0 + 12 * k, 200.0 + 9 * k, 0.95 + 0.03 * k, 0.0, False) for k in range(6)
]


def write_films(folder: Path, count: int) -> Path:
    folder.mkdir()
    for k in range(count):
        save_film(folder / f"{k:02d}.png", part_film(PLACES[k % len(PLACES)], seed=10 + k))
    return folder


def test_train_learns_landmarks_that_detect_takes_as_its_model(tmp_path: Path) -> None:
    films = write_films(tmp_path / "films", 6)
    (films / "broken.png").write_bytes(b"no picture")
    template, model = tmp_path / "part.json", tmp_path / "part.safetensors"
    drawn = part_annotation(tmp_path, "one")
    save_annotation(drawn, template)
    arguments = ["train", str(films), "--template", str(template), "-o", str(model), "--quiet"]
    assert main(arguments) == 1  # since a film could not be used
    new: Place = (170.0, 230.0, 1.1, 3.0, False)
    before, after = (
        Detector.load(file, template=drawn, device="cpu").detect(part_film(new, seed=20))[0]
        for file in (None, model)
    )
    assert before.landmarks != after.landmarks
    for name, found in after.landmarks.items():
        assert math.dist(found, landmark(name, new)) < 1.5
    with pytest.raises(SettingsError, match="another template"):
        Detector.load(model, template=replace(drawn, landmarks={}), device="cpu")
    with pytest.raises(SettingsError, match="with `force`"):
        train([str(films)], template, model)


def test_train_landmarks_takes_some_of_many_films(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(landmark_training, "MOST_FILMS", 6)
    films = write_films(tmp_path / "films", 12)
    template = tmp_path / "part.json"
    save_annotation(part_annotation(tmp_path, "one"), template)
    for k in range(1, 12, 2):  # not read
        (films / f"{k:02d}.png").write_bytes(b"no picture")
    learnt = train([str(films)], template, tmp_path / "part.safetensors")
    assert (learnt.films, learnt.failures) == (6, ())


def test_train_refuses_what_landmarks_of_a_part_have_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_annotation(part_annotation(tmp_path, "one"), tmp_path / "part.json")
    drawn, template = str(tmp_path / "drawn.png"), str(tmp_path / "part.json")
    command = ["train", drawn, "--template", template, "-o"]
    assert main([*command, str(tmp_path / "m.safetensors"), "--epochs", "3"]) == 2
    assert "--epochs cannot be used with a template of" in capsys.readouterr().err
    assert main([*command, str(tmp_path / "m.txt")]) == 2
    assert "m.txt: " in capsys.readouterr().err
    assert not list(tmp_path.glob("m.*"))


def test_train_landmarks_needs_areas_beyond_doubt(tmp_path: Path) -> None:
    save_annotation(part_annotation(tmp_path, "one"), tmp_path / "part.json")
    film = save_film(tmp_path / "other.png", part_film(seed=30))
    with pytest.raises(SettingsError, match="5 are needed"):
        train([str(film)], tmp_path / "part.json", tmp_path / "model.safetensors")
