"""Folders of phantoms: settings, films, ground truth, template, and other files in them."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest

from kneematch import read
from kneematch.films.annotation import load_annotation
from kneephantoms import SynthConfig, phantom, synthesize
from kneephantoms.dataset import WrittenFilm, choose_template
from phantom_films import radiograph
from tables import read_table

SIZE = (80, 96)


def truth(folder: Path) -> list[dict[str, str]]:
    return read_table(folder / "truth.csv")


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_synth_and_phantom_work_without_torch(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None;"  # an import of it would fail
        "import kneephantoms; kneephantoms.phantom(1, framing='any', turn_deg=10);"
        "from kneematch.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    command = "synth", "-n", "1", "--size", "80x96", "-o", str(tmp_path)
    subprocess.run([sys.executable, "-c", code, *command], check=True)
    assert (tmp_path / "phantom-00000.dcm").exists()


@pytest.mark.parametrize(
    "wrong",
    [
        *({"count": 0}, {"format": "gif"}, {"seed": -1}, {"framing": "hand"}, {"workers": -1}),
        *({"turn_deg": float("nan")}, {"size": (31, 500)}, {"size": (100_000, 100_000)}),
    ],
)
def test_synth_config_refuses_impossible_settings(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must|cannot"):
        SynthConfig(**wrong)


@pytest.mark.parametrize(
    ("format", "suffix", "levels"), [("dicom", "dcm", 4095), ("png", "png", 65535)]
)
def test_synthesize_writes_the_phantoms_of_the_seeds(
    tmp_path: Path, format: str, suffix: str, levels: int
) -> None:
    seen: list[str] = []
    synthesize(tmp_path, SynthConfig(2, format, SIZE, seed=7), advance=seen.append)
    assert seen == [f"phantom-00000.{suffix}", f"phantom-00001.{suffix}"]
    assert sorted(content(tmp_path)) == [*seen, "template.json", "truth.csv"]
    film, expected = read(tmp_path / seen[1]), radiograph(phantom(8, size=SIZE))
    assert np.abs(film.pixels - expected.pixels).max() <= 0.51 / levels
    assert film.mm_per_px == (pytest.approx(expected.mm_per_px) if format == "dicom" else None)


def test_synthesize_writes_a_row_of_truth_per_knee_and_a_template(tmp_path: Path) -> None:
    drawn = load_annotation(synthesize(tmp_path, SynthConfig(2, "png", SIZE, seed=3)).template)
    rows = truth(tmp_path)
    knees = [knee for seed in (3, 4) for knee in phantom(seed, size=SIZE).knees]
    for row, knee in zip(rows, knees, strict=True):
        assert (row["side"], row["laterality"]) == (knee.side, knee.laterality)
        assert int(row["grade"]) == knee.grade
        for name in ("plateau_medial", "plateau_lateral", "centre"):
            point = float(row[f"{name}_x_px"]), float(row[f"{name}_y_px"])
            assert point == pytest.approx(getattr(knee, name), abs=1e-4)
        assert float(row["rotation_deg"]) == pytest.approx(knee.rotation_deg, abs=1e-4)
    assert [row["film"] for row in rows] == ["phantom-00000.png"] * 2 + ["phantom-00001.png"] * 2
    sides = [(row["film"], row["side"]) for row in rows]
    annotated = knees[sides.index((drawn.film.name, drawn.side))]
    assert drawn.landmarks["plateau_medial"] == pytest.approx(annotated.plateau_medial, abs=1e-4)


def test_synthesize_does_not_depend_on_the_workers(tmp_path: Path) -> None:
    config = SynthConfig(3, "dicom", SIZE, workers=0)
    synthesize(tmp_path / "one", config)
    synthesize(tmp_path / "two", replace(config, workers=2))
    assert content(tmp_path / "one") == content(tmp_path / "two")


def test_synthesize_with_force_replaces_earlier_phantoms_and_nothing_else(tmp_path: Path) -> None:
    synthesize(tmp_path, SynthConfig(3, "dicom", SIZE))
    others = ["my-phantom-00001.dcm", "notes.txt", "phantom-00001.dcm.txt"]
    for name in others:
        (tmp_path / name).write_text("mine")
    synthesize(tmp_path, SynthConfig(1, "png", SIZE, force=True))
    own = ["phantom-00000.png", "template.json", "truth.csv"]
    assert sorted(content(tmp_path)) == sorted([*others, *own])
    assert {row["film"] for row in truth(tmp_path)} == {"phantom-00000.png"}
    assert load_annotation(tmp_path / "template.json").film.name == "phantom-00000.png"


@pytest.mark.parametrize("workers", [0, 2])
def test_synthesize_leaves_no_truth_if_a_film_cannot_be_written(
    tmp_path: Path, workers: int
) -> None:
    synthesize(tmp_path, SynthConfig(1, "png", SIZE))
    blocked = tmp_path / "phantom-00009.png"
    config = SynthConfig(10, "png", SIZE, workers=workers, force=True)
    with pytest.raises(OSError, match="phantom-00009"):
        synthesize(tmp_path, config, advance=lambda name: blocked.mkdir(exist_ok=True))
    assert {"truth.csv", "template.json"}.isdisjoint(entry.name for entry in tmp_path.iterdir())


@pytest.mark.parametrize(
    "changed",
    [
        *({"implant": "nail"}, {"negative": "1"}),
        {"plateau_medial_x_px": "-80", "plateau_lateral_x_px": "10"},  # past the edge
    ],
)
def test_choose_template_takes_a_typical_knee(tmp_path: Path, changed: dict[str, str]) -> None:
    synthesize(tmp_path, SynthConfig(1, "png", (160, 200)))
    left, right = (row | {"grade": "1"} for row in truth(tmp_path))

    def side(*rows: dict[str, str]) -> str | None:
        chosen = choose_template([WrittenFilm("film", (160, 200), list(rows))])
        return None if chosen is None else str(chosen["side"])

    assert side(left, right) == "left"
    assert side(left | {"grade": "4"}, right) == "right"
    assert side(left | changed, right) == "right"
    assert side(left | changed, right | changed) is None


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
