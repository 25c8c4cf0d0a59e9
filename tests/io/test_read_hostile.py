"""Files that are made, or happen, to exhaust or derail a reader are refused in good time."""

import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pydicom
import pytest
from pydicom import Dataset
from pydicom.uid import (
    UID,
    DeflatedExplicitVRLittleEndian,
    ExplicitVRLittleEndian,
)

from kneematch.errors import (
    FilmError,
    NotARadiograph,
)
from kneematch.io.limits import MAX_BYTES
from kneematch.io.read import read
from kneematch.io.write import write_dicom, write_png16

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
