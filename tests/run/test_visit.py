"""Visits of films: what the user states where a header is silent."""

from pathlib import Path

import numpy as np
import pydicom
import pytest
from PIL import Image

from kneematch import DetectConfig, SynthConfig, detect_folder, synth
from kneephantoms import phantom
from tables import read_table


def test_visit_takes_side_and_spacing_from_the_user_where_the_header_is_silent(
    tmp_path: Path,
) -> None:
    made = phantom(3, framing="single", size=(600, 500))
    grey = Image.fromarray((255 * made.pixels).astype(np.uint8))
    for name in ("knee_L_1.png", "knee_2.png"):
        grey.save(tmp_path / name)
    config = DetectConfig(side_from_name="_([RL])_", mm_per_px=0.3, workers=0)
    found = detect_folder(tmp_path, tmp_path / "found", config)
    rows = {Path(row["film"]).name: row for row in read_table(found.out / "detections.csv")}
    assert {row["mm_per_px"] for row in rows.values()} == {"0.300000"}
    assert rows["knee_L_1.png"]["laterality_source"] == "name"
    assert rows["knee_L_1.png"]["laterality"] == "L"
    assert rows["knee_2.png"]["laterality_source"] != "name"


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
        config = DetectConfig(
            measure=True, export=("sr", "gsps"), magnification=magnification, workers=0
        )
        found = detect_folder(tmp_path / "films" / "phantom-00000.dcm", tmp_path / "found", config)
        table = float(read_table(found.out / "measurements.csv")[0]["jsw_medial_minimum_mm"])
        objects = found.out / "dicom-objects"
        state = pydicom.dcmread(objects / "phantom-00000-state.dcm")
        label = state.GraphicAnnotationSequence[0].TextObjectSequence[0].UnformattedTextValue
        assert f"medial {table:.1f}" in label
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
