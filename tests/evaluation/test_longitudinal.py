"""Changes between visits, from tables as runs write them."""

import hashlib
import hmac
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydicom import dcmread
from pydicom.config import IGNORE
from pydicom.dataelem import DataElement

from detections import make_detection, make_record
from kneematch.cli.main import main
from kneematch.errors import SettingsError
from kneematch.evaluation.longitudinal import compare_runs
from kneematch.knee.detection import Detection
from kneematch.knee.measure import JointMeasures, Outlines
from kneematch.run.config import DetectConfig
from kneematch.run.outputs.measurements import open_measurements
from kneephantoms import write_dicom
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


def patients(folder: Path, *rows: str, columns: str = "film,patient") -> Path:
    path = folder / "patients.csv"
    path.write_text("\n".join([columns, *rows, ""]))
    return path


def test_compare_runs_of_the_same_knees(runs: tuple[Path, Path], tmp_path: Path) -> None:
    # The second patient has no knee in common. A film may have a row per knee, as in knees.csv.
    on = patients(tmp_path, *["/a/one.dcm,p"] * 2, "1.dcm,p", "two.dcm,q", "2.dcm,q")
    result = compare_runs(runs, tmp_path / "out.csv", on=on)
    changes = {each.measure: each for each in result.changes}
    assert result.skipped == ["/a/two.dcm, /b/2.dcm: no knee at two visits"]
    command = ["compare", *map(str, runs), "--on", str(on), "-o", str(tmp_path / "again.csv")]
    assert main(command) == 1
    for suffix in (".csv", ".html"):
        made = [tmp_path.joinpath(name).with_suffix(suffix) for name in ("out", "again")]
        assert made[0].read_bytes() == made[1].read_bytes()
    assert (changes["jsw_x250_pct"].knees, changes["jsw_x250_pct"].visit) == (2, str(runs[1]))
    assert changes["jsw_x250_pct"].mean == pytest.approx(-0.75)  # -1.5 % and 0
    assert changes["jsw_x250_mm"].mean == pytest.approx(-0.6)  # of 80 mm
    left, right = read_table(tmp_path / "out.csv")
    assert (left["image_side_before"], left["film_after"]) == ("left", "/b/1.dcm")
    assert (left["patient"], left["visit_before"], left["visit_after"]) == ("p", *map(str, runs))
    assert (left["laterality"], left["paired_by"]) == ("", "image_side")
    assert float(left["jsw_x250_pct_change"]) == pytest.approx(-1.5)
    assert float(right["jsw_x250_pct_change"]) == 0


def test_compare_runs_writes_deviations_and_the_smallest_detectable_change(tmp_path: Path) -> None:
    visits = {
        "first": {"a": [("left", 20), ("right", 8)]},
        "second": {"a": [("left", 5), ("right", 8)]},
    }
    runs = [write_run(tmp_path / name, films) for name, films in visits.items()]
    result = compare_runs(runs, tmp_path / "out.csv", on=patients(tmp_path, "a,p"))
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
        (change,) = (each for each in result.changes if each.measure == f"{name}_{unit}")
        assert change.sdc == pytest.approx(limit, rel=1e-3)
        assert (change.beyond, change.knees) == (1, 2)


def test_compare_runs_of_three_visits_begins_where_a_knee_is_first_seen(tmp_path: Path) -> None:
    widths = {"a": {"R": 10}, "b": {"R": 9, "L": 8}, "c": {"R": 7, "L": 7}}
    films = {
        film: [(side, gap, which) for side, (which, gap) in zip(SIDES, knees.items(), strict=False)]
        for film, knees in widths.items()
    }
    run, columns = write_run(tmp_path / "all", films), "visit,film,patient"
    on = patients(tmp_path, "12,b,p", "0,a,p", "110,c,p", columns=columns)  # 110 after 12
    result = compare_runs(run, tmp_path / "out.csv", on=on)
    found = [
        (
            row["laterality"],
            row["visit_before"],
            row["visit_after"],
            float(row["jsw_x250_mm_change"]),
        )
        for row in read_table(tmp_path / "out.csv")
    ]
    expected = [("R", "0", "12", -0.4), ("R", "0", "110", -1.2), ("L", "12", "110", -0.4)]
    assert found == expected
    page = result.page.read_text()
    assert page.count("<figure>") == 2 + 2  # all knees, medial and lateral; each of two knees
    with pytest.raises(SettingsError, match="lacks the columns film and patient and visit"):
        compare_runs(run, tmp_path / "new.csv", on=patients(tmp_path, "a,p"))


def test_compare_runs_pairs_films_of_single_knees_of_a_visit(tmp_path: Path) -> None:
    films = {"r": [("left", 9, "R")], "l": [("left", 8, "L")]}
    runs = [write_run(tmp_path / name, films) for name in ("first", "second")]
    compare_runs(runs, tmp_path / "out.csv", on=patients(tmp_path, "r,p", "l,p"))
    rows = read_table(tmp_path / "out.csv")
    assert [(row["laterality"], row["film_after"]) for row in rows] == [("R", "r"), ("L", "l")]


def test_compare_runs_knows_patients_by_a_hash_of_their_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    pixels = np.random.default_rng(0).random((40, 40), dtype=np.float32)
    first = "SECRET-1" * 9  # longer than numbers may be
    numbers = {"one": first, "two": first, "other": "SECRET-2", "none": ""}
    for name, number in numbers.items():
        write_dicom(tmp_path / f"{name}.dcm", pixels, mm_per_px=None, laterality="B")
        dataset = dcmread(tmp_path / f"{name}.dcm")
        dataset["PatientID"] = DataElement("PatientID", "LO", number, validation_mode=IGNORE)
        dataset.save_as(tmp_path / f"{name}.dcm")
    salt = tmp_path / "salt"
    salt.write_text("a secret of the user\n")
    seen = [("left", 9, "R")]
    visits = ({"one.dcm": seen}, {"two.dcm": seen, "other.dcm": seen, "none.dcm": seen})
    runs = [write_run(tmp_path / str(k), films) for k, films in enumerate(visits)]
    command = ["compare", *map(str, runs), "--salt", str(salt), "--force"]
    assert main([*command, "-o", str(tmp_path / "out.csv")]) == 1
    (row,) = read_table(tmp_path / "out.csv")
    assert (row["film_before"], row["film_after"]) == ("one.dcm", "two.dcm")
    expected = hmac.new(b"a secret of the user", first.encode(), hashlib.sha256).hexdigest()
    assert row["patient"] == expected[:16]
    said = capsys.readouterr()
    assert "none.dcm: its header has no PatientID" in said.err
    files = [tmp_path / name for name in ("out.csv", "out.html")]
    for text in (said.out, said.err, *(file.read_text() for file in files)):
        assert "SECRET" not in text
    salt.write_bytes(b"short\n")
    assert main([*command, "-o", str(tmp_path / "out.csv")]) == 2
    assert "The key of --salt needs 16 or more bytes" in capsys.readouterr().err
    salt.unlink()
    assert main([*command, "-o", str(tmp_path / "out.csv")]) == 2
    assert "salt cannot be read: No such file" in capsys.readouterr().err


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
    out, on = tmp_path / "out.csv", patients(tmp_path, "a,p", "b,p")
    if not expected:
        with pytest.raises(SettingsError, match="a, b: no knee at two visits"):
            compare_runs(folders, out, on=on)
        return
    assert compare_runs(folders, out, on=on).knees == len(expected)
    names = "image_side_before", "image_side_after", "laterality", "paired_by"
    assert [" ".join(row[name] for name in names) for row in read_table(out)] == expected


def test_compare_skips_films_without_a_measured_knee_and_lists_ten(
    runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.csv"
    command = ["compare", *map(str, runs), "-o", str(out), "--on"]
    lost = [",p", *(f"hand-{k}.dcm,q" for k in range(11)), "2.dcm,"]
    assert main([*command, str(patients(tmp_path, *lost, "one.dcm,p", "1.dcm,p"))]) == 1
    said = capsys.readouterr()
    assert "skipped: an empty cell: no film with a measured knee\n" in said.err
    assert said.err.count("skipped: hand-") == 9
    assert "3 more films or patients skipped" in said.err
    assert f"{out}: 2 changes" in said.out
    assert [row["film_before"] for row in read_table(out)] == ["/a/one.dcm"] * 2
    for suffix in (".csv", ".html"):
        out.with_suffix(suffix).unlink()
    assert main([*command, str(patients(tmp_path, *lost))]) == 2
    assert "measured at two visits: an empty cell" in capsys.readouterr().err
    assert not out.exists()


def test_compare_runs_refuses_tables_without_a_film_of_the_runs(
    runs: tuple[Path, Path], tmp_path: Path
) -> None:
    out = tmp_path / "out.csv"
    with pytest.raises(SettingsError, match=r"three\.dcm: no film with a measured knee"):
        compare_runs(runs, out, on=patients(tmp_path, "three.dcm,p"))
    other = tmp_path / "other.csv"
    for text, reason in (
        ("a,b\n", "lacks the columns film and patient"),
        ("", "it is empty"),
        ("film,patient\n\none.dcm\n", "row 3 has 1 cells instead of 2"),
    ):
        other.write_text(text)
        with pytest.raises(SettingsError, match=reason):
            compare_runs(runs, out, on=other)
    with pytest.raises(SettingsError, match=r"No such file: .*measurements\.csv"):
        compare_runs((tmp_path, runs[1]), out, on=patients(tmp_path))
    with pytest.raises(SettingsError, match="table of patients"):
        compare_runs(runs, out)
    assert not out.exists()


def test_compare_runs_replaces_no_table_that_it_reads_and_others_with_force_only(
    runs: tuple[Path, Path], tmp_path: Path
) -> None:
    on, out = patients(tmp_path, "/a/one.dcm,p", "1.dcm,p"), tmp_path / "out.csv"
    for path in (on, runs[0] / "measurements.csv", runs[1] / "measurements.csv"):
        before = path.read_bytes()
        with pytest.raises(SettingsError, match="one of the tables to compare"):
            compare_runs(runs, path, on=on, force=True)
        assert path.read_bytes() == before
    for path in (out, out.with_suffix(".html")):
        path.write_text("mine")
        with pytest.raises(SettingsError, match="with `force`"):
            compare_runs(runs, out, on=on)
        assert path.read_text() == "mine"
        compare_runs(runs, out, on=on, force=True)
        assert path.read_text() != "mine"
        out.unlink()
