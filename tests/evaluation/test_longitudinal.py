"""Changes between two visits, from tables as runs write them."""

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
    visits = {
        "first": {"/a/one.dcm": (("left", 10), ("right", 8)), "/a/two.dcm": (("left", 9),)},
        "second": {"/b/1.dcm": (("left", 7), ("right", 8)), "/b/2.dcm": (("right", 9),)},
    }
    first, second = (write_run(tmp_path / name, films) for name, films in visits.items())
    return first, second


def write_run(folder: Path, films: Mapping[str, Iterable[tuple[Any, ...]]]) -> Path:
    """Write the measurements of knees, given as arguments of `knee` by film."""
    rows = [(film, knee(*each)) for film, knees in films.items() for each in knees]
    folder.mkdir()
    with open_measurements(folder, DetectConfig()) as add:
        for film, found in rows:
            add(make_record(1, found, path=film))
    return folder


def pairs(folder: Path, *rows: str) -> Path:
    path = folder / "pairs.csv"
    path.write_text("\n".join(["before,after", *rows, ""]))
    return path


def test_compare_runs_of_the_same_knees(runs: tuple[Path, Path], tmp_path: Path) -> None:
    on = pairs(tmp_path, "/a/one.dcm,1.dcm", "two.dcm,2.dcm")  # the last have no knee in common
    result = compare_runs(*runs, on, tmp_path / "out.csv")
    changes = {each.measure: each for each in result.changes}
    assert result.skipped == ["two.dcm, 2.dcm: no knee in common"]
    command = ["compare", *map(str, runs), "--on", str(on), "-o", str(tmp_path / "again.csv")]
    assert main(command) == 1
    assert (tmp_path / "again.csv").read_bytes() == (tmp_path / "out.csv").read_bytes()
    assert changes["jsw_x250_pct"].knees == 2
    assert changes["jsw_x250_pct"].mean == pytest.approx(-0.75)  # -1.5 % and 0
    assert changes["jsw_x250_mm"].mean == pytest.approx(-0.6)  # of 80 mm
    left, right = read_table(tmp_path / "out.csv")
    assert (left["image_side_before"], left["film_after"]) == ("left", "/b/1.dcm")
    assert (left["laterality"], left["paired_by"]) == ("", "image_side")
    assert float(left["jsw_x250_pct_change"]) == pytest.approx(-1.5)
    measures = knee("left", 10).measures
    assert measures is not None
    sd = measures.values["jsw_x250"].sd
    assert float(left["jsw_x250_pct_change_sd"]) == pytest.approx(2**0.5 * (sd or 0), abs=1e-3)
    assert float(right["jsw_x250_pct_change"]) == 0


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("RL", "LR", ["left right R laterality", "right left L laterality"]),  # mirrored
        ("RL", ("", ""), ["left left R image_side", "right right L image_side"]),
        ("RL", ("L", ""), ["right left L laterality"]),  # R has no partner in its half
        ("RL", ("R", ""), ["left left R laterality", "right right L image_side"]),
        ("RL", ("R",), ["left left R laterality"]),
        ("R", ("L",), []),  # another knee in the same half
        (
            "RR",
            "RL",
            ["left left R image_side", "right right L image_side"],
        ),  # one of two R is wrong
    ],
)
def test_compare_runs_pairs_knees_by_laterality(
    before: Sequence[str], after: Sequence[str], expected: list[str], tmp_path: Path
) -> None:
    folders = [
        write_run(tmp_path / film, {film: [(s, 9, k) for s, k in zip(SIDES, known, strict=False)]})
        for film, known in (("a", before), ("b", after))
    ]
    out = tmp_path / "out.csv"
    if not expected:
        with pytest.raises(SettingsError, match="a, b: no knee in common"):
            compare_runs(*folders, pairs(tmp_path, "a,b"), out)
        return
    assert compare_runs(*folders, pairs(tmp_path, "a,b"), out).knees == len(expected)
    names = "image_side_before", "image_side_after", "laterality", "paired_by"
    assert [" ".join(row[name] for name in names) for row in read_table(out)] == expected


def test_compare_skips_films_without_a_measured_knee_and_lists_ten(
    runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.csv"
    command = ["compare", *map(str, runs), "-o", str(out), "--on"]
    lost = ["one.dcm,", *(f"two.dcm,hand-{k}.dcm" for k in range(11))]
    assert main([*command, str(pairs(tmp_path, *lost, "one.dcm,1.dcm"))]) == 1
    said = capsys.readouterr()
    assert f"skipped: an empty cell: no film with a measured knee in {runs[1]}\n" in said.err
    assert said.err.count("pair of films skipped: hand-") == 9
    assert "2 more pairs of films skipped" in said.err
    assert f"{out}: 2 knees" in said.out
    assert [row["film_before"] for row in read_table(out)] == ["/a/one.dcm"] * 2
    out.unlink()
    assert main([*command, str(pairs(tmp_path, *lost))]) == 2
    assert "measured at both visits: an empty cell" in capsys.readouterr().err
    assert not out.exists()


def test_compare_runs_refuses_tables_without_a_film_of_the_runs(
    runs: tuple[Path, Path], tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match=r"three\.dcm: no film with a measured knee"):
        compare_runs(*runs, pairs(tmp_path, "three.dcm,1.dcm"), tmp_path / "out.csv")
    other = tmp_path / "other.csv"
    other.write_text("a,b\n")
    with pytest.raises(SettingsError, match="lacks the columns before and after"):
        compare_runs(*runs, other, tmp_path / "out.csv")
    with pytest.raises(SettingsError, match=r"No such file: .*measurements\.csv"):
        compare_runs(tmp_path, runs[1], pairs(tmp_path), tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()


def test_compare_runs_replaces_no_table_that_it_reads_and_others_with_force_only(
    runs: tuple[Path, Path], tmp_path: Path
) -> None:
    on, out = pairs(tmp_path, "/a/one.dcm,1.dcm"), tmp_path / "out.csv"
    for path in (on, runs[0] / "measurements.csv", runs[1] / "measurements.csv"):
        before = path.read_bytes()
        with pytest.raises(SettingsError, match="one of the tables to compare"):
            compare_runs(*runs, on, path, force=True)
        assert path.read_bytes() == before
    out.write_text("mine")
    with pytest.raises(SettingsError, match="--force"):
        compare_runs(*runs, on, out)
    assert out.read_text() == "mine"
    compare_runs(*runs, on, out, force=True)
    assert out.read_text() != "mine"
