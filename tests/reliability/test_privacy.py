"""No text of a DICOM header reaches any output, whether the film is good or broken."""

import struct
from pathlib import Path

import pydicom
from pydicom.datadict import DicomDictionary

from program import SEARCH, Run

SECRET = "ZZPATIENTZZ"
SECRET_BYTES = (b"ZZPATIENT", b"4711471147", b"18990807")
VALUES = {  # by type of element
    **dict.fromkeys(("LO", "SH", "PN", "LT", "ST", "UT", "UC", "AE", "CS"), SECRET),
    "UI": "1.2.3.4711471147",
    "DA": "18990807",
    "DS": "4711471147",
    "IS": "471147114",
    "AS": "018Y",
}
# Elements that decide whether a film is good; the others are free text to kneematch.
NEEDED = ("TransferSyntaxUID", "PhotometricInterpretation", "PixelSpacing", "ImagerPixelSpacing")
NEEDED += ("NumberOfFrames", "RescaleSlope", "PixelAspectRatio", "SpecificCharacterSet")
NEEDED += ("ImageLaterality", "Laterality", "NominalScannedPixelSpacing")


def fill(path: Path) -> None:
    """Write recognisable text into every element of the dictionary that can hold any."""
    dataset = pydicom.dcmread(path)
    for tag, (vr, _, _, retired, keyword) in DicomDictionary.items():
        if vr in VALUES and tag >> 16 > 2 and not retired and keyword and keyword not in NEEDED:
            dataset.add_new(tag, vr, VALUES[vr])
    dataset.save_as(path)


def break_in_many_ways(path: Path) -> None:
    """Write copies of a film in which one element has a wrong type, length or value."""
    whole = path.read_bytes()
    dataset = pydicom.dcmread(path)
    tags = [*dataset.file_meta.keys(), *dataset.keys()]
    few = [tag for tag in tags if tag.group != 0x0008 or tag.element < 0x0100][:12]
    few += [tag for tag in tags if tag.group in (0x0028, 0x7FE0)]
    for number, tag in enumerate(few):
        at = whole.index(struct.pack("<HH", tag.group, tag.element))
        for vr in (b"FD", b"SQ"):
            text = SECRET.encode()
            broken = whole[: at + 4] + vr + struct.pack("<H", len(text)) + text + whole[at + 8 :]
            path.with_name(f"broken-{number}-{vr.decode()}.dcm").write_bytes(broken)
        path.with_name(f"cut-{number}.dcm").write_bytes(whole[: at + 7])


def test_outputs_hold_no_text_of_a_header(folder: Path, run: Run) -> None:
    film = folder / "phantom-00000.dcm"
    fill(film)
    break_in_many_ways(film)
    (folder / "phantom-00001.dcm").write_bytes(
        film.read_bytes().replace(b"MONOCHROME2", SECRET.encode())
    )
    kinds = ("--crops", "--overlays", "--export", "coco")
    done = run("detect", ".", "-o", "out", *SEARCH, *kinds)
    assert done.returncode == 1, done.stderr
    failures = (folder / "out" / "failures.csv").read_text()
    assert failures.count("\n") > 40
    assert "The PhotometricInterpretation is unknown" in failures
    said = done.stdout.encode() + done.stderr.encode()
    written = [path for path in (folder / "out").rglob("*") if path.is_file()]
    assert len(written) > 10
    for name, content in [("said", said), *((path.name, path.read_bytes()) for path in written)]:
        for secret in SECRET_BYTES:
            assert secret not in content, name
