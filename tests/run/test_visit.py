"""Visits of films: what the user states where a header is silent."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pydicom
import pytest
from PIL import Image

from kneematch import DetectConfig, SynthConfig, detect_folder, synth
from kneematch.errors import Unreadable
from kneematch.films.radiograph import Radiograph
from kneematch.run import visit
from kneematch.run.database import Run
from kneephantoms import phantom
from kneephantoms.files import write_dicom
from tables import read_table


@pytest.mark.parametrize(("cropped", "hint"), [(False, True), (True, False)])
def test_visit_says_what_to_try_for_a_small_square_picture(
    tmp_path: Path, cropped: bool, hint: bool
) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (224, 224), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    found = detect_folder(tmp_path, tmp_path / "found", DetectConfig(cropped=cropped, workers=0))
    text = (found.out / "failures.csv").read_text(encoding="utf-8")
    assert "no frontal knee found" in text
    assert ("try --cropped" in text) == hint


def test_visit_divides_lengths_by_the_magnification_in_all_that_it_writes(tmp_path: Path) -> None:
    synth(tmp_path / "films", SynthConfig(1, size=(800, 600)))
    widths = []
    for magnification in (None, 1.25):  # the second run makes all anew, in the same folder
        config = DetectConfig(measure=True, export=("sr",), magnification=magnification, workers=0)
        found = detect_folder(tmp_path / "films" / "phantom-00000.dcm", tmp_path / "found", config)
        table = float(read_table(found.out / "measurements.csv")[0]["jsw_medial_minimum_mm"])
        objects = found.out / "dicom-objects"
        report = pydicom.dcmread(objects / "phantom-00000-report.dcm")
        reported = [
            float(item.MeasuredValueSequence[0].NumericValue)
            for item in report.iterall()
            if item.keyword == "ContentSequence"
            for item in item.value
            if "MeasuredValueSequence" in item
            and item.ConceptNameCodeSequence[0].CodeMeaning == "Medial minimum joint-space width"
        ]
        assert reported[0] == pytest.approx(table, abs=1e-3)
        widths.append(table)
    assert widths[0] == pytest.approx(1.25 * widths[1], abs=1e-3)


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A folder with two large films, one of them without a knee."""
    folder = tmp_path / "large"
    folder.mkdir()
    made = phantom(3, framing="single", size=(1300, 1000))
    Image.fromarray((255 * made.pixels).astype(np.uint8)).save(folder / "knee_L_1.png")
    noise = np.random.default_rng(0).random((1000, 1300), np.float32)
    write_dicom(folder / "noise.dcm", noise, mm_per_px=0.2, laterality="B", bits=12)
    return folder


def test_visit_takes_what_the_user_states_whether_a_copy_or_the_whole_film_is_read(
    large: Path, tmp_path: Path
) -> None:
    config = DetectConfig(side_from_name="_([RL])_", mm_per_px=0.3, workers=0)
    rows = {}
    for crops in (False, True):
        out = tmp_path / f"found-{crops}"
        detect_folder(large, out, replace(config, crops=crops))
        rows[crops] = read_table(out / "detections.csv"), read_table(out / "failures.csv")
        with Run(out) as run:
            films = run.query("SELECT height, width, mm_per_px FROM films ORDER BY path")
            assert films == [(1300, 1000, 0.3), (1000, 1300, 0.2)]
        counts = json.loads((out / "run.json").read_text())["counts"]
        assert (counts["films"], counts["no_knee"], counts["failed"]) == (1, 1, 0)
        assert "without a knee" in (out / "report.html").read_text()
    assert rows[False] == rows[True]
    (knee,), (failure,) = rows[True]
    told = knee["mm_per_px"], knee["laterality"], knee["laterality_source"]
    assert told == ("0.300000", "L", "name")
    assert (failure["status"], failure["reason"]) == ("no_knee", "no frontal knee found")


def test_visit_says_why_a_film_cannot_be_read_after_its_copy(
    large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = visit.read_isolated

    def taken_away(path: str, **how: bool) -> Radiograph:
        if not how.get("reduced") and path.endswith(".dcm"):
            raise Unreadable(f"{path}: The network is down.")
        return read(path, **how)

    monkeypatch.setattr(visit, "read_isolated", taken_away)
    detect_folder(large, tmp_path / "found", DetectConfig(workers=0))
    with Run(tmp_path / "found") as run:
        ((status, reason),) = run.query("SELECT status, reason FROM films WHERE path LIKE '%.dcm'")
    assert (status, "The network is down" in reason) == ("unreadable", True)  # it is tried again
