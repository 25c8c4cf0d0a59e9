"""DICOM objects, read back: they refer to the film, lie where the area is, and carry its study."""

import math
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import highdicom as hd
import numpy as np
import pydicom
import pytest
from pydicom.data import get_testdata_file
from pydicom.sr.codedict import codes

from detections import make_detection
from kneematch.films.radiograph import Radiograph
from kneematch.films.read import read
from kneematch.knee.detection import Detection
from kneematch.knee.measure import UNITS, JointMeasures, Outlines
from kneematch.run.artifacts import VisitedFilm
from kneematch.run.config import DICOM_OBJECTS
from kneematch.run.film_record import FilmRecord
from kneematch.run.outputs.dicom import export_dicom
from kneematch.run.outputs.dicom_sr import MEASURES, outline_on_film, structured_report
from kneephantoms.files import write_dicom, write_png16

Knees = tuple[Detection, Detection]
ALL = ("film-report.dcm", "film-picture.dcm")
SEGMENTS = "film-segments.dcm"


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


class Exported(NamedTuple):
    """The files that are there, and why others are not."""

    files: tuple[str, ...] = ()
    reason: str = ""


def exported(
    source: Path, film: Radiograph, knees: Any, kinds: tuple[str, ...] = ("sr", "sc")
) -> tuple[Exported, Path]:
    out = source.parent / "out"
    out.mkdir(exist_ok=True)
    record = FilmRecord(0, str(source), "film", knees=tuple(knees))
    files, reason = export_dicom(VisitedFilm(record, film, source), out, kinds)
    assert {*files} <= {path.name for path in out.iterdir()} <= {*ALL, SEGMENTS}
    return Exported(tuple(name for name in ALL if (out / name).exists()), reason), out


def groups(out: Path) -> Any:
    document = hd.sr.srread(out / "film-report.dcm")
    return document.content.get_planar_roi_measurement_groups()


def test_export_dicom_keeps_the_films_patient_and_study(
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
    assert len(instances | {header.SOPInstanceUID, header.SeriesInstanceUID}) == 6


def test_structured_report_has_a_region_per_knee_on_the_film(
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
def test_structured_report_measures_in_millimetres_where_it_can(
    source: Path, film: Radiograph, knees: Knees, mm_per_px: float | None, unit: str, size: float
) -> None:
    _, out = exported(source, film, [replace(knee, mm_per_px=mm_per_px) for knee in knees])
    width, height, loss = groups(out)[0].get_measurements()
    assert (width.name, height.name) == (codes.SCT.Width, codes.DCM.Height)
    assert (width.value, height.value) == pytest.approx((size, 0.75 * size))
    assert width.unit.CodeValue == height.unit.CodeValue == unit
    assert (loss.name.meaning, loss.value, loss.unit.CodeValue) == ("Matching loss", 0.125, "1")


FLAGGED = {"needs_review": True, "reasons": ("sides disagree", "joint cut by the edge")}


def content_of(out: Path, knee: int) -> list[pydicom.Dataset]:
    """The items of a knee's measurement group."""
    document = hd.sr.srread(out / "film-report.dcm")
    found = document.content.get_planar_roi_measurement_groups()[knee]
    return list(found[0].ContentSequence)


def named(items: list[pydicom.Dataset], meaning: str) -> list[pydicom.Dataset]:
    return [item for item in items if item.ConceptNameCodeSequence[0].CodeMeaning == meaning]


def test_structured_report_has_reasons_decision_and_landmarks_on_the_film(
    source: Path, film: Radiograph, knees: Knees
) -> None:
    points = {"plateau_left": (40.5, 90.25), "off": (-3.0, 90.0)}
    told = replace(knees[1], **FLAGGED, decision="corrected", landmarks=points)
    _, out = exported(source, film, [knees[0], told])
    for number, (answer, reasons, decision) in enumerate(
        [("No", [], []), ("Yes", ["sides disagree", "joint cut by the edge"], ["corrected"])]
    ):
        content = content_of(out, number)
        (review,) = named(content, "Needs review by a person")
        assert review.ConceptCodeSequence[0].CodeMeaning == answer
        assert [item.TextValue for item in named(content, "Reason for review")] == reasons
        assert [item.TextValue for item in named(content, "Decision of the reviewer")] == decision
    (item,) = named(content_of(out, 1), "Landmark")
    assert item.TextValue == "plateau_left"
    (place,) = item.ContentSequence
    assert (place.GraphicType, list(place.GraphicData)) == ("POINT", [40.5, 90.25])
    (image,) = place.ContentSequence
    instance = image.ReferencedSOPSequence[0].ReferencedSOPInstanceUID
    assert instance == pydicom.dcmread(source).SOPInstanceUID


X = np.linspace(40, 110, 11)
OUTLINES = Outlines(
    *(np.stack([X, np.full(11, y)], axis=1) for y in (96, 100)),
    *("right", np.full(11, 0.6), np.full(11, 0.8)),
    mm_per_px=0.5,
)
MEASURED = {"measures": JointMeasures.from_outlines(OUTLINES)}
BONES = replace(
    OUTLINES,
    femur_sides=(np.array([[45.0, 50], [40, 90]]), np.array([[105.0, 50], [110, 90]])),
    tibia_sides=(np.array([[40.0, 105], [45, 150]]), np.array([[110.0, 105], [105, 150]])),
)


def test_structured_report_has_the_measures_of_the_joint(
    source: Path, film: Radiograph, knees: Knees
) -> None:
    _, out = exported(source, film, [replace(knees[0], **MEASURED)])
    content = content_of(out, 0)
    (width,) = named(content, "Joint-space width at x = 0.250")
    (sd,) = named(width.ContentSequence, "Standard deviation of the measure")
    for item, expected in ((width, 2), (sd, 0.5)):  # 4 and 1 pixels of 0.5 mm
        (value,) = item.MeasuredValueSequence
        assert float(value.NumericValue) == pytest.approx(expected)
        assert value.MeasurementUnitsCodeSequence[0].CodeValue == "mm"
    (narrowest,) = named(content, "Medial minimum joint-space width")
    (derivation,) = named(narrowest.ContentSequence, "Derivation")
    assert derivation.ConceptCodeSequence[0].CodeMeaning == "Minimum"
    (site,) = named(narrowest.ContentSequence, "Finding Site")
    (part,) = named(site.ContentSequence, "Topographical modifier")
    assert part.ConceptCodeSequence[0].CodeMeaning == "Medial"
    assert named(content, "Tibiofemoral angle") == []  # the shafts are too short
    femur, tibia = named(content, "Border of a bone at the joint")
    assert (femur.TextValue, tibia.TextValue) == ("femur", "tibia")
    assert femur.ContentSequence[0].GraphicType == "POLYLINE"
    assert len({name.upper()[:16] for name in UNITS}) == len(UNITS)  # codes are distinct
    assert MEASURES.keys() < UNITS.keys()
    assert named(content, "Joint-space width at x = 0.300") == []  # tables have it


def test_structured_report_says_that_there_is_no_frontal_knee(
    source: Path, film: Radiograph
) -> None:
    result, out = exported(source, film, [])
    assert result == Exported(ALL[:1])
    (group,) = hd.sr.srread(out / ALL[0]).content.get_image_measurement_groups()
    (found,) = group.get_qualitative_evaluations()
    assert (found.name.meaning, found.value) == ("Frontal view of a knee joint", codes.DCM.Absent)
    assert "Error" not in checked("dciodvfy", out / ALL[0])


def test_segmentation_has_the_bones_and_the_joint_space(
    source: Path, film: Radiograph, knees: Knees
) -> None:
    exported(
        source, film, [replace(knees[0], measures=JointMeasures.from_outlines(BONES))], ("seg",)
    )
    segments = hd.seg.segread(source.parent / "out" / SEGMENTS)
    labels = [each.SegmentLabel for each in segments.SegmentSequence]
    assert labels == ["Femur R", "Tibia R", "Joint space R"]
    assert "ContentCreatorName" in segments  # of type 2: it may be empty, but not missing
    femur, tibia, space = segments.pixel_array.astype(bool)
    assert space.shape == film.size
    assert space[98, 42:108].all()  # between the borders at 96 and 100
    assert not space[95].any()
    assert not space[101].any()
    assert femur[60:95, 50:100].all()
    assert not femur[96:].any()
    assert tibia[102:140, 50:100].all()
    assert not tibia[:101].any()


def test_export_dicom_without_laterality_names_no_side(
    source: Path, film: Radiograph, knees: Knees
) -> None:
    result, out = exported(source, film, [replace(knee, laterality="") for knee in knees])
    assert result == Exported(ALL)
    assert all(group.finding_sites[0].laterality is None for group in groups(out))


def test_secondary_capture_of_a_flagged_knee_looks_flagged(
    source: Path, film: Radiograph, knees: Knees
) -> None:
    def red(detections: Any) -> int:
        _, out = exported(source, film, detections)
        shown = pydicom.dcmread(out / "film-picture.dcm").pixel_array.astype(int)
        return int(((shown[..., 0] - shown[..., 1:].max(-1)) > 120).sum())

    assert red(knees) < 30
    assert red([knees[0], replace(knees[1], **FLAGGED)]) > 300


def test_secondary_capture_shows_knees_only(source: Path, film: Radiograph, knees: Knees) -> None:
    hip = replace(make_detection("right", (150.0, 40.0), (30.0, 30.0)), template="hip")
    pictures = []
    for found in (knees, (*knees, hip)):
        _, out = exported(source, film, found)
        pictures.append(pydicom.dcmread(out / "film-picture.dcm").pixel_array)
    assert np.array_equal(*pictures)


@pytest.mark.parametrize(("kept", "side"), [((0, 1), ""), ((0,), "R"), ((1,), "L")])
def test_export_dicom_states_laterality_where_there_is_one(
    source: Path, film: Radiograph, knees: Knees, kept: tuple[int, ...], side: str
) -> None:
    _, out = exported(source, film, [knees[k] for k in kept])
    assert (pydicom.dcmread(out / ALL[1])["Laterality"].value or "") == side


def tool(name: str) -> str:
    """The path of a command, or a skipped test."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed (Debian: apt install dicom3tools dcmtk)")
    return path


def checked(name: str, *arguments: str | Path) -> str:
    """Run a command; return what it says."""
    done = subprocess.run(
        [tool(name), *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


VALIDATED: dict[str, dict[str, Any]] = {
    "plain": {},
    "flagged": FLAGGED | {"landmarks": {"plateau_left": (40.5, 90.0)}},
    "unknown side": {"laterality": ""},
    "measured": MEASURED,
    "corrected": {"loss": math.nan, "laterality": "", "decision": "corrected"},
}


@pytest.mark.parametrize("kept", [(0, 1), (1,)])
@pytest.mark.parametrize("case", list(VALIDATED))
def test_dciodvfy_finds_no_error(
    source: Path, film: Radiograph, knees: Knees, case: str, kept: tuple[int, ...]
) -> None:
    tool("dciodvfy")
    found = [replace(knees[k], **VALIDATED[case]) for k in kept]
    result, out = exported(source, film, found, DICOM_OBJECTS)
    assert result == Exported(ALL)
    made = [*ALL, *([SEGMENTS] if case == "measured" else [])]
    for path in (source, *(out / name for name in made)):
        told = checked("dciodvfy", path)
        assert [line for line in told.splitlines() if line.startswith("Error")] == [], path


def test_dcmtk_reads_every_object(source: Path, film: Radiograph, knees: Knees) -> None:
    tool("dsrdump")
    marked = replace(knees[1], **FLAGGED, landmarks={"plateau_left": (240.0, 90.0)})
    _, out = exported(source, film, [knees[0], marked])
    report, picture = (out / name for name in ALL)
    assert "Error" not in checked("dsrdump", "+Ps", report)
    assert "plateau_left" in checked("dsrdump", report)
    checked("dcmj2pnm", picture, out / "picture.ppm")


def test_secondary_capture_shows_the_outlines_and_names_its_source(
    source: Path, film: Radiograph, knees: Knees
) -> None:
    _, out = exported(source, film, knees)
    capture = pydicom.dcmread(out / "film-picture.dcm")
    (origin,) = capture.SourceImageSequence
    assert origin.ReferencedSOPInstanceUID == pydicom.dcmread(source).SOPInstanceUID
    assert not capture.file_meta.TransferSyntaxUID.is_compressed  # any server takes it
    assert capture.PixelSpacing == [0.5, 0.5]
    shown = capture.pixel_array.astype(int)[:200]  # the text is below
    assert shown.shape == (200, 300, 3)
    colourful = (shown.max(-1) - shown.min(-1)) > 60
    x, y = knees[0].corners[0].round().astype(int)
    assert colourful[y - 3 : y + 4, x - 3 : x + 4].sum() > 10
    assert not colourful[95:105, 70:80].any()


def test_export_dicom_cuts_an_area_at_the_edge(
    source: Path, film: Radiograph, knees: Knees
) -> None:
    beyond = make_detection("right", (290.0, 80.0), (60.0, 80.0))
    result, out = exported(source, film, [beyond])
    assert result.files == ALL
    (group,) = groups(out)
    assert group.roi.value.min(0).tolist() == [250, 50]
    assert group.roi.value.max(0).tolist() == [300, 110]
    assert group.get_measurements()[0].value == 80  # of the whole area, in pixels
    off = exported(source, film, [make_detection("left", (-900.0, -900.0), (60.0, 80.0))])[0]
    assert "No joint area" in off.reason


def test_outline_on_film_keeps_points_inside_and_adds_some_at_the_edge(knees: Knees) -> None:
    side = 10 * 2**0.5
    diamond = make_detection("right", (0.0, 0.0), (side, side), 45.0)
    points = outline_on_film(diamond, (100, 100))
    assert {tuple(point) for point in points.round(9)} == {(10, 0), (0, 10), (0, 0)}
    outside = make_detection("right", (-50.0, -50.0), (side, side), 45.0)
    assert outline_on_film(outside, (100, 100)).shape == (0, 2)


def test_export_dicom_gives_a_reason_for_a_film_that_is_not_dicom(
    tmp_path: Path, film: Radiograph, knees: Knees
) -> None:
    path = tmp_path / "a.png"
    write_png16(path, film.pixels)
    result, out = exported(path, film, knees)
    assert result.files == ()
    assert result.reason.startswith(f"{path}: The header lacks SOPClassUID")
    assert list(out.iterdir()) == []


REASONS: list[tuple[dict[str, Any], str]] = [
    ({"SOPInstanceUID": None}, "lacks SOPInstanceUID"),
    ({"StudyInstanceUID": None, "SeriesInstanceUID": None}, "StudyInstanceUID and Series"),
    ({"SOPClassUID": "1.2.3.4", "PatientName": "Doe^Jane"}, "does not keep to the standard"),
]


@pytest.mark.parametrize(("elements", "reason"), REASONS)
def test_export_dicom_gives_a_reason_without_quoting_the_header(
    source: Path, film: Radiograph, knees: Knees, elements: dict[str, Any], reason: str
) -> None:
    result, _ = exported(changed(source, **elements), film, knees)
    assert result.files == ()
    assert reason in result.reason
    assert "Doe" not in result.reason


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
def test_export_dicom_copes_with_odd_headers(
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


@pytest.mark.parametrize(
    ("charset", "patient"),
    [("ISO_IR 100", "Mäki^Åke"), ("ISO_IR 192", "Mäki^Åke"), (None, "Maki^Ake")],
)
def test_export_dicom_names_keep_their_letters(
    source: Path, film: Radiograph, knees: Knees, charset: str | None, patient: str
) -> None:
    changed(source, SpecificCharacterSet=charset, PatientName=patient)
    drawn = replace(knees[0], landmarks={"Výčnělek": (80.0, 90.0)})
    _, out = exported(source, film, [drawn, knees[1]])
    assert "'Výčnělek'" in str(pydicom.dcmread(out / "film-report.dcm"))
    assert {str(pydicom.dcmread(out / name).PatientName) for name in ALL} == {patient}


def test_structured_report_is_written_without_being_parsed(source: Path, knees: Knees) -> None:
    header = pydicom.dcmread(changed(source, SpecificCharacterSet=None))
    report = structured_report(header, knees, (200, 300))
    report.save_as(source.with_name("report.dcm"))
    assert report.get_item("ContentSequence").is_raw


@pytest.mark.parametrize("name", ["CT_small.dcm", "JPEG2000.dcm", "MR_small_bigendian.dcm"])
def test_export_dicom_takes_films_of_others(tmp_path: Path, knees: Knees, name: str) -> None:
    path = Path(shutil.copy(str(get_testdata_file(name)), tmp_path))
    film = read(path)
    height, width = film.size
    found = make_detection("right", (width / 2, height / 2), (24.0, 32.0), -3.0)
    result, _ = exported(path, film, [found])
    assert result == Exported(ALL)
    (group,) = groups(tmp_path / "out")
    np.testing.assert_allclose(group.roi.value[:4], found.corners, atol=1e-4)
