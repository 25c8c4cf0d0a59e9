"""What is no film, or made to exhaust a reader, is refused in one line that says what is wrong."""

import io
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from PIL import Image
from pydicom.uid import ExplicitVRLittleEndian

from dicom_films import assert_reads, assert_refused, gradient
from kneematch.errors import FilmError, NotAnImage, NotARadiograph, SettingsError, Unreadable
from kneematch.films.pictures import write_png16
from kneematch.films.radiograph import MAX_BYTES
from kneematch.films.read import (
    as_radiograph,
    is_dataset,
    is_dicom,
    is_uncompressed,
    radiograph_from_dataset,
    read,
)

SHIPPED = Path(pydicom.__file__).parent / "data" / "test_files"
GRADIENT = np.linspace(0, 1, 60 * 80, dtype=np.float32).reshape(60, 80)

Save = Callable[..., Path]


@pytest.mark.parametrize("first", range(8))
def test_read_reads_or_refuses_each_file_that_pydicom_ships(first: int) -> None:
    for path in sorted(SHIPPED.rglob("*"))[first::8]:
        refusal, ends = "", None
        try:
            pixels = read(path).pixels
            ends = (pixels.min(), pixels.max())
        except FilmError as error:
            refusal = str(error)
        assert ends == (0, 1) or refusal.startswith(f"{path}: ")
        assert "\n" not in refusal


def run(code: str, path: Path) -> str:
    """Read a film in a process of its own; return what it writes to stderr."""
    command = [sys.executable, "-c", code, str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr


def test_read_refuses_what_is_no_readable_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert_refused(tmp_path / "pipe", Unreadable, "not a regular file")
    assert_refused(tmp_path, Unreadable, "a folder")
    assert_refused(tmp_path / "gone.dcm", Unreadable, "No such file")
    with pytest.raises(Unreadable, match="No such file"):
        is_dicom(tmp_path / "gone.dcm")
    (tmp_path / "film.dcm").touch()
    assert_refused(tmp_path / "film.dcm", NotAnImage, "empty")
    for name in ("a\0b.dcm", "a\ud800.dcm", "a" * 5000):
        assert_refused(tmp_path / name, Unreadable, "name|long")
    os.truncate(tmp_path / "film.dcm", MAX_BYTES + 1)  # a hole, no real bytes
    assert_refused(tmp_path / "film.dcm", NotARadiograph, f"{MAX_BYTES + 1} bytes")


def test_read_refuses_a_file_without_permission(save_film: Save) -> None:
    path = save_film(gradient())
    path.chmod(0)
    code = (
        "import os, sys\n"
        "from kneematch.films.read import read\n"
        "if os.geteuid() == 0:\n"
        "    os.setuid(65534)\n"  # root may read everything, nobody may not
        "read(sys.argv[1])\n"
    )
    assert f"Unreadable: {path}: Permission denied" in run(code, path)


def test_read_says_that_memory_ran_out(tmp_path: Path) -> None:
    path = tmp_path / "film.png"
    Image.fromarray(np.arange(36_000_000, dtype=np.uint16).reshape(6000, 6000)).save(path)
    code = (
        "import resource, sys\n"
        "from kneematch import read\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (200 << 20),) * 2)\n"
        "read(sys.argv[1])\n"
    )
    assert f"Unreadable: {path}: There is not enough memory" in run(code, path)


def test_read_refuses_unknown_content(tmp_path: Path) -> None:
    path = tmp_path / "film.dcm"
    for content in (b"x", b"film,side\n1,left\n" * 20, bytes(range(256)) * 9, b"GIF89a" + bytes(9)):
        path.write_bytes(content)
        assert not is_dicom(path)
        assert_refused(path, NotAnImage, "neither DICOM nor PNG, JPEG")
    path.write_bytes(bytes(128) + b"DICM" + bytes(range(255, 0, -1)) * 20)
    assert is_dicom(path)
    assert_refused(path, FilmError, "DICOM")


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"NumberOfFrames": 2}, "more than one frame"),
        ({"Rows": 0}, " 0 x 81 pixels"),
        ({"Columns": 0}, " 60 x 0 pixels"),
        ({"Rows": 65535, "Columns": 65535}, "65535 x 65535 pixels"),
        ({"ImagerPixelSpacing": [0.1, 0.102]}, "ImagerPixelSpacing says"),
        ({"PixelAspectRatio": [4, 3]}, "PixelAspectRatio says"),
        ({"PhotometricInterpretation": "JANE DOE"}, "PhotometricInterpretation is unknown"),
        ({"drop": ("PixelData",), "SOPClassUID": "1.2.3.4711"}, r"no pixels \(unknown class\)"),
    ],
)
def test_read_refuses_headers_of_no_film(save_film: Save, header: Any, message: str) -> None:
    assert_refused(save_film(gradient(), **header), NotARadiograph, message)


def test_read_refuses_pixels_of_no_film(save_film: Save) -> None:
    flat = np.full((60, 80), 99, np.uint16)
    assert_refused(save_film(flat), NotARadiograph, "Every pixel has the value 99")
    assert_refused(save_film(flat, PixelPaddingValue=99), NotARadiograph, "Every pixel has")
    for value in (np.nan, np.inf):
        pixels = GRADIENT.copy()
        pixels[3, 4] = value
        path = save_film(pixels, 32, drop=("PixelData",), FloatPixelData=pixels.tobytes())
        assert_refused(path, NotARadiograph, "NaN or infinite")
    colour = np.random.default_rng(0).integers(0, 256, (60, 80, 3), np.uint8)
    assert_refused(save_film(colour, 8), NotARadiograph, "in colour")
    assert_refused(SHIPPED / "examples_palette.dcm", NotARadiograph, "palette")
    kinds = {"rtplan.dcm": "RT Plan Storage", "dicomdirtests/DICOMDIR": "Media Storage Directory"}
    for name, kind in kinds.items():
        assert_refused(SHIPPED / name, NotARadiograph, rf"no pixels \(.*{kind}")


@pytest.mark.parametrize("name", ["film.dcm", "film.png"])
def test_read_of_spoilt_bytes_gives_a_film_or_a_film_error(
    tmp_path: Path, save_film: Save, name: str
) -> None:
    path, rng, refused = tmp_path / name, np.random.default_rng(7), 0
    if name == "film.dcm":
        save_film(gradient())
    else:
        write_png16(path, GRADIENT)
    whole = path.read_bytes()
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


def test_read_ignores_what_follows_the_pixels(save_film: Save) -> None:
    path = save_film(gradient())
    with path.open("ab") as file:
        file.write(b"\xfc\xff\xfc\xffOB\0\0\xff\xff\xff\x7f")
    assert_reads(path, gradient())


def test_read_and_is_uncompressed_quote_no_header_in_a_warning(
    save_film: Save, recwarn: pytest.WarningsRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    path = save_film(gradient())
    syntax = ExplicitVRLittleEndian.encode()
    assert is_uncompressed(path)
    path.write_bytes(path.read_bytes().replace(syntax, b"DOE^JANE".ljust(len(syntax)), 1))
    assert not is_uncompressed(path)
    with pytest.raises(FilmError):
        read(path)
    assert not recwarn.list
    assert not caplog.records


def test_read_drops_what_pillow_logs_about_odd_tags(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "samples.tif"
    Image.new("RGB", (40, 40)).save(path)
    content = bytearray(path.read_bytes())
    tag = content.index(struct.pack("<HHI", 277, 3, 1))  # SamplesPerPixel
    content[tag + 8 : tag + 10] = struct.pack("<H", 60_000)
    path.write_bytes(content)
    with pytest.raises(NotAnImage):
        read(path)
    assert not caplog.records


def test_as_radiograph_refuses_a_film_that_is_opened_as_text() -> None:
    with pytest.raises(SettingsError, match="must be opened in binary mode"):
        as_radiograph(io.StringIO("text"))


def test_as_radiograph_maps_arrays_of_any_range_to_the_unit_interval() -> None:
    for dtype in ("uint8", "int16", ">u2", "float64"):
        levels = np.arange(12).reshape(3, 4)[:, ::-1]
        film = as_radiograph(levels.astype(dtype), mm_per_px=0.2, laterality="L")
        np.testing.assert_allclose(film.pixels, levels / 11, atol=1e-6)
        assert film.pixels.flags.c_contiguous
        assert (film.mm_per_px, film.laterality, film.seen_from_front) == (0.2, "L", None)
    texts, odd = np.array([["a", "b"]]), [(4, 4, 3), (4, 4, 2), (5,), (0, 4), (4, 4)]
    for array in (texts, np.full((4, 4), np.nan), *map(np.zeros, odd)):
        with pytest.raises(NotARadiograph):
            as_radiograph(array)
    wrong: list[dict[str, Any]] = [{"mm_per_px": 0.0}, {"mm_per_px": np.nan}, {"laterality": "X"}]
    for each in wrong:
        with pytest.raises(SettingsError, match="must be"):
            as_radiograph(GRADIENT, **each)


@pytest.mark.parametrize("meta", [True, False])
def test_radiograph_from_dataset_is_the_film_of_its_file(save_film: Save, meta: bool) -> None:
    path = save_film(gradient(), ImagerPixelSpacing=[0.14] * 2, PatientOrientation=["L", "F"])
    dataset = pydicom.dcmread(path)
    if not meta:
        del dataset.file_meta
    film, expected = radiograph_from_dataset(dataset), read(path)
    assert np.array_equal(film.pixels, expected.pixels)
    assert film.mm_per_px == expected.mm_per_px == 0.14
    assert film.seen_from_front is True
    assert is_dataset(dataset)
    assert not is_dataset(path)
    del dataset.PixelData
    with pytest.raises(FilmError, match="no pixels"):
        radiograph_from_dataset(dataset)
