"""What is no film, or made to exhaust a reader, is refused in one line that says what to do."""

import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pydicom
import pytest
from PIL import Image
from pydicom import Dataset
from pydicom.uid import UID, DeflatedExplicitVRLittleEndian, ExplicitVRLittleEndian

from kneematch.errors import FilmError, NotAnImage, NotARadiograph, Unreadable
from kneematch.films.limits import MAX_BYTES
from kneematch.films.read import is_dicom, is_uncompressed, read
from kneephantoms.files import write_dicom, write_png16

SHIPPED = Path(pydicom.__file__).parent / "data" / "test_files"
GRADIENT = np.linspace(0, 1, 60 * 80, dtype=np.float32).reshape(60, 80)


def film(path: Path) -> Dataset:
    """A good film, to be spoilt and saved again."""
    write_dicom(path, GRADIENT, mm_per_px=0.1, laterality="B", entropy="bad")
    return pydicom.dcmread(path)


def save(dataset: Dataset, path: Path, syntax: UID = ExplicitVRLittleEndian) -> Path:
    dataset.file_meta.TransferSyntaxUID = syntax
    dataset.save_as(path)
    return path


def assert_refused(path: Path, kind: type[FilmError], found: str) -> None:
    with pytest.raises(kind, match=found) as caught:
        read(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert message.count("; ") >= 2
    assert "\n" not in message


@pytest.mark.parametrize("name", sorted(str(p.relative_to(SHIPPED)) for p in SHIPPED.rglob("*")))
def test_read_reads_or_refuses_each_file_that_pydicom_ships(name: str) -> None:
    path = SHIPPED / name
    refusal, ends = None, None
    try:
        pixels = read(path).pixels
        ends = (pixels.min(), pixels.max())
    except FilmError as error:
        refusal = str(error)
    assert ends == (0, 1) or (refusal is not None and refusal.startswith(f"{path}: "))
    assert "\n" not in (refusal or "")


def test_read_refuses_a_missing_file(tmp_path: Path) -> None:
    assert_refused(tmp_path / "gone.dcm", Unreadable, "No such file")
    with pytest.raises(Unreadable, match="No such file"):
        is_dicom(tmp_path / "gone.dcm")


def test_read_refuses_a_folder(tmp_path: Path) -> None:
    assert_refused(tmp_path, Unreadable, "a folder")


def test_read_does_not_wait_for_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert_refused(tmp_path / "pipe", Unreadable, "not a regular file")


def test_read_refuses_a_file_without_permission(tmp_path: Path) -> None:
    path = tmp_path / "film.dcm"
    film(path)
    path.chmod(0)
    code = (
        "import os, sys\n"
        "from kneematch.films.read import read\n"
        "if os.geteuid() == 0:\n"
        "    os.setuid(65534)\n"  # root may read everything, nobody may not
        "read(sys.argv[1])\n"
    )
    child = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False
    )
    assert f"Unreadable: {path}: Permission denied; " in child.stderr


def test_read_refuses_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "film.dcm").touch()
    assert_refused(tmp_path / "film.dcm", NotAnImage, "an empty file")


@pytest.mark.parametrize(
    "content", [b"x", b"film,side\n1,left\n" * 20, bytes(range(256)) * 9, b"GIF89a" + bytes(200)]
)
def test_read_refuses_unknown_content(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "film.dcm"
    path.write_bytes(content)
    assert not is_dicom(path)
    assert_refused(path, NotAnImage, "neither DICOM nor PNG, JPEG or TIFF")


def test_read_refuses_garbage_after_the_dicom_magic_word(tmp_path: Path) -> None:
    path = tmp_path / "film.dcm"
    path.write_bytes(bytes(128) + b"DICM" + bytes(range(255, 0, -1)) * 20)
    assert is_dicom(path)
    assert_refused(path, FilmError, "DICOM")


@pytest.mark.parametrize("name", ["film.png", "film.jpg", "film.tif"])
def test_read_never_takes_a_cut_picture_for_whole(tmp_path: Path, name: str) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (60, 80), np.uint8)
    Image.fromarray(noise).save(tmp_path / name)
    whole = (tmp_path / name).read_bytes()
    for part in np.linspace(0.05, 0.95, 19):
        (tmp_path / name).write_bytes(whole[: int(part * len(whole))])
        assert_refused(tmp_path / name, NotAnImage, "expected")


def test_read_refuses_several_frames(tmp_path: Path) -> None:
    dataset = film(tmp_path / "film.dcm")
    dataset.NumberOfFrames = 2
    dataset.PixelData = 2 * dataset.PixelData
    assert_refused(save(dataset, tmp_path / "film.dcm"), NotARadiograph, "more than one frame")


@pytest.mark.parametrize("keyword", ["Rows", "Columns"])
def test_read_refuses_a_film_of_no_size(tmp_path: Path, keyword: str) -> None:
    dataset = film(tmp_path / "film.dcm")
    setattr(dataset, keyword, 0)
    assert_refused(save(dataset, tmp_path / "film.dcm"), NotARadiograph, r" 0 |: 0 x")


def test_read_refuses_a_film_of_one_value(tmp_path: Path) -> None:
    dataset = film(tmp_path / "film.dcm")
    dataset.PixelData = np.full((60, 80), 99, np.uint16).tobytes()
    path = save(dataset, tmp_path / "film.dcm")
    assert_refused(path, NotARadiograph, "every pixel has the value 99")
    dataset.add_new("PixelPaddingValue", "US", 99)
    assert_refused(save(dataset, path), NotARadiograph, "every pixel has the value 99")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_read_refuses_nan_and_infinity(tmp_path: Path, value: float) -> None:
    dataset = film(tmp_path / "film.dcm")
    del dataset.PixelData
    pixels = GRADIENT.copy()
    pixels[3, 4] = value
    dataset.FloatPixelData = pixels.tobytes()
    dataset.BitsAllocated = 32
    assert_refused(save(dataset, tmp_path / "film.dcm"), NotARadiograph, "NaN or infinite")


def test_read_refuses_a_colour_dicom(tmp_path: Path) -> None:
    dataset = film(tmp_path / "film.dcm")
    dataset.PhotometricInterpretation = "RGB"
    dataset.SamplesPerPixel = 3
    dataset.PlanarConfiguration = 0
    dataset.BitsAllocated = dataset.BitsStored = 8
    colour = np.random.default_rng(0).integers(0, 256, (60, 80, 3), np.uint8)
    dataset.PixelData = colour.tobytes()
    assert_refused(save(dataset, tmp_path / "film.dcm"), NotARadiograph, "a colour picture")


def test_read_refuses_a_palette_dicom() -> None:
    assert_refused(SHIPPED / "examples_palette.dcm", NotARadiograph, "PALETTE COLOR")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("rtplan.dcm", "RT Plan Storage"),
        ("reportsi.dcm", "Basic Text SR Storage"),
        ("waveform_ecg.dcm", "ECG"),
        ("dicomdirtests/DICOMDIR", "Media Storage Directory"),
    ],
)
def test_read_names_the_class_of_a_dicom_without_pixels(name: str, kind: str) -> None:
    assert_refused(SHIPPED / name, NotARadiograph, rf"without pixels \(.*{kind}")


@pytest.mark.parametrize(
    ("keyword", "pair"), [("ImagerPixelSpacing", [0.1, 0.102]), ("PixelAspectRatio", [4, 3])]
)
def test_read_refuses_pixels_that_are_not_square(
    tmp_path: Path, keyword: str, pair: list[float]
) -> None:
    dataset = film(tmp_path / "film.dcm")
    del dataset.ImagerPixelSpacing
    setattr(dataset, keyword, pair)
    assert_refused(save(dataset, tmp_path / "film.dcm"), NotARadiograph, f"{keyword} is")


def test_read_names_the_path_as_given(tmp_path: Path) -> None:
    path = tmp_path / "a folder" / "ünï.png"
    path.parent.mkdir()
    write_png16(path, GRADIENT)
    path.write_bytes(path.read_bytes()[:100])
    assert_refused(path, NotAnImage, "PNG picture that cannot be decoded")


def test_read_names_what_no_file_can_be_called(tmp_path: Path) -> None:
    for name in ("a\0b.dcm", "a\ud800.dcm", "a" * 5000):
        assert_refused(tmp_path / name, Unreadable, "name|long")


def test_read_says_that_memory_ran_out(tmp_path: Path) -> None:
    path = tmp_path / "film.png"
    Image.fromarray(np.arange(36_000_000, dtype=np.uint16).reshape(6000, 6000)).save(path)
    code = (
        "import resource, sys\n"
        "import kneematch.films.images\n"
        "from kneematch import read\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (200 << 20),) * 2)\n"
        "read(sys.argv[1])\n"
    )
    child = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False
    )
    assert f"Unreadable: {path}: not enough memory to read it; " in child.stderr


def test_read_refuses_a_dicom_of_absurd_size_before_decoding(tmp_path: Path) -> None:
    dataset = film(tmp_path / "film.dcm")
    dataset.Rows = dataset.Columns = 65535
    path = save(dataset, tmp_path / "film.dcm")
    assert_refused(path, NotARadiograph, "65535 x 65535 pixels")


@pytest.mark.parametrize("side", [13_000, 60_000])  # on both sides of Pillow's own limit
def test_read_refuses_a_png_of_absurd_size_before_decoding(tmp_path: Path, side: int) -> None:
    header = struct.pack(">2I5B", side, side, 16, 0, 0, 0, 0)
    chunk = b"IHDR" + header
    data = b"IDAT" + zlib.compress(bytes(1000))
    content = b"\x89PNG\r\n\x1a\n"
    for part in (chunk, data, b"IEND"):
        content += struct.pack(">I", len(part) - 4) + part + struct.pack(">I", zlib.crc32(part))
    path = tmp_path / "film.png"
    path.write_bytes(content)
    assert_refused(path, NotARadiograph, "pixels")


def test_read_refuses_a_deflated_bomb_while_inflating(tmp_path: Path) -> None:
    path = save(film(tmp_path / "film.dcm"), tmp_path / "film.dcm", DeflatedExplicitVRLittleEndian)
    whole = path.read_bytes()
    start = 144 + struct.unpack_from("<I", whole, 140)[0]
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    block = packer.compress(bytes(1 << 24)) + packer.flush(zlib.Z_FULL_FLUSH)
    path.write_bytes(whole[:start] + block * (MAX_BYTES // (1 << 24) + 1))
    assert path.stat().st_size < MAX_BYTES // 500
    assert_refused(path, NotARadiograph, "a deflated DICOM of more than")


def test_read_refuses_a_file_of_absurd_size_before_reading(tmp_path: Path) -> None:
    path = tmp_path / "film.dcm"
    film(path)
    os.truncate(path, MAX_BYTES + 1)  # a hole, no real bytes
    assert_refused(path, NotARadiograph, f"{MAX_BYTES + 1} bytes")


def test_read_keeps_the_message_on_one_line(tmp_path: Path) -> None:
    dataset = film(tmp_path / "film.dcm")
    del dataset.PixelData
    path = save(dataset, tmp_path / "film.dcm")
    path.write_bytes(path.read_bytes().replace(b"1.2.840.10008.5.1.4.1.1.1.1", b"1.2.\n40." * 3))
    assert_refused(path, NotARadiograph, "without pixels")


@pytest.mark.parametrize("name", ["film.dcm", "film.png"])
def test_read_of_spoilt_bytes_gives_a_film_or_a_film_error(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "film.dcm":
        film(path)
    else:
        write_png16(path, GRADIENT)
    whole = path.read_bytes()
    rng = np.random.default_rng(7)
    refused = 0
    for _ in range(250):
        spoilt = bytearray(whole)
        for at in rng.integers(132 if name == "film.dcm" else 0, min(len(whole), 1500), 3):
            spoilt[at] = rng.integers(256)
        path.write_bytes(spoilt)
        try:
            read(path)
        except FilmError:
            refused += 1
    assert refused > 0


def test_read_ignores_what_follows_the_pixels(tmp_path: Path) -> None:
    path = tmp_path / "film.dcm"
    film(path)
    expected = read(path).pixels
    whole = path.read_bytes()
    for tail in (bytes(10_000), b"\xff" * 1001, b"\xfc\xff\xfc\xffOB\0\0\xff\xff\xff\x7f"):
        path.write_bytes(whole + tail)
        np.testing.assert_array_equal(read(path).pixels, expected)


def test_read_and_is_uncompressed_quote_no_header_in_a_warning(
    tmp_path: Path, recwarn: pytest.WarningsRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "film.dcm"
    write_dicom(path, np.eye(40, dtype=np.float32), mm_per_px=None, laterality=None)
    syntax = ExplicitVRLittleEndian.encode()
    assert is_uncompressed(path)
    path.write_bytes(path.read_bytes().replace(syntax, b"DOE^JANE".ljust(len(syntax)), 1))
    assert not is_uncompressed(path)
    with pytest.raises(FilmError):
        read(path)
    assert not recwarn.list
    assert not caplog.records
