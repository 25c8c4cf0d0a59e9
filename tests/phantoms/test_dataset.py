"""Folders of phantoms: films, ground truth, template, and files that were there before."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pydicom
import pytest

from kneematch.films.annotation import load_annotation
from kneematch.films.read import read
from kneematch.paper.template import cut_template
from kneephantoms import phantom
from kneephantoms.config import SynthConfig
from kneephantoms.dataset import WrittenFilm, choose_template, synthesize

SIZE = (80, 96)


def truth(folder: Path) -> list[dict[str, str]]:
    with (folder / "truth.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize(
    ("format", "suffix", "levels"), [("dicom", "dcm", 4095), ("png", "png", 65535)]
)
def test_synthesize_writes_the_phantoms_of_the_seeds(
    tmp_path: Path, format: str, suffix: str, levels: int
) -> None:
    result = synthesize(tmp_path, SynthConfig(2, format, SIZE, seed=7))
    assert result.template is not None
    assert sorted(content(tmp_path)) == [
        f"phantom-00000.{suffix}",
        f"phantom-00001.{suffix}",
        result.template.name,
        result.truth.name,
    ]
    film = read(tmp_path / f"phantom-00001.{suffix}")
    expected = phantom(8, size=SIZE)
    assert np.abs(film.pixels - expected.pixels).max() <= 0.51 / levels
    assert film.mm_per_px == (pytest.approx(expected.mm_per_px) if format == "dicom" else None)


def test_synthesize_writes_one_row_of_truth_per_knee(tmp_path: Path) -> None:
    synthesize(tmp_path, SynthConfig(2, "png", SIZE, seed=3))
    rows = truth(tmp_path)
    knees = [knee for seed in (3, 4) for knee in phantom(seed, size=SIZE).knees]
    assert len(rows) == len(knees) == 4
    for row, knee in zip(rows, knees, strict=True):
        assert (row["side"], row["laterality"]) == (knee.side, knee.laterality)
        assert int(row["grade"]) == knee.grade
        for name in ("plateau_medial", "plateau_lateral", "centre"):
            point = float(row[f"{name}_x_px"]), float(row[f"{name}_y_px"])
            assert point == pytest.approx(getattr(knee, name), abs=1e-4)
        assert float(row["rotation_deg"]) == pytest.approx(knee.rotation_deg, abs=1e-4)
        assert row["negative"] in "01"
    assert [row["film"] for row in rows] == ["phantom-00000.png"] * 2 + ["phantom-00001.png"] * 2


def test_synthesize_does_not_depend_on_the_workers(tmp_path: Path) -> None:
    config = SynthConfig(3, "dicom", SIZE, workers=0)
    synthesize(tmp_path / "one", config)
    synthesize(tmp_path / "two", replace(config, workers=2))
    assert content(tmp_path / "one") == content(tmp_path / "two")


def test_synthesize_with_force_replaces_earlier_phantoms_and_nothing_else(tmp_path: Path) -> None:
    synthesize(tmp_path, SynthConfig(3, "dicom", SIZE))
    for name in ("notes.txt", "phantom-00001.dcm.txt", "my-phantom-00001.dcm"):
        (tmp_path / name).write_text("mine")
    synthesize(tmp_path, SynthConfig(1, "png", SIZE, force=True))
    assert sorted(content(tmp_path)) == [
        "my-phantom-00001.dcm",
        "notes.txt",
        "phantom-00000.png",
        "phantom-00001.dcm.txt",
        "template.json",
        "truth.csv",
    ]
    assert {row["film"] for row in truth(tmp_path)} == {"phantom-00000.png"}
    assert load_annotation(tmp_path / "template.json").film.name == "phantom-00000.png"


@pytest.mark.parametrize("workers", [0, 2])
def test_synthesize_raises_the_error_of_a_film_that_cannot_be_written(
    tmp_path: Path, workers: int
) -> None:
    for number in range(4):
        (tmp_path / f"phantom-0000{number}.png").mkdir()
    (tmp_path / "phantom-00000.png").rename(tmp_path / "mine")
    with pytest.raises(OSError, match="phantom-0000"):
        synthesize(tmp_path, SynthConfig(4, "png", SIZE, force=True, workers=workers))
    assert not (tmp_path / "truth.csv").exists()


def test_synthesize_writes_no_rows_for_films_without_a_frontal_knee(tmp_path: Path) -> None:
    result = synthesize(tmp_path, SynthConfig(2, "png", SIZE, framing="other"))
    assert truth(tmp_path) == []
    assert result.template is None
    assert "plateau_medial_x_px" in (tmp_path / "truth.csv").read_text(encoding="utf-8")


def test_synthesize_turns_films(tmp_path: Path) -> None:
    synthesize(tmp_path, SynthConfig(1, "png", SIZE, turn_deg=90.0))
    assert read(tmp_path / "phantom-00000.png").size == SIZE[::-1]
    assert all(abs(float(row["rotation_deg"]) - 90) < 15 for row in truth(tmp_path))


@pytest.mark.parametrize(
    ("turn_deg", "mirrored", "orientation"),
    [(0, False, "LF"), (0, True, "RF"), (90, False, "HL"), (-90, True, "FL"), (183, False, "RH")],
)
def test_synthesize_writes_the_orientation_of_the_picture(
    turn_deg: float, mirrored: bool, orientation: str, tmp_path: Path
) -> None:
    synthesize(tmp_path, SynthConfig(1, size=SIZE, turn_deg=turn_deg, mirrored=mirrored))
    path = tmp_path / "phantom-00000.dcm"
    assert "".join(pydicom.dcmread(path).PatientOrientation) == orientation
    assert read(path).seen_from_front == (not mirrored)


def test_synthesize_refuses_a_folder_that_is_not_empty(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"not empty \(notes\.txt\)"):
        synthesize(tmp_path, SynthConfig(1, "png", SIZE))
    assert content(tmp_path) == {"notes.txt": b"mine"}


def test_synthesize_leaves_no_truth_when_interrupted(tmp_path: Path) -> None:
    def interrupt(name: str) -> None:
        assert name == "phantom-00000.png"
        raise KeyboardInterrupt

    synthesize(tmp_path, SynthConfig(1, "png", SIZE))
    with pytest.raises(KeyboardInterrupt):
        synthesize(tmp_path, SynthConfig(2, "png", SIZE, force=True), advance=interrupt)
    assert sorted(content(tmp_path)) == ["phantom-00000.png"]


@pytest.mark.parametrize("framing", ["bilateral", "single"])
def test_synthesize_writes_a_template_that_kneematch_can_cut(tmp_path: Path, framing: str) -> None:
    result = synthesize(tmp_path, SynthConfig(4, "png", (320, 400), seed=30, framing=framing))
    assert result.template is not None
    drawn = load_annotation(result.template)
    for box in ("fine", "coarse"):
        template, _ = cut_template(read(drawn.film), drawn, box)
        assert set(template.landmarks) == {"plateau_medial", "plateau_lateral"}
    place = drawn.film.name, drawn.side
    (row,) = (row for row in truth(tmp_path) if (row["film"], row["side"]) == place)
    medial = float(row["plateau_medial_x_px"]), float(row["plateau_medial_y_px"])
    assert drawn.landmarks["plateau_medial"] == medial


def film_with(*changes: dict[str, str]) -> WrittenFilm:
    """Return a film of 160 x 200 pixels with a typical knee in each half, and changes to each."""
    knees = []
    for (side, x), change in zip((("left", 50), ("right", 150)), changes, strict=True):
        row = {"side": side, "grade": "1", "negative": "0", "implant": ""}
        row |= {"plateau_medial_x_px": str(x - 20), "plateau_medial_y_px": "80"}
        row |= {"plateau_lateral_x_px": str(x + 20), "plateau_lateral_y_px": "80"}
        knees.append(row | change)
    return WrittenFilm("film.png", (160, 200), knees)


@pytest.mark.parametrize(
    ("left", "right", "side"),
    [
        ({}, {}, "left"),
        ({"grade": "4"}, {}, "right"),
        ({"grade": "4"}, {"grade": "4"}, "left"),
        ({"implant": "nail"}, {}, "right"),
        ({"negative": "1"}, {"negative": "1"}, None),
        ({"plateau_medial_x_px": "-30", "plateau_lateral_x_px": "10"}, {}, "right"),
    ],
)
def test_choose_template_prefers_typical_knees_whose_boxes_lie_in_their_half(
    left: dict[str, str], right: dict[str, str], side: str | None
) -> None:
    chosen = choose_template([film_with(left, right)])
    assert (chosen and chosen["side"]) == side
