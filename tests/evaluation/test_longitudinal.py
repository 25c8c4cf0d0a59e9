"""Changes between two visits, from tables as runs write them."""

import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kneematch.cli.main import main
from kneematch.errors import SettingsError
from kneematch.evaluation.longitudinal import compare_visits
from kneematch.films.run_folder import FAILURES
from kneematch.knee.detection import Detection
from kneematch.knee.measure import measure_outlines
from kneematch.knee.outlines import Outlines
from kneematch.run.outputs.measurements import write_measurements
from kneematch.run.outputs.tables import write_failures
from tables import read_table

SIDES = "left", "right"


def knee(side: str, gap_px: float, laterality: str = "") -> Detection:
    """A joint space of even width over a plateau of 200 pixels, 0.4 mm each."""
    x = np.linspace(100, 300, 5)
    femur, tibia = (np.stack([x, np.full(5, y)], axis=1) for y in (300 - gap_px, 300.0))
    outlines = Outlines(femur, tibia, "left", np.ones(5), np.ones(5), mm_per_px=0.4)
    corners = np.array([[60.0, 160], [340, 160], [340, 440], [60, 440]])
    found = Detection(
        side, laterality, 0.1, 0.1, "positive", "neural", corners, (200.0, 300.0), 280.0, 280.0, 0.0
    )
    return replace(found, outlines=outlines, measures=measure_outlines(outlines))


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
    write_measurements(lambda: rows, folder)
    return folder


def pairs(folder: Path, *rows: str) -> Path:
    path = folder / "pairs.csv"
    path.write_text("\n".join(["before,after", *rows, ""]))
    return path


def test_compare_visits_of_the_same_knees(runs: tuple[Path, Path], tmp_path: Path) -> None:
    on = pairs(tmp_path, "/a/one.dcm,1.dcm", "two.dcm,2.dcm")  # the last have no knee in common
    result = compare_visits(*runs, on, tmp_path / "out.csv")
    changes = {each.measure: each for each in result.changes}
    assert result.skipped == ["/a/two.dcm, /b/2.dcm: no knee in common; pair skipped"]
    command = ["compare", *map(str, runs), "--on", str(on), "-o", str(tmp_path / "again.csv")]
    assert main(command) == 1
    assert (tmp_path / "again.csv").read_bytes() == (tmp_path / "out.csv").read_bytes()
    assert changes["jsw_x250_pct"].knees == 2
    assert changes["jsw_x250_pct"].mean == pytest.approx(-0.75)  # -1.5 % and 0
    assert changes["jsw_x250_mm"].mean == pytest.approx(-0.6)  # of 80 mm
    left, right = read_table(tmp_path / "out.csv")
    assert (left["side_before"], left["film_after"]) == ("left", "/b/1.dcm")
    assert (left["laterality"], left["paired_by"]) == ("", "side")
    assert float(left["jsw_x250_pct_change"]) == pytest.approx(-1.5)
    sd = measure_outlines(knee("left", 10).outlines)["jsw_x250"].sd  # type: ignore[arg-type]
    assert float(left["jsw_x250_pct_change_sd"]) == pytest.approx(2**0.5 * (sd or 0), abs=1e-3)
    assert float(right["jsw_x250_pct_change"]) == 0


def test_compare_states_no_deviation_of_a_single_knee(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [write_run(tmp_path / film, {film: [("left", 9, "R")]}) for film in ("a", "b")]
    command = ["compare", *map(str, folders), "--on", str(pairs(tmp_path, "a,b"))]
    assert main([*command, "-o", str(tmp_path / "out.csv")]) == 0
    said = capsys.readouterr().out
    assert "jsw_x250_pct: mean change +0.000\n" in said
    assert "standard deviation" not in said


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("RL", "LR", ["left right R laterality", "right left L laterality"]),  # mirrored
        ("RL", ("", ""), ["left left R side", "right right L side"]),
        ("RL", ("L", ""), ["right left L laterality"]),  # R has no partner in its half
        ("RL", ("R", ""), ["left left R laterality", "right right L side"]),
        ("RL", ("R",), ["left left R laterality"]),
        ("R", ("L",), []),  # another knee in the same half
        ("RR", "RL", ["left left R side", "right right L side"]),  # one of two R is wrong
    ],
)
def test_compare_visits_pairs_knees_by_laterality(
    before: Sequence[str], after: Sequence[str], expected: list[str], tmp_path: Path
) -> None:
    folders = [
        write_run(tmp_path / film, {film: [(s, 9, k) for s, k in zip(SIDES, known, strict=False)]})
        for film, known in (("a", before), ("b", after))
    ]
    out = tmp_path / "out.csv"
    if not expected:
        with pytest.raises(SettingsError, match="a, b: no knee in common"):
            compare_visits(*folders, pairs(tmp_path, "a,b"), out)
        return
    assert compare_visits(*folders, pairs(tmp_path, "a,b"), out).knees == len(expected)
    names = "side_before", "side_after", "laterality", "paired_by"
    assert [" ".join(row[name] for name in names) for row in read_table(out)] == expected


def test_compare_skips_films_without_a_knee(
    runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hands = [f"/b/hand-{k}.dcm" for k in range(12)]
    write_failures(
        [(hand, "no_knee", "no frontal knee found") for hand in hands], runs[1] / FAILURES
    )
    out = tmp_path / "out.csv"
    command = ["compare", *map(str, runs), "-o", str(out), "--on"]
    lost = [f"two.dcm,{hand}" for hand in hands]
    assert main([*command, str(pairs(tmp_path, *lost, "one.dcm,1.dcm"))]) == 1
    said = capsys.readouterr()
    assert said.err.count("no frontal knee found; pair skipped") == 10
    assert "2 more pairs of films skipped" in said.err
    assert f"{out}: {len(read_table(out))} knees" in said.out
    out.unlink()
    assert main([*command, str(pairs(tmp_path, *lost))]) == 2
    assert "no knees to compare (/b/hand-0.dcm: no frontal" in capsys.readouterr().err
    assert not out.exists()


def test_compare_skips_films_that_are_not_in_a_run(
    runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    on = pairs(tmp_path, "three.dcm,1.dcm", "one.dcm,1.dcm", "one.dcm,", "x.dcm,y.dcm")
    out = tmp_path / "out.csv"
    assert main(["compare", *map(str, runs), "--on", str(on), "-o", str(out)]) == 1
    said = capsys.readouterr()
    assert said.err == (
        f"kneematch: {on}: 3 pairs of films skipped, the first since three.dcm: no such film in "
        f"{runs[0]}; expected films of the runs; name them as measurements.csv does\n"
    )
    assert f"{out}: 2 knees" in said.out
    assert [row["film_before"] for row in read_table(out)] == ["/a/one.dcm"] * 2
    result = compare_visits(*runs, on, out, force=True)
    assert result.unknown[1:] == [
        f"an empty cell: no such film in {runs[1]}",
        f"x.dcm: no such film in {runs[0]}",
    ]


def test_compare_visits_refuses_tables_without_a_film_of_the_runs(
    runs: tuple[Path, Path], tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match=r"three\.dcm: no such film"):
        compare_visits(*runs, pairs(tmp_path, "three.dcm,1.dcm"), tmp_path / "out.csv")
    other = tmp_path / "other.csv"
    other.write_text("a,b\n")
    with pytest.raises(SettingsError, match="expected before and after"):
        compare_visits(*runs, other, tmp_path / "out.csv")
    with pytest.raises(SettingsError, match=r"measurements\.csv: no such file"):
        compare_visits(tmp_path, runs[1], pairs(tmp_path), tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()


def test_compare_visits_bears_empty_lines_and_names_short_ones(
    runs: tuple[Path, Path], tmp_path: Path
) -> None:
    out = tmp_path / "out.csv"
    compare_visits(*runs, pairs(tmp_path, "/a/one.dcm,1.dcm", "", ""), out)
    with pytest.raises(SettingsError, match="row 2 has 1 columns; expected 2"):
        compare_visits(*runs, pairs(tmp_path, "one.dcm"), out, force=True)
    with pytest.raises(SettingsError, match="/dev/zero: no such file"):
        compare_visits(*runs, "/dev/zero", out, force=True)


def test_compare_visits_reads_pairs_that_a_spreadsheet_saved(
    runs: tuple[Path, Path], tmp_path: Path
) -> None:
    on = pairs(tmp_path, "one.dcm,1.dcm")
    on.write_bytes(b"\xef\xbb\xbf" + on.read_bytes())  # the mark of "CSV UTF-8"
    assert compare_visits(*runs, on, tmp_path / "out.csv").knees == 2


def test_compare_visits_never_replaces_what_it_compares(
    runs: tuple[Path, Path], tmp_path: Path
) -> None:
    on = pairs(tmp_path, "/a/one.dcm,1.dcm")
    for path in (on, runs[0] / "measurements.csv", runs[1] / "measurements.csv"):
        before = path.read_bytes()
        with pytest.raises(SettingsError, match="one of the tables to compare"):
            compare_visits(*runs, on, path, force=True)
        assert path.read_bytes() == before


def test_compare_visits_keeps_a_file_that_is_there(runs: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    out.write_text("mine")
    with pytest.raises(SettingsError, match=r"There is a file already; .*--force"):
        compare_visits(*runs, pairs(tmp_path), out)
    assert out.read_text() == "mine"
    compare_visits(*runs, pairs(tmp_path, "one.dcm,1.dcm"), out, force=True)
    assert out.read_text() != "mine"


def test_compare_visits_does_not_import_torch() -> None:
    code = "import sys, kneematch.evaluation.longitudinal; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
