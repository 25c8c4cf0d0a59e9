"""Changes between visits, from tables as runs write them."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detections import make_detection, make_record
from kneematch.cli.main import main
from kneematch.errors import SettingsError
from kneematch.evaluation.longitudinal import compare_runs
from kneematch.knee.detection import Detection
from kneematch.knee.measure import JointMeasures, Outlines
from kneematch.run.config import DetectConfig
from kneematch.run.outputs.measurements import open_measurements
from tables import read_table

SIDES = "left", "right"


def knee(side: str, gap_px: float, laterality: str = "") -> Detection:
    """A joint space of even width over a plateau of 200 pixels, 0.4 mm each."""
    x = np.linspace(100, 300, 5)
    femur, tibia = (np.stack([x, np.full(5, y)], axis=1) for y in (300 - gap_px, 300.0))
    outlines = Outlines(femur, tibia, "left", np.ones(5), np.ones(5), mm_per_px=0.4)
    return make_detection(
        side,
        (200.0, 300.0),
        (280.0, 280.0),
        laterality=laterality,
        measures=JointMeasures.from_outlines(outlines),
    )


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    first = {"/a/one.dcm": (("left", 10), ("right", 8)), "/a/two.dcm": (("left", 9),)}
    second = {"/b/1.dcm": (("left", 7), ("right", 8)), "/b/2.dcm": (("right", 9),)}
    return write_run(tmp_path / "first", first), write_run(tmp_path / "second", second)


def write_run(folder: Path, films: Mapping[str, Iterable[tuple[Any, ...]]]) -> Path:
    """Write the measurements of knees, given as arguments of `knee` by film."""
    rows = [(film, knee(*each)) for film, knees in films.items() for each in knees]
    folder.mkdir()
    with open_measurements(folder, DetectConfig()) as add:
        for film, found in rows:
            add(make_record(1, found, path=film))
    return folder


def table(folder: Path, *rows: str, columns: str = "film,patient,visit") -> Path:
    path = folder / "visits.csv"
    path.write_text("\n".join([columns, *rows, ""]))
    return path


def test_compare_runs_of_the_same_knees(runs: tuple[Path, Path], tmp_path: Path) -> None:
    # The second patient has no knee in common.
    visits = table(tmp_path, "/a/one.dcm,p,0", "1.dcm,p,1", "two.dcm,q,0", "2.dcm,q,1")
    result = compare_runs(runs, tmp_path / "out.csv", visits=visits)
    assert result.skipped == ["/a/two.dcm, /b/2.dcm: no knee at two visits"]
    again = tmp_path / "again.csv"
    assert main(["compare", *map(str, runs), "--visits", str(visits), "-o", str(again)]) == 1
    assert again.read_bytes() == (tmp_path / "out.csv").read_bytes()
    left, right = read_table(tmp_path / "out.csv")
    assert (left["image_side_before"], left["film_after"]) == ("left", "/b/1.dcm")
    assert (left["patient"], left["visit_before"], left["visit_after"]) == ("p", "0", "1")
    assert (left["laterality"], left["paired_by"]) == ("", "image_side")
    assert float(left["jsw_x250_pct_change"]) == pytest.approx(-1.5)
    assert float(right["jsw_x250_pct_change"]) == 0


def test_compare_runs_writes_deviations_and_the_smallest_detectable_change(tmp_path: Path) -> None:
    films = {"a": [("left", 20), ("right", 8)], "b": [("left", 5), ("right", 8)]}
    run, visits = write_run(tmp_path / "run", films), table(tmp_path, "a,p,0", "b,p,1")
    compare_runs(run, tmp_path / "out.csv", visits=visits)
    measures = knee("left", 20).measures
    assert measures is not None
    left, _ = read_table(tmp_path / "out.csv")
    for name, unit, scale in (
        ("jsw_x250", "pct", 1),
        ("jsw_x250", "mm", 0.8),  # of 1 % of a plateau of 80 mm
        ("joint_space_medial_area", "mm2", 64),
    ):
        sd = scale * (measures.values[name].sd or 0)
        limit = 1.96 * 2**0.5 * sd
        assert float(left[f"{name}_{unit}_change_sd"]) == pytest.approx(2**0.5 * sd, rel=1e-3)
        assert float(left[f"{name}_{unit}_sdc"]) == pytest.approx(limit, rel=1e-3)


def test_compare_runs_of_three_visits_begins_where_a_knee_is_first_seen(tmp_path: Path) -> None:
    widths = {"a": {"R": 10}, "b": {"R": 9, "L": 8}, "c": {"R": 7, "L": 7}}
    films = {
        film: [(side, gap, which) for side, (which, gap) in zip(SIDES, knees.items(), strict=False)]
        for film, knees in widths.items()
    }
    run, columns = write_run(tmp_path / "all", films), "visit,film,patient"
    visits = table(tmp_path, "12,b,p", "0,a,p", "110,c,p", columns=columns)  # 110 after 12
    compare_runs(run, tmp_path / "out.csv", visits=visits)
    names = "laterality", "visit_before", "visit_after"
    rows = read_table(tmp_path / "out.csv")
    knees = [tuple(row[name] for name in names) for row in rows]
    assert knees == [("R", "0", "12"), ("R", "0", "110"), ("L", "12", "110")]
    assert [float(row["jsw_x250_mm_change"]) for row in rows] == [-0.4, -1.2, -0.4]


def test_compare_runs_pairs_single_knees_and_takes_a_path_before_films_of_its_name(
    tmp_path: Path,
) -> None:
    right, left = [("left", 9, "R")], [("left", 8, "L")]
    films = {"/a/r.dcm": right, "/b/r.dcm": right, "/a/l.dcm": left, "/b/l1.dcm": left}
    visits = table(tmp_path, "/a/r.dcm,p,0", "/b/r.dcm,p,1", "l.dcm,p,0", "l1.dcm,p,1")
    compare_runs(write_run(tmp_path / "run", films), tmp_path / "out.csv", visits=visits)
    rows = read_table(tmp_path / "out.csv")
    found = [(row["laterality"], row["film_before"], row["film_after"]) for row in rows]
    assert found == [("R", "/a/r.dcm", "/b/r.dcm"), ("L", "/a/l.dcm", "/b/l1.dcm")]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("RL", "LR", ["left right R laterality", "right left L laterality"]),  # mirrored
        ("RL", ("", ""), ["left left R image_side", "right right L image_side"]),
        ("RL", ("L", ""), ["right left L laterality"]),  # R has no partner in its half
        ("RL", ("R", ""), ["left left R laterality", "right right L image_side"]),
        ("RL", ("R",), ["left left R laterality"]),
        ("R", ("L",), []),  # another knee in the same half
        ("RR", "RL", ["left left R image_side", "right right L image_side"]),  # one R is wrong
    ],
)
def test_compare_runs_pairs_knees_by_laterality(
    before: Sequence[str], after: Sequence[str], expected: list[str], tmp_path: Path
) -> None:
    folders = [
        write_run(tmp_path / film, {film: [(s, 9, k) for s, k in zip(SIDES, known, strict=False)]})
        for film, known in (("a", before), ("b", after))
    ]
    out, visits = tmp_path / "out.csv", table(tmp_path, "a,p,0", "b,p,1")
    if not expected:
        with pytest.raises(SettingsError, match="a, b: no knee at two visits"):
            compare_runs(folders, out, visits=visits)
        return
    assert compare_runs(folders, out, visits=visits).knees == len(expected)
    names = "image_side_before", "image_side_after", "laterality", "paired_by"
    assert [" ".join(row[name] for name in names) for row in read_table(out)] == expected


def test_compare_skips_films_without_a_measured_knee_and_lists_ten(
    runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.csv"
    command = ["compare", *map(str, runs), "-o", str(out), "--visits"]
    lost = [",p,0", *(f"hand-{k}.dcm,q,0" for k in range(11)), "2.dcm,,1", "two.dcm,q,"]
    assert main([*command, str(table(tmp_path, *lost, "one.dcm,p,0", "1.dcm,p,1"))]) == 1
    said = capsys.readouterr()
    assert "skipped: an empty cell: no film with a measured knee\n" in said.err
    assert said.err.count("skipped: hand-") == 9
    assert "4 more films or patients skipped" in said.err
    assert f"{out}: 2 changes" in said.out
    assert [row["film_before"] for row in read_table(out)] == ["/a/one.dcm"] * 2
    out.unlink()
    assert main([*command, str(table(tmp_path, *lost))]) == 2
    assert "measured at two visits: an empty cell" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (["three.dcm,p,0"], "three.dcm: no film with a measured knee"),
        (["/a/one.dcm,p,0"] * 2, "Several rows are about the film '/a/one.dcm'"),
        (["same.dcm,p,0"], "The runs have several films same.dcm"),  # in two folders
        (["/both.dcm,p,0"], "The runs have several films /both.dcm"),  # in two runs
        (["", "one.dcm,p"], "row 3 has 2 cells instead of 3"),
    ],
)
def test_compare_runs_refuses_films_that_are_not_one_of_the_runs(
    runs: tuple[Path, Path], rows: list[str], reason: str, tmp_path: Path
) -> None:
    one = [("left", 9)]
    more = [{"/c/same.dcm": one, "/d/same.dcm": one, "/both.dcm": one}, {"/both.dcm": one}]
    folders = [*runs, *(write_run(tmp_path / str(k), films) for k, films in enumerate(more))]
    with pytest.raises(SettingsError, match=re.escape(reason)):
        compare_runs(folders, tmp_path / "out.csv", visits=table(tmp_path, *rows))
    assert not (tmp_path / "out.csv").exists()


def test_compare_runs_refuses_what_is_no_table(runs: tuple[Path, Path], tmp_path: Path) -> None:
    out, other = tmp_path / "out.csv", tmp_path / "other.csv"
    for text, reason in (
        ("a,film\n", "it lacks the columns patient, visit"),
        ("", "it is empty"),
    ):
        other.write_text(text)
        with pytest.raises(SettingsError, match=reason):
            compare_runs(runs, out, visits=other)
    with pytest.raises(SettingsError, match=r"No such file: .*measurements\.csv.*`measure`"):
        compare_runs((tmp_path, runs[1]), out, visits=table(tmp_path))
    with pytest.raises(SettingsError, match=r"No such file: .*none\.csv"):
        compare_runs(runs, out, visits=tmp_path / "none.csv")
    assert not out.exists()


def test_compare_runs_with_force_replaces_no_table_that_it_reads(
    runs: tuple[Path, Path], tmp_path: Path
) -> None:
    visits, out = table(tmp_path, "/a/one.dcm,p,0", "1.dcm,p,1"), tmp_path / "out.csv"
    for path in (visits, runs[0] / "measurements.csv", runs[1] / "measurements.csv"):
        before = path.read_bytes()
        with pytest.raises(SettingsError, match="one of the tables to compare"):
            compare_runs(runs, path, visits=visits, force=True)
        assert path.read_bytes() == before
    out.write_text("mine")
    compare_runs(runs, out, visits=visits, force=True)
    assert out.read_text() != "mine"
