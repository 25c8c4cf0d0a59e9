"""Uniformity of areas that were moved by known amounts."""

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detections import make_detection
from kneematch.evaluation.method_run import MethodRun
from kneematch.evaluation.uniformity import (
    REACH,
    ROWS,
    find_joint_lines,
    profile_shifts,
    uniformity_table,
)
from kneematch.films.csv_text import Cell
from kneematch.knee.detection import Detection
from kneephantoms.files import write_png16
from kneephantoms.rendering import Knee, Phantom, phantom

FILMS = 12
WIDTH = 1.35  # of an area, in plateaus


@cache
def made(seed: int) -> Phantom:
    return phantom(seed, size=(420, 480), framing="knee")


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("films")
    for seed in range(FILMS):
        write_png16(folder / f"{seed}.png", made(seed).pixels)
    return [str(folder / f"{seed}.png") for seed in range(FILMS)]


def area(knee: Knee, polarity: str, down: float = 0.0) -> Detection:
    """The area around a phantom's plateau, upright to it, moved by so many of its heights."""
    width = WIDTH * math.dist(knee.plateau_left, knee.plateau_right)
    turn = math.radians(knee.rotation_deg)
    moved = down * width * np.array([-math.sin(turn), math.cos(turn)])
    x, y = (np.array(knee.centre) + moved).tolist()
    how = {"laterality": knee.laterality, "polarity": polarity}
    return make_detection(knee.side, (x, y), (width, width), knee.rotation_deg, **how)


def run(method: str, films: list[str], down: np.ndarray[Any, Any]) -> MethodRun:
    """Areas on phantoms, moved down by (films, 2) of their heights."""
    found = {}
    for film, moves in zip(films, down, strict=True):
        shown = made(int(Path(film).stem))
        polarity = "negative" if shown.negative else "positive"
        found[film] = tuple(
            area(knee, polarity, float(by)) for knee, by in zip(shown.knees, moves, strict=True)
        )
    return MethodRun(method, found)


def test_find_joint_lines_is_as_much_higher_as_areas_were_moved_down(films: list[str]) -> None:
    moves = np.random.default_rng(0).uniform(-0.08, 0.08, (FILMS, 2))
    runs = [run("still", films, 0 * moves), run("moved", films, moves)]
    lines = find_joint_lines(runs, films)
    measured = lines["still"] - lines["moved"]
    assert np.abs(measured - moves.ravel()).max() < 0.01
    # Also where nothing is known of where the same knees were before.
    alone = find_joint_lines(runs[1:], films)["moved"]
    assert np.corrcoef(alone, -moves.ravel())[0, 1] > 0.95


def test_uniformity_table_has_the_larger_spread_for_areas_that_vary(films: list[str]) -> None:
    moves = np.random.default_rng(1).normal(0, 0.04, (FILMS, 2))
    runs = [run("still", films, 0 * moves), run("moved", films, moves)]
    still, moved = rows(runs, find_joint_lines(runs, films))
    assert still["joint line, SD %"] < 2  # type: ignore[operator]
    expected = math.hypot(still["joint line, SD %"], 100 * moves.std(ddof=1))  # type: ignore[arg-type]
    assert moved["joint line, SD %"] == pytest.approx(expected, abs=0.5)
    assert still["crops"] == moved["crops"] == 2 * FILMS


def test_find_joint_lines_measures_the_same_in_other_processes(films: list[str]) -> None:
    some = films[:3]
    runs = [run("still", some, np.zeros((3, 2)))]
    alone = find_joint_lines(runs, some)
    assert np.array_equal(find_joint_lines(runs, some, workers=1)["still"], alone["still"])


def test_find_joint_lines_of_a_missing_film_are_unknown(films: list[str]) -> None:
    whole = run("still", films[:4], np.zeros((4, 2)))
    gone = MethodRun("still", {"gone.png": whole.found[films[0]], **whole.found})
    lines = find_joint_lines([gone, MethodRun("none", {})], ["gone.png", *films[:4], "never.png"])
    assert np.isnan(lines["still"]).tolist() == [True] * 2 + [False] * 8
    assert len(lines["none"]) == 0
    still, none = rows([gone, MethodRun("none", {})], lines)
    assert still["crops"] == 8
    assert none["films"] == none["crops"] == 0
    assert none["joint line, SD %"] is None


def test_profile_shifts_are_exact_to_fractions_of_a_row() -> None:
    at = np.arange(ROWS)
    true = np.array([-7.3, -2.0, 0.0, 0.4, 1.0, 2.6, 5.3])
    profiles = np.stack([np.exp(-(((at - 48 - by) / 4) ** 2)) for by in true])
    profiles *= np.linspace(0.1, 3, len(true))[:, None]  # of any contrast
    measured = profile_shifts(profiles)
    assert np.abs(measured - measured.mean() - true + true.mean()).max() < 0.05


def test_profile_shifts_of_flat_profiles_are_unknown() -> None:
    flat = np.zeros((2, ROWS))
    assert np.isnan(profile_shifts(flat)).all()
    assert np.isnan(profile_shifts(np.full((2, ROWS), np.nan))).all()
    assert len(profile_shifts(np.empty((0, ROWS)))) == 0


def test_profile_shifts_end_at_the_reach() -> None:
    at = np.arange(ROWS)
    centres = [48.0] * 9 + [48.0 + REACH + 4]
    profiles = np.stack([np.exp(-(((at - centre) / 4) ** 2)) for centre in centres])
    assert profile_shifts(profiles)[-1] == pytest.approx(REACH, abs=0.5)


def rows(runs: list[MethodRun], lines: Any) -> list[dict[str, Cell]]:
    table = uniformity_table(runs, lines)
    titles = [column.title for column in table.columns]
    assert len(set(titles)) == len(titles)
    assert table.shown()
    return [dict(zip(titles, row, strict=True)) for row in table.rows]


def pair(down: float, wider: float, turn: float, mm: float | None) -> tuple[Detection, ...]:
    """Two sides, 200 px wide on average, of which the left one is lower, wider and turned more."""
    one = area(made(0).knees[0], "positive")
    left = replace(
        one, centre=(100.0, 300.0 + down), width_px=200 + wider, rotation_deg=turn, mm_per_px=mm
    )
    right = replace(one, side="right", centre=(400.0, 300.0), width_px=200 - wider, mm_per_px=mm)
    return left, replace(right, rotation_deg=-2.0)


def test_uniformity_table_compares_sides_in_percent_millimetres_and_degrees() -> None:
    found = {
        "a": pair(10, 5, 5.0, 0.5),
        "b": pair(-20, -5, 2.0, 0.5),
        "c": pair(0, 0, 2.0, None),
        "one knee": pair(0, 0, 0.0, None)[:1],
    }
    (row,) = rows([MethodRun("search", found)], {"search": np.array([0.01, 0.03, 0.05])})
    assert row["films"] == 3
    assert row["height apart, mean %"] == pytest.approx((5 + 10 + 0) / 3)
    assert row["height apart, SD %"] == pytest.approx(np.std([5, -10, 0], ddof=1))
    assert row["height apart, mean mm"] == pytest.approx(7.5)
    assert row["height apart, SD mm"] == pytest.approx(np.std([5, -10], ddof=1))
    assert row["size apart, mean %"] == pytest.approx((5 + 5 + 0) / 3)
    assert row["turned apart, mean degrees"] == pytest.approx(1.0)
    assert row["joint line, SD %"] == pytest.approx(2.0)
    assert row["joint line, median %"] == pytest.approx(2.0)
