"""Folders of phantoms: films, ground truth, template, and files that were there before."""

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pydicom
import pytest

from kneematch.errors import SettingsError
from kneematch.films.annotation import load_annotation
from kneematch.films.read import read
from kneematch.knee.template import cut_template
from kneematch.progress import Advance
from kneephantoms import phantom
from kneephantoms.config import SynthConfig
from kneephantoms.dataset import find_template, synthesize
from phantom_films import radiograph

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
    expected = radiograph(phantom(8, size=SIZE))
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


def test_synthesize_annotates_a_true_knee(tmp_path: Path) -> None:
    result = synthesize(tmp_path, SynthConfig(3, "png", SIZE))
    assert result.template is not None
    annotation = load_annotation(result.template)
    (row,) = (
        row
        for row in truth(tmp_path)
        if (row["film"], row["side"]) == (annotation.film.name, annotation.side)
    )
    medial = float(row["plateau_medial_x_px"]), float(row["plateau_medial_y_px"])
    assert annotation.landmarks["plateau_medial"] == medial


def test_synthesize_does_not_depend_on_the_workers(tmp_path: Path) -> None:
    config = SynthConfig(3, "dicom", SIZE, workers=0)
    synthesize(tmp_path / "one", config)
    synthesize(tmp_path / "two", replace(config, workers=2))
    assert content(tmp_path / "one") == content(tmp_path / "two")


def test_synthesize_reports_every_film_in_order(tmp_path: Path) -> None:
    seen: list[str] = []

    @contextmanager
    def progress(label: str, total: int, done: int = 0) -> Iterator[Advance]:
        assert (total, done) == (3, 0)
        yield seen.append

    synthesize(tmp_path, SynthConfig(3, "png", SIZE), progress=progress)
    assert seen == [f"phantom-0000{k}.png" for k in range(3)]


def test_synthesize_refuses_a_folder_that_is_not_empty(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(SettingsError, match=r"files \(notes\.txt\) already; .* --force"):
        synthesize(tmp_path, SynthConfig(1, "png", SIZE))
    assert content(tmp_path) == {"notes.txt": b"mine"}


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


def test_synthesize_leaves_no_truth_when_interrupted(tmp_path: Path) -> None:
    @contextmanager
    def interrupt(label: str, total: int, done: int = 0) -> Iterator[Advance]:
        def advance(note: str) -> None:
            raise KeyboardInterrupt

        yield advance

    synthesize(tmp_path, SynthConfig(1, "png", SIZE))
    with pytest.raises(KeyboardInterrupt):
        synthesize(tmp_path, SynthConfig(2, "png", SIZE, force=True), progress=interrupt)
    assert sorted(content(tmp_path)) == ["phantom-00000.png"]


@pytest.mark.parametrize("size", [(31, 500), (100_000, 100_000)])
def test_synthesize_refuses_a_size_before_it_creates_the_folder(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    with pytest.raises(SettingsError, match="expected"):
        synthesize(tmp_path / "new", SynthConfig(size=size))
    assert not (tmp_path / "new").exists()


def test_find_template_can_be_cut(tmp_path: Path) -> None:
    synthesize(tmp_path, SynthConfig(2, "png", (160, 200)))
    drawn = find_template(tmp_path, truth(tmp_path))
    assert drawn is not None
    template, _ = cut_template(read(drawn.film), drawn)
    assert set(template.landmarks) == {"plateau_medial", "plateau_lateral"}


@pytest.mark.parametrize(
    "changed",
    [
        {"implant": "nail"},
        {"negative": "1"},
        {"plateau_medial_x_px": "-80", "plateau_lateral_x_px": "10"},  # past the edge
    ],
)
def test_find_template_skips_implants_negatives_and_knees_past_the_edge(
    tmp_path: Path, changed: dict[str, str]
) -> None:
    synthesize(tmp_path, SynthConfig(1, "png", (160, 200)))
    rows = truth(tmp_path)
    assert find_template(tmp_path, rows) is not None
    assert find_template(tmp_path, [row | changed for row in rows]) is None


def test_find_template_prefers_knees_of_low_grade(tmp_path: Path) -> None:
    synthesize(tmp_path, SynthConfig(1, "png", (160, 200)))
    left, right = truth(tmp_path)
    for grades, side in ((("4", "1"), "right"), (("1", "1"), "left"), (("4", "4"), "left")):
        rows = [row | {"grade": grade} for row, grade in zip((left, right), grades, strict=True)]
        drawn = find_template(tmp_path, rows)
        assert drawn is not None
        assert drawn.side == side


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
