"""DICOM objects, read back: they refer to the film, lie where the area is, and carry its study."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import highdicom as hd
import numpy as np
import pydicom
import pytest
from pydicom.data import get_testdata_file
from pydicom.sr.codedict import codes

from kneematch.detection.detection import Detection
from kneematch.export.dicom import Exported, export_dicom, outline_on_film
from kneematch.io.radiograph import Radiograph
from kneematch.io.read import read
from kneematch.io.write import write_dicom, write_png16

Knees = tuple[Detection, Detection]
ALL = ("film-report.dcm", "film-state.dcm", "film-picture.dcm")


@pytest.fixture
def source(tmp_path: Path, film: Radiograph) -> Path:
    path = tmp_path / "Secret^Name.dcm"
    write_dicom(path, film.pixels, mm_per_px=0.5, laterality="B")
    return path


def changed(path: Path, **elements: Any) -> Path:
    """The file with other elements in its header."""
    dataset = pydicom.dcmread(path)
    for keyword, value in elements.items():
        if value is None:
            delattr(dataset, keyword)
        else:
            setattr(dataset, keyword, value)
    dataset.save_as(path)
    return path


def exported(source: Path, film: Radiograph, knees: Any) -> tuple[Exported, Path]:
    out = source.parent / "out"
    out.mkdir(exist_ok=True)
    return export_dicom(source, film, knees, out, "film"), out


def groups(out: Path) -> Any:
    document = hd.sr.srread(out / "film-report.dcm")
    return document.content.get_planar_roi_measurement_groups()


def test_three_objects_belong_to_the_films_patient_and_study(
    source: Path, film: Radiograph, knees: Knees
) -> None:
    told = {"PatientID": "0815", "PatientName": "Doe^Jane", "PatientSex": "F"}
    told |= {"StudyDate": "20200229", "AccessionNumber": "A7", "PatientBirthDate": "19501231"}
    changed(source, **told)
    result, out = exported(source, film, knees)
    assert result == Exported(ALL)
    assert sorted(path.name for path in out.iterdir()) == sorted(ALL)
    header = pydicom.dcmread(source)
    instances = set()
    for name in ALL:
        made = pydicom.dcmread(out / name)
        assert made.StudyInstanceUID == header.StudyInstanceUID
        assert {keyword: str(made[keyword].value) for keyword in told} == told
        instances |= {made.SOPInstanceUID, made.SeriesInstanceUID}
        assert made.file_meta.MediaStorageSOPInstanceUID == made.SOPInstanceUID
    assert len(instances | {header.SOPInstanceUID, header.SeriesInstanceUID}) == 8


def test_the_report_has_a_region_per_knee_on_the_film(
    source: Path, film: Radiograph, knees: Knees
) -> None:
    _, out = exported(source, film, knees)
    header = pydicom.dcmread(source)
    found = groups(out)
    assert len(found) == 2
    for group, knee, side in zip(found, knees, (codes.SCT.Right, codes.SCT.Left), strict=True):
        assert group.roi.GraphicType == "POLYLINE"
        points = group.roi.value
        np.testing.assert_allclose(points[:4], knee.corners, atol=1e-4)
        assert (points[0] == points[-1]).all()
        (reference,) = group.roi.ContentSequence[0].ReferencedSOPSequence
        assert reference.ReferencedSOPInstanceUID == header.SOPInstanceUID
        (site,) = group.finding_sites
        assert (site.value, site.laterality) == (codes.SCT.KneeJoint, side)
    report = pydicom.dcmread(out / "film-report.dcm")
    (evidence,) = report.CurrentRequestedProcedureEvidenceSequence
    (series,) = evidence.ReferencedSeriesSequence
    assert series.SeriesInstanceUID == header.SeriesInstanceUID
    assert series.ReferencedSOPSequence[0].ReferencedSOPInstanceUID == header.SOPInstanceUID


@pytest.mark.parametrize(("mm_per_px", "unit", "size"), [(0.5, "mm", 40), (None, "{pixels}", 80)])
def test_the_report_measures_in_millimetres_where_it_can(
    source: Path,
    film: Radiograph,
    knees: Knees,
    mm_per_px: float | None,
    unit: str,
    size: float,
) -> None:
    _, out = exported(source, film, [replace(knee, mm_per_px=mm_per_px) for knee in knees])
    width, height = groups(out)[0].get_measurements()
    assert (width.name, height.name) == (codes.SCT.Width, codes.DCM.Height)
    assert (width.value, height.value) == pytest.approx((size, 0.75 * size))
    assert width.unit.CodeValue == height.unit.CodeValue == unit


def test_the_presentation_state_draws_the_outlines(
    source: Path, film: Radiograph, knees: Knees
) -> None:
    _, out = exported(source, film, knees)
    state = pydicom.dcmread(out / "film-state.dcm")
    instance = pydicom.dcmread(source).SOPInstanceUID
    (series,) = state.ReferencedSeriesSequence
    assert series.ReferencedImageSequence[0].ReferencedSOPInstanceUID == instance
    layers = [layer.GraphicLayer for layer in state.GraphicLayerSequence]
    assert layers == ["KNEE R", "KNEE L"]
    for item, knee, layer in zip(state.GraphicAnnotationSequence, knees, layers, strict=True):
        assert item.ReferencedImageSequence[0].ReferencedSOPInstanceUID == instance
        assert item.GraphicLayer == layer
        (line,) = item.GraphicObjectSequence
        assert (line.GraphicType, line.GraphicAnnotationUnits) == ("POLYLINE", "PIXEL")
        drawn = np.array(line.GraphicData).reshape(-1, 2)
        np.testing.assert_allclose(drawn[:4], knee.corners, atol=1e-4)
        assert item.TextObjectSequence[0].UnformattedTextValue == f"{knee.laterality} 0.12"


@pytest.mark.parametrize(("negative", "shape"), [(True, "INVERSE"), (False, "IDENTITY")])
def test_the_presentation_state_keeps_the_films_polarity(
    tmp_path: Path, film: Radiograph, knees: Knees, negative: bool, shape: str
) -> None:
    path = tmp_path / "a.dcm"
    write_dicom(path, film.pixels, mm_per_px=0.5, laterality="B", monochrome1=negative)
    _, out = exported(path, film, knees)
    assert pydicom.dcmread(out / "film-state.dcm").PresentationLUTShape == shape


def test_the_picture_shows_the_outlines_and_names_its_source(
    source: Path, film: Radiograph, knees: Knees
) -> None:
    _, out = exported(source, film, knees)
    capture = pydicom.dcmread(out / "film-picture.dcm")
    (origin,) = capture.SourceImageSequence
    assert origin.ReferencedSOPInstanceUID == pydicom.dcmread(source).SOPInstanceUID
    assert capture.LossyImageCompression == "01"
    assert capture.PixelSpacing == [0.5, 0.5]
    shown = capture.pixel_array.astype(int)
    assert shown.shape == (200, 300, 3)
    colourful = (shown.max(-1) - shown.min(-1)) > 60
    x, y = knees[0].corners[0].round().astype(int)
    assert colourful[y - 3 : y + 4, x - 3 : x + 4].sum() > 10
    assert not colourful[95:105, 70:80].any()


def test_an_area_past_the_edge_is_cut_at_the_edge(
    source: Path, film: Radiograph, knees: Knees
) -> None:
    beyond = replace(knees[1], corners=np.array([[250, 50], [330, 50], [330, 110], [250, 110]]))
    result, out = exported(source, film, [beyond])
    assert result.files == ALL
    (group,) = groups(out)
    assert group.roi.value.min(0).tolist() == [250, 50]
    assert group.roi.value.max(0).tolist() == [300, 110]
    assert group.get_measurements()[0].value == 40  # of the whole area


def test_an_outline_keeps_its_points_inside_and_gains_some_at_the_edge(knees: Knees) -> None:
    diamond = replace(knees[0], corners=np.array([[0, -10], [10, 0], [0, 10], [-10, 0]], float))
    points = outline_on_film(diamond, (100, 100))
    assert {tuple(point) for point in points} == {(10, 0), (0, 10), (0, 0)}
    outside = replace(knees[0], corners=diamond.corners - 50)
    assert outline_on_film(outside, (100, 100)).shape == (0, 2)


def test_an_area_off_the_film_is_a_reason(source: Path, film: Radiograph, knees: Knees) -> None:
    result, _ = exported(source, film, [replace(knees[0], corners=knees[0].corners - 900)])
    assert result.files == ()
    assert "no area on the film" in result.reason


def test_a_film_that_is_not_dicom_is_one_reason(
    tmp_path: Path, film: Radiograph, knees: Knees
) -> None:
    path = tmp_path / "a.png"
    write_png16(path, film.pixels)
    result, out = exported(path, film, knees)
    assert result.files == ()
    assert result.reason.startswith(f"{path}: not a DICOM; expected")
    assert list(out.iterdir()) == []


def test_a_film_in_colours_has_no_presentation_state(
    source: Path, film: Radiograph, knees: Knees
) -> None:
    result, _ = exported(changed(source, SamplesPerPixel=3), film, knees)
    assert result.files == (ALL[0], ALL[2])
    assert "colours" in result.reason


@pytest.mark.parametrize("keyword", ["SOPInstanceUID", "StudyInstanceUID", "SeriesInstanceUID"])
def test_a_film_without_identifiers_is_a_reason(
    source: Path, film: Radiograph, knees: Knees, keyword: str
) -> None:
    result, _ = exported(changed(source, **{keyword: None}), film, knees)
    assert result.files == ()
    assert f"without {keyword}" in result.reason


@pytest.mark.filterwarnings("ignore:Invalid value")
@pytest.mark.parametrize(
    "odd",
    [
        {"PatientSex": "X", "PatientBirthDate": "1950"},
        {"StudyTime": "25:99", "StudyDate": "yesterday"},
        {"PatientName": "Single", "SpecificCharacterSet": "ISO_IR 100"},
        dict.fromkeys(["PatientID", "PatientName", "StudyID", "AccessionNumber", "StudyDate"]),
        {"PatientOrientation": None},
    ],
)
def test_odd_headers_are_no_obstacle(
    source: Path, film: Radiograph, knees: Knees, odd: dict[str, Any]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pydicom.config.settings, "_writing_validation_mode", pydicom.config.IGNORE)
        changed(source, **odd)
    result, out = exported(source, film, knees)
    assert result == Exported(ALL)
    if "PatientName" in odd:
        name = pydicom.dcmread(out / "film-report.dcm").PatientName
        assert name == (odd["PatientName"] or "")


@pytest.mark.parametrize("charset", ["ISO_IR 100", "ISO_IR 192"])
def test_names_keep_their_letters(
    source: Path, film: Radiograph, knees: Knees, charset: str
) -> None:
    changed(source, SpecificCharacterSet=charset, PatientName="Mäki^Åke")
    _, out = exported(source, film, knees)
    assert {str(pydicom.dcmread(out / name).PatientName) for name in ALL} == {"Mäki^Åke"}


def test_a_header_beyond_help_is_a_reason_that_does_not_quote_it(
    source: Path, film: Radiograph, knees: Knees
) -> None:
    changed(source, SOPClassUID="1.2.3.4", PatientName="Doe^Jane")
    result, _ = exported(source, film, knees)
    assert result.files == ()
    assert "keeps to the standard" in result.reason
    assert "Doe" not in result.reason


@pytest.mark.parametrize("name", ["CT_small.dcm", "JPEG2000.dcm", "MR_small_bigendian.dcm"])
def test_films_of_others_are_exported(tmp_path: Path, knees: Knees, name: str) -> None:
    path = Path(str(get_testdata_file(name)))
    film = read(path)
    height, width = film.size
    corners = knees[1].corners * 0.4 + (width / 2 - 90, height / 2 - 40)
    (tmp_path / "out").mkdir()
    found = replace(knees[1], corners=corners)
    result = export_dicom(path, film, [found], tmp_path / "out", "film")
    assert result == Exported(ALL)
    (group,) = groups(tmp_path / "out")
    np.testing.assert_allclose(group.roi.value[:4], corners, atol=1e-4)
