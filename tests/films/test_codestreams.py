"""Codestreams that ask a decoder for much more than their size explains are refused before it."""

import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import imagecodecs
import numpy as np
import pytest
from PIL import Image
from pydicom.uid import JPEG2000Lossless, JPEGBaseline8Bit

from dicom_films import assert_refused, gradient
from kneematch.errors import NotAnImage, NotARadiograph
from kneematch.films.codestreams import MAX_SCANS, structure_bytes
from kneematch.films.read import read

Save = Callable[..., Path]
TOO_MUCH = "takes a lot of memory or time"
COD = b"\xff\x52"


def jpeg_2000(size: int, *, tile: int | None = None) -> bytes:
    grey = (np.add.outer(np.arange(size), np.arange(size)) % 200).astype(np.uint8)
    frame = bytes(imagecodecs.jpeg2k_encode(grey, codecformat="J2K"))
    return frame if tile is None else frame[:24] + struct.pack(">2I", tile, tile) + frame[32:]


def with_style(
    frame: bytes, *, block: int = 4, precinct: int | None = None, layers: int = 1
) -> bytes:
    """Return a codestream with another coding style, and so with data that do not fit it.

    The sides of code-blocks (less 2) and precincts are given by their exponents.
    """
    at = frame.index(COD)
    (length,) = struct.unpack_from(">H", frame, at + 2)
    levels = frame[at + 9]
    style = struct.pack(">BBHB", precinct is not None, 0, layers, 0)
    style += bytes([levels, block, block, 0, 1])
    if precinct is not None:
        style += bytes([precinct << 4 | precinct] * (levels + 1))
    segment = COD + struct.pack(">H", 2 + len(style)) + style
    changed = frame[:at] + segment + frame[at + 2 + length :]
    tile_part = changed.index(b"\xff\x90\x00\x0a")
    assert changed.count(b"\xff\x90\x00\x0a") == 1
    return changed[: tile_part + 6] + bytes(4) + changed[tile_part + 10 :]  # up to the end


def test_structure_bytes_of_usual_codestreams_are_few_per_pixel() -> None:
    assert structure_bytes(jpeg_2000(2000)) < 2000 * 2000
    assert structure_bytes(jpeg_2000(2000, tile=256)) < 2000 * 2000
    assert structure_bytes(imagecodecs.jpeg8_encode(np.zeros((48, 80), np.uint8))) == 0


@pytest.mark.parametrize(
    ("style", "per_pixel"),
    [({"precinct": 1}, 500), ({"block": 0}, 100), ({"precinct": 7, "layers": 65535}, 40)],
)
def test_structure_bytes_grow_with_blocks_precincts_and_layers(
    style: dict[str, int], per_pixel: int
) -> None:
    assert structure_bytes(with_style(jpeg_2000(2000), **style)) > per_pixel * 2000 * 2000


def test_structure_bytes_take_the_precincts_of_each_resolution() -> None:
    whole = with_style(jpeg_2000(2000), precinct=15)
    end = whole.index(b"\xff\x5c")  # behind the style, whose last byte is the largest resolution's
    assert structure_bytes(whole) < 2000 * 2000
    assert structure_bytes(whole[: end - 1] + b"\x11" + whole[end:]) > 500 * 2000 * 2000


def test_structure_bytes_count_tiles_and_styles_of_tile_parts() -> None:
    assert structure_bytes(jpeg_2000(1024, tile=8)) > 100 << 20
    frame = jpeg_2000(2000)
    small = with_style(frame, precinct=1)
    style = small[small.index(COD) : small.index(b"\xff\x5c")]
    tile_part = frame.index(b"\xff\x90\x00\x0a") + 12  # behind SOT
    hidden = frame[:tile_part] + style + frame[tile_part:]
    assert structure_bytes(hidden) == structure_bytes(small)


def test_structure_bytes_ends_where_a_tile_part_leads_back_to_its_own_header() -> None:
    frame = jpeg_2000(64)
    start = frame.index(b"\xff\x90\x00\x0a") + 12  # behind SOT
    comment = b"\xff\x64\x00\x20" + bytes(30)
    for size in (12, 20, 30, 47):
        length = struct.pack(">I", size)
        spoilt = frame[: start - 6] + length + frame[start - 2 : start] + comment + frame[start:]
        assert structure_bytes(spoilt) == structure_bytes(frame)


@pytest.mark.parametrize("style", [{"precinct": 1}, {"block": 0}])
def test_read_refuses_jpeg_2000_of_tiny_parts(save_film: Save, style: dict[str, int]) -> None:
    frame = with_style(jpeg_2000(3000), **style)
    stored = np.zeros((3000, 3000), np.uint8)
    path = save_film(stored, 8, JPEG2000Lossless, frame=frame)
    assert_refused(path, NotAnImage, TOO_MUCH)
    (path.parent / "film.j2k").write_bytes(frame)
    assert_refused(path.parent / "film.j2k", NotAnImage, TOO_MUCH)


def test_read_refuses_a_jpeg_of_thousands_of_scans(tmp_path: Path, save_film: Save) -> None:
    """A scan of nothing has AC coefficients and no bits."""
    path, grey = tmp_path / "film.jpg", gradient(8)
    Image.fromarray(grey).save(path, "JPEG", progressive=True)
    assert read(path).size == grey.shape
    empty_scan = b"\xff\xda\x00\x08\x01\x01\x00\x01\x05\x00" + b"\0"
    frame = path.read_bytes()[:-2] + empty_scan * MAX_SCANS + b"\xff\xd9"
    path.write_bytes(frame)
    assert_refused(path, NotAnImage, TOO_MUCH)
    film = save_film(grey, 8, JPEGBaseline8Bit, frame=frame)
    assert_refused(film, NotAnImage, TOO_MUCH)


def test_read_refuses_a_tile_much_larger_than_its_picture(tmp_path: Path) -> None:
    entries = {256: 64, 257: 64, 258: 8, 259: 8, 262: 1, 277: 1, 322: 20000, 323: 20000}
    entries |= {324: 8, 325: 100}
    directory = struct.pack("<H", len(entries))
    for tag, value in sorted(entries.items()):
        directory += struct.pack("<HHII", tag, 4, 1, value)
    path = tmp_path / "film.tif"
    path.write_bytes(struct.pack("<2sHI", b"II", 42, 108) + bytes(100) + directory + bytes(4))
    assert_refused(path, NotARadiograph, "A tile has 20000 x 20000 pixels")


def test_read_of_compressed_films_stays_below_the_memory_limit(
    tmp_path: Path, save_film: Save
) -> None:
    """Good films of every kind are read in a worker, where the limit holds."""
    stored = (np.add.outer(np.arange(2400), np.arange(2000)) % 4000).astype(np.uint16)
    paths = [save_film(stored, 12, JPEG2000Lossless, name="film.dcm")]
    grey = Image.fromarray((stored >> 4).astype(np.uint8))
    options = {"film.png": {}, "film.jpg": {"progressive": True}}
    options["film.tif"] = {"compression": "tiff_lzw"}
    for name, how in options.items():
        paths.append(tmp_path / name)
        grey.save(paths[-1], **how)
    code = "import sys; from kneematch.films.read import read_isolated as read; "
    code += "print([read(path).size for path in sys.argv[1:]])"
    command = [sys.executable, "-c", code, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str([(2400, 2000)] * 4)
