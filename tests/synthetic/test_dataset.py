"""Folders of phantoms: films, truth, and what happens to what was there."""

import csv
from pathlib import Path

import numpy as np
import pytest

from kneematch.errors import SettingsError
from kneematch.io.read import read
from kneematch.synthetic.dataset import Recipe, synthesise
from kneematch.synthetic.phantom import phantom, plan_film

SIZE = (80, 96)


def truth(folder: Path) -> list[dict[str, str]]:
    with (folder / "truth.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize(
    ("kind", "suffix", "levels"), [("dicom", "dcm", 4095), ("png", "png", 65535)]
)
def test_a_written_film_is_the_phantom_of_its_seed(
    tmp_path: Path, kind: str, suffix: str, levels: int
) -> None:
    synthesise(tmp_path, Recipe(2, kind, SIZE, seed=7))
    assert sorted(content(tmp_path)) == [
        f"phantom-00000.{suffix}",
        f"phantom-00001.{suffix}",
        "truth.csv",
    ]
    film = read(tmp_path / f"phantom-00001.{suffix}")
    expected = phantom(8, size=SIZE).radiograph
    assert np.abs(film.pixels - expected.pixels).max() <= 0.51 / levels
    assert film.mm_per_px == (pytest.approx(expected.mm_per_px) if kind == "dicom" else None)


def test_truth_has_a_row_a_knee_that_is_the_phantoms(tmp_path: Path) -> None:
    synthesise(tmp_path, Recipe(2, "png", SIZE, seed=3))
    rows = truth(tmp_path)
    knees = [knee for seed in (3, 4) for knee in phantom(seed, size=SIZE).knees]
    assert len(rows) == len(knees) == 4
    for row, knee in zip(rows, knees, strict=True):
        assert (row["side"], row["laterality"]) == (knee.side, knee.laterality)
        assert int(row["grade"]) == knee.grade
        for name in ("plateau_left", "plateau_right", "centre"):
            point = float(row[f"{name}_x_px"]), float(row[f"{name}_y_px"])
            assert point == pytest.approx(getattr(knee, name), abs=1e-4)
        assert float(row["rotation_deg"]) == pytest.approx(knee.rotation_deg, abs=1e-4)
        assert row["negative"] in "01"
    assert [row["film"] for row in rows] == ["phantom-00000.png"] * 2 + ["phantom-00001.png"] * 2


def test_films_do_not_depend_on_the_workers_or_the_run(tmp_path: Path) -> None:
    recipe = Recipe(3, "dicom", SIZE)
    synthesise(tmp_path / "one", recipe, workers=1)
    synthesise(tmp_path / "two", recipe, workers=2)
    assert content(tmp_path / "one") == content(tmp_path / "two")


def test_every_film_is_reported_in_order(tmp_path: Path) -> None:
    seen: list[str] = []
    synthesise(tmp_path, Recipe(3, "png", SIZE), report=lambda path: seen.append(path.name))
    assert seen == [f"phantom-0000{k}.png" for k in range(3)]


def test_a_folder_with_anything_in_it_is_refused_untouched(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(SettingsError, match=r"not empty \(notes\.txt\)"):
        synthesise(tmp_path, Recipe(1, "png", SIZE))
    assert content(tmp_path) == {"notes.txt": b"mine"}


def test_force_replaces_earlier_phantoms_and_nothing_else(tmp_path: Path) -> None:
    synthesise(tmp_path, Recipe(3, "dicom", SIZE))
    for name in ("notes.txt", "phantom-00001.dcm.txt", "my-phantom-00001.dcm"):
        (tmp_path / name).write_text("mine")
    synthesise(tmp_path, Recipe(1, "png", SIZE), force=True)
    assert sorted(content(tmp_path)) == [
        "my-phantom-00001.dcm",
        "notes.txt",
        "phantom-00000.png",
        "phantom-00001.dcm.txt",
        "truth.csv",
    ]
    assert {row["film"] for row in truth(tmp_path)} == {"phantom-00000.png"}


def test_a_run_that_breaks_off_leaves_no_truth(tmp_path: Path) -> None:
    def interrupt(path: Path) -> None:
        raise KeyboardInterrupt

    synthesise(tmp_path, Recipe(1, "png", SIZE))
    with pytest.raises(KeyboardInterrupt):
        synthesise(tmp_path, Recipe(2, "png", SIZE), force=True, report=interrupt)
    assert sorted(content(tmp_path)) == ["phantom-00000.png"]


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(count=0),
        Recipe(format="gif"),
        Recipe(seed=-1),
        Recipe(family=-1),
        Recipe(kind="hand"),
        Recipe(size=(31, 500)),
        Recipe(size=(100_000, 100_000)),
    ],
)
def test_a_recipe_that_cannot_be_made_touches_nothing(tmp_path: Path, recipe: Recipe) -> None:
    with pytest.raises(SettingsError, match="expected"):
        synthesise(tmp_path / "new", recipe)
    assert not (tmp_path / "new").exists()


def test_a_kind_frames_all_films_and_changes_nothing_else() -> None:
    legs = [plan_film(seed, kind="leg") for seed in range(6)]
    mixed = [plan_film(seed) for seed in range(6)]
    assert {film.framing.kind for film in legs} == {"leg"}
    assert len({film.framing.kind for film in mixed}) > 1
    for leg, film in zip(legs, mixed, strict=True):
        assert (leg.grades, leg.hardware, leg.negative) == (
            film.grades,
            film.hardware,
            film.negative,
        )
