"""DICOM objects, read back: they refer to the film, lie where the area is, and carry its study."""

import math
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import highdicom as hd
import numpy as np
import pydicom
import pytest
from pydicom.data import get_testdata_file
from pydicom.sr.codedict import codes

from detections import Knees, make_detection
from kneematch.films.radiograph import Radiograph
from kneematch.films.read import read
from kneematch.knee.detection import Detection
from kneematch.knee.measure import UNITS, JointMeasures, Outlines
from kneematch.run.artifacts import VisitedFilm
from kneematch.run.config import DICOM_OBJECTS
from kneematch.run.film_record import FilmRecord
from kneematch.run.outputs.dicom import export_dicom
from kneematch.run.outputs.dicom_sr import MEASURES, outline_on_film
from kneephantoms.files import write_dicom

REPORT, PICTURE, SEGMENTS = "film-report.dcm", "film-picture.dcm", "film-segments.dcm"
BOTH = {REPORT, PICTURE}


class Export:
    """Writes the objects of a film, and reads them back."""

    def __init__(self, source: Path, film: Radiograph) -> None:
        self.source, self.film, self.out = source, film, source.parent / "out"
        self.out.mkdir()

    def change_header(self, **elements: Any) -> None:
        dataset = pydicom.dcmread(self.source)
        for keyword, value in elements.items():
            if value is None:
                delattr(dataset, keyword)
            else:
                setattr(dataset, keyword, value)
        dataset.save_as(self.source)

    def __call__(self, *knees: Detection, kinds: tuple[str, ...] = ("sr", "sc")) -> str:
        """Replace the objects that are there; return why some are missing."""
        for path in self.out.iterdir():
            path.unlink()
        record = FilmRecord(0, str(self.source), "film", knees=knees)
        files, reason = export_dicom(VisitedFilm(record, self.film, self.source), self.out, kinds)
        self.made = {path.name for path in self.out.iterdir()}
        assert self.made == {*files}
        return reason

    def header(self) -> pydicom.Dataset:
        return pydicom.dcmread(self.source)

    def report(self) -> pydicom.Dataset:
        return pydicom.dcmread(self.out / REPORT)

    def picture(self) -> pydicom.Dataset:
        return pydicom.dcmread(self.out / PICTURE)

    def groups(self) -> Any:
        return hd.sr.srread(self.out / REPORT).content.get_planar_roi_measurement_groups()

    def content(self, knee: int) -> list[pydicom.Dataset]:
        """The items of a knee's measurement group."""
        return list(self.groups()[knee][0].ContentSequence)


@pytest.fixture
def export(tmp_path: Path, film: Radiograph) -> Export:
    path = tmp_path / "Secret^Name.dcm"
    write_dicom(path, film.pixels, mm_per_px=0.5, laterality="B")
    return Export(path, film)


def test_export_dicom_keeps_the_films_patient_and_study(export: Export, knees: Knees) -> None:
    told = {"PatientID": "0815", "PatientName": "Doe^Jane", "PatientSex": "F"}
    told |= {"StudyDate": "20200229", "AccessionNumber": "A7", "PatientBirthDate": "19501231"}
    export.change_header(**told)
    assert (export(*knees), export.made) == ("", BOTH)
    header = export.header()
    instances = set()
    for made in (export.report(), export.picture()):
        assert made.StudyInstanceUID == header.StudyInstanceUID
        assert {keyword: str(made[keyword].value) for keyword in told} == told
        instances |= {made.SOPInstanceUID, made.SeriesInstanceUID}
        assert made.file_meta.MediaStorageSOPInstanceUID == made.SOPInstanceUID
    assert len(instances | {header.SOPInstanceUID, header.SeriesInstanceUID}) == 6


def test_structured_report_has_a_region_per_knee_on_the_film(export: Export, knees: Knees) -> None:
    export(*knees)
    header = export.header()
    sides = codes.SCT.Right, codes.SCT.Left
    for group, knee, side in zip(export.groups(), knees, sides, strict=True):
        assert group.roi.GraphicType == "POLYLINE"
        points = group.roi.value
        np.testing.assert_allclose(points[:4], knee.corners, atol=1e-4)
        assert (points[0] == points[-1]).all()
        (reference,) = group.roi.ContentSequence[0].ReferencedSOPSequence
        assert reference.ReferencedSOPInstanceUID == header.SOPInstanceUID
        (site,) = group.finding_sites
        assert (site.value, site.laterality) == (codes.SCT.KneeJoint, side)
    report = export.report()
    (evidence,) = report.CurrentRequestedProcedureEvidenceSequence
    (series,) = evidence.ReferencedSeriesSequence
    assert series.SeriesInstanceUID == header.SeriesInstanceUID
    assert series.ReferencedSOPSequence[0].ReferencedSOPInstanceUID == header.SOPInstanceUID


@pytest.mark.parametrize(("mm_per_px", "unit", "size"), [(0.5, "mm", 40), (None, "{pixels}", 80)])
def test_structured_report_measures_in_millimetres_where_it_can(
    export: Export, knees: Knees, mm_per_px: float | None, unit: str, size: float
) -> None:
    export(*(replace(knee, mm_per_px=mm_per_px) for knee in knees))
    width, height, loss = export.groups()[0].get_measurements()
    assert (width.name, height.name) == (codes.SCT.Width, codes.DCM.Height)
    assert (width.value, height.value) == pytest.approx((size, 0.75 * size))
    assert width.unit.CodeValue == height.unit.CodeValue == unit
    assert (loss.name.meaning, loss.value, loss.unit.CodeValue) == ("Matching loss", 0.125, "1")


FLAGGED = {"needs_review": True, "reasons": ("sides disagree", "joint cut by the edge")}


def named(items: list[pydicom.Dataset], meaning: str) -> list[pydicom.Dataset]:
    return [item for item in items if item.ConceptNameCodeSequence[0].CodeMeaning == meaning]


def test_structured_report_has_reasons_decision_and_landmarks_on_the_film(
    export: Export, knees: Knees
) -> None:
    points = {"plateau_left": (40.5, 90.25), "off": (-3.0, 90.0)}
    told = replace(knees[1], **FLAGGED, decision="corrected", landmarks=points)
    export(knees[0], told)
    for number, (answer, reasons, decision) in enumerate(
        [("No", [], []), ("Yes", ["sides disagree", "joint cut by the edge"], ["corrected"])]
    ):
        content = export.content(number)
        (review,) = named(content, "Needs review by a person")
        assert review.ConceptCodeSequence[0].CodeMeaning == answer
        assert [item.TextValue for item in named(content, "Reason for review")] == reasons
        assert [item.TextValue for item in named(content, "Decision of the reviewer")] == decision
    (item,) = named(export.content(1), "Landmark")
    assert item.TextValue == "plateau_left"
    (place,) = item.ContentSequence
    assert (place.GraphicType, list(place.GraphicData)) == ("POINT", [40.5, 90.25])
    (image,) = place.ContentSequence
    instance = image.ReferencedSOPSequence[0].ReferencedSOPInstanceUID
    assert instance == export.header().SOPInstanceUID


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


def test_structured_report_has_the_measures_of_the_joint(export: Export, knees: Knees) -> None:
    export(replace(knees[0], **MEASURED))
    content = export.content(0)
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


def test_structured_report_says_that_there_is_no_frontal_knee(export: Export) -> None:
    assert (export(), export.made) == ("", {REPORT})
    (group,) = hd.sr.srread(export.out / REPORT).content.get_image_measurement_groups()
    (found,) = group.get_qualitative_evaluations()
    assert (found.name.meaning, found.value) == ("Frontal view of a knee joint", codes.DCM.Absent)
    assert "Error" not in checked("dciodvfy", export.out / REPORT)


def test_segmentation_has_the_bones_and_the_joint_space(export: Export, knees: Knees) -> None:
    export(replace(knees[0], measures=JointMeasures.from_outlines(BONES)), kinds=("seg",))
    segments = hd.seg.segread(export.out / SEGMENTS)
    labels = [each.SegmentLabel for each in segments.SegmentSequence]
    assert labels == ["Femur R", "Tibia R", "Joint space R"]
    assert "ContentCreatorName" in segments  # of type 2: it may be empty, but not missing
    femur, tibia, space = segments.pixel_array.astype(bool)
    assert space.shape == export.film.size
    assert space[98, 42:108].all()  # between the borders at 96 and 100
    assert not space[95].any()
    assert not space[101].any()
    assert femur[60:95, 50:100].all()
    assert not femur[96:].any()
    assert tibia[102:140, 50:100].all()
    assert not tibia[:101].any()


def test_secondary_capture_shows_doubts_and_knees_only(export: Export, knees: Knees) -> None:
    def picture(*found: Detection) -> Any:
        export(*found)
        return export.picture().pixel_array.astype(int)

    def red(shown: Any) -> int:
        return int(((shown[..., 0] - shown[..., 1:].max(-1)) > 120).sum())

    shown = picture(*knees)
    assert red(shown) < 30
    assert red(picture(knees[0], replace(knees[1], **FLAGGED))) > 300
    hip = replace(make_detection("right", (150.0, 40.0), (30.0, 30.0)), template="hip")
    assert np.array_equal(picture(*knees, hip), shown)


@pytest.mark.parametrize(
    ("known", "kept", "side"),
    [(True, (0, 1), ""), (True, (0,), "R"), (True, (1,), "L"), (False, (0,), "")],
)
def test_export_dicom_states_laterality_where_there_is_one(
    export: Export, knees: Knees, known: bool, kept: tuple[int, ...], side: str
) -> None:
    found = [knees[k] if known else replace(knees[k], laterality="") for k in kept]
    export(*found)
    assert (export.picture()["Laterality"].value or "") == side
    for group in export.groups():
        assert (group.finding_sites[0].laterality is not None) == known


def tool(name: str) -> str:
    """The path of a command, or a skipped test."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed (Debian: apt install dicom3tools dcmtk)")
    return path


def checked(name: str, *arguments: str | Path) -> str:
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
def test_dciodvfy_and_dcmtk_find_no_error(
    export: Export, knees: Knees, case: str, kept: tuple[int, ...]
) -> None:
    for name in ("dciodvfy", "dsrdump"):
        tool(name)
    found = [replace(knees[k], **VALIDATED[case]) for k in kept]
    assert export(*found, kinds=DICOM_OBJECTS) == ""
    assert export.made == BOTH | ({SEGMENTS} if case == "measured" else set())
    for path in (export.source, *export.out.iterdir()):
        told = checked("dciodvfy", path)
        assert [line for line in told.splitlines() if line.startswith("Error")] == [], path
    dumped = checked("dsrdump", "+Ps", export.out / REPORT)
    assert ("Error" in dumped, "plateau_left" in dumped) == (False, case == "flagged")
    checked("dcmj2pnm", export.out / PICTURE, export.out / "picture.ppm")


def test_secondary_capture_shows_the_outlines_and_names_its_source(
    export: Export, knees: Knees
) -> None:
    export(*knees)
    capture = export.picture()
    (origin,) = capture.SourceImageSequence
    assert origin.ReferencedSOPInstanceUID == export.header().SOPInstanceUID
    assert not capture.file_meta.TransferSyntaxUID.is_compressed  # any server takes it
    assert capture.PixelSpacing == [0.5, 0.5]
    shown = capture.pixel_array.astype(int)[:200]  # the text is below
    assert shown.shape == (200, 300, 3)
    colourful = (shown.max(-1) - shown.min(-1)) > 60
    x, y = knees[0].corners[0].round().astype(int)
    assert colourful[y - 3 : y + 4, x - 3 : x + 4].sum() > 10
    assert not colourful[95:105, 70:80].any()


def test_export_dicom_cuts_an_area_at_the_edge(export: Export) -> None:
    assert export(make_detection("right", (290.0, 80.0), (60.0, 80.0))) == ""
    (group,) = export.groups()
    assert group.roi.value.min(0).tolist() == [250, 50]
    assert group.roi.value.max(0).tolist() == [300, 110]
    assert group.get_measurements()[0].value == 80  # of the whole area, in pixels
    off = make_detection("left", (-900.0, -900.0), (60.0, 80.0))
    assert ("No joint area" in export(off), export.made) == (True, set())


def test_outline_on_film_keeps_points_inside_and_adds_some_at_the_edge(knees: Knees) -> None:
    side = 10 * 2**0.5
    diamond = make_detection("right", (0.0, 0.0), (side, side), 45.0)
    points = outline_on_film(diamond, (100, 100))
    assert {tuple(point) for point in points.round(9)} == {(10, 0), (0, 10), (0, 0)}
    outside = make_detection("right", (-50.0, -50.0), (side, side), 45.0)
    assert outline_on_film(outside, (100, 100)).shape == (0, 2)


REASONS: list[tuple[dict[str, Any], str]] = [
    ({"SOPInstanceUID": None}, "lacks SOPInstanceUID"),
    ({"StudyInstanceUID": None, "SeriesInstanceUID": None}, "StudyInstanceUID and Series"),
    ({"SOPClassUID": "1.2.3.4", "PatientName": "Doe^Jane"}, "does not keep to the standard"),
]


@pytest.mark.parametrize(("elements", "reason"), REASONS)
def test_export_dicom_gives_a_reason_without_quoting_the_header(
    export: Export, knees: Knees, elements: dict[str, Any], reason: str
) -> None:
    export.change_header(**elements)
    told = export(*knees)
    assert (reason in told, "Doe" in told, export.made) == (True, False, set())


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
    export: Export, knees: Knees, odd: dict[str, Any]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pydicom.config.settings, "_writing_validation_mode", pydicom.config.IGNORE)
        export.change_header(**odd)
    assert (export(*knees), export.made) == ("", BOTH)
    if "PatientName" in odd:
        assert export.report().PatientName == (odd["PatientName"] or "")


@pytest.mark.parametrize(
    ("charset", "patient"),
    [("ISO_IR 100", "Mäki^Åke"), ("ISO_IR 192", "Mäki^Åke"), (None, "Maki^Ake")],
)
def test_export_dicom_names_keep_their_letters(
    export: Export, knees: Knees, charset: str | None, patient: str
) -> None:
    export.change_header(SpecificCharacterSet=charset, PatientName=patient)
    drawn = replace(knees[0], landmarks={"Výčnělek": (80.0, 90.0)})
    export(drawn, knees[1])
    assert "'Výčnělek'" in str(export.report())
    for made in (export.report(), export.picture()):
        assert str(made.PatientName) == patient


@pytest.mark.parametrize("name", ["CT_small.dcm", "JPEG2000.dcm", "MR_small_bigendian.dcm"])
def test_export_dicom_takes_films_of_others(tmp_path: Path, name: str) -> None:
    path = Path(shutil.copy(str(get_testdata_file(name)), tmp_path))
    export = Export(path, read(path))
    height, width = export.film.size
    found = make_detection("right", (width / 2, height / 2), (24.0, 32.0), -3.0)
    assert (export(found), export.made) == ("", BOTH)
    (group,) = export.groups()
    np.testing.assert_allclose(group.roi.value[:4], found.corners, atol=1e-4)
