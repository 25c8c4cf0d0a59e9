"""PNG, TIFF and JPEG films come back as they were, and pictures that are no film do not."""

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image, ImageOps

from dicom_films import assert_reads, assert_refused, gradient, in_unit_range
from kneematch.errors import NotAnImage, NotARadiograph
from kneematch.films.read import read


@pytest.mark.parametrize("bits", [8, 16])
def test_read_picture_is_exact_where_nothing_is_lost(tmp_path: Path, bits: int) -> None:
    path, stored = tmp_path / "film", gradient(bits)
    for compression in ("tiff_lzw", "packbits", None):
        Image.fromarray(stored).save(path, format="TIFF", compression=compression)
        assert_reads(path, stored)
    entry = b"\x06\x01\x03\x00\x01\x00\x00\x00"  # tag 262, one short: 0 is white
    content = path.read_bytes()
    assert content.count(entry + b"\x01") == 1
    path.write_bytes(content.replace(entry + b"\x01", entry + b"\x00"))
    assert_reads(path, 2**bits - 1 - stored)
    Image.fromarray(stored).save(path, format="PNG", dpi=(180, 180))
    assert_reads(path, stored)
    film = read(path)
    assert (film.mm_per_px, film.spacing_tag, film.laterality) == (None, None, None)


def test_read_picture_is_exact_for_other_formats_and_big_endian_and_float_tiffs(
    tmp_path: Path,
) -> None:
    path = tmp_path / "film"
    for kind, bits in (("BMP", 8), ("GIF", 8), ("WEBP", 8), ("JPEG2000", 8), ("JPEG2000", 16)):
        options = {"lossless": True} if kind == "WEBP" else {}
        Image.fromarray(gradient(bits)).save(path, format=kind, **options)
        assert_reads(path, gradient(bits))
    path, stored = tmp_path / "film.tif", gradient(16)
    Image.frombytes("I;16B", stored.shape[::-1], stored.astype(">u2").tobytes()).save(path)
    assert path.read_bytes()[:2] == b"MM"
    assert_reads(path, stored)
    Image.fromarray(stored.astype(np.float32) - 1000).save(path)
    assert_reads(path, stored)


def test_read_picture_reads_grey_stored_in_colour(tmp_path: Path) -> None:
    grey = Image.fromarray(gradient(8))
    for mode in ("RGB", "RGBA", "LA", "P"):
        grey.convert(mode).save(tmp_path / f"{mode}.png")
        assert_reads(tmp_path / f"{mode}.png", gradient(8))
    tinted = np.repeat(gradient(8)[..., None], 3, axis=2)
    tinted[..., 0] = np.minimum(tinted[..., 0], 250) + 5  # an invisible tint
    Image.fromarray(tinted).save(tmp_path / "tinted.png")
    assert_reads(tmp_path / "tinted.png", gradient(8))
    for mode in ("L", "RGB", "CMYK"):
        grey.convert(mode).save(tmp_path / "film.jpg", quality=95)
        found = read(tmp_path / "film.jpg").pixels
        np.testing.assert_allclose(found, in_unit_range(gradient(8)), rtol=0, atol=0.03)


def test_read_picture_refuses_what_is_no_grey_film(tmp_path: Path) -> None:
    grey = Image.fromarray(gradient(8))
    red, green = np.meshgrid(np.linspace(0, 255, 80), np.linspace(0, 255, 64))
    colour = Image.fromarray(np.stack([red, green, 255 - red], axis=-1).astype(np.uint8))
    colour.quantize(32).save(tmp_path / "palette.png")
    assert_refused(tmp_path / "palette.png", NotARadiograph, "in colour")
    hole = grey.convert("RGBA")
    hole.putpixel((3, 3), (0, 0, 0, 100))
    hole.save(tmp_path / "hole.png")
    assert_refused(tmp_path / "hole.png", NotARadiograph, "transparent")
    for suffix in ("png", "jpg", "tif"):
        colour.save(tmp_path / f"photo.{suffix}")
        assert_refused(tmp_path / f"photo.{suffix}", NotARadiograph, "in colour")
        Image.fromarray(np.full((64, 80), 17, np.uint8)).save(tmp_path / f"flat.{suffix}")
        assert_refused(tmp_path / f"flat.{suffix}", NotARadiograph, "Every pixel has the value 17")
    for suffix in ("png", "tif"):
        grey.convert("1").save(tmp_path / f"mask.{suffix}")
        assert_refused(tmp_path / f"mask.{suffix}", NotARadiograph, "1 bit")
        other = [Image.fromarray(255 - gradient(8))]
        grey.save(tmp_path / f"stack.{suffix}", save_all=True, append_images=other)
        assert_refused(tmp_path / f"stack.{suffix}", NotARadiograph, "more than one frame")


@pytest.mark.parametrize("name", ["film.jpg", "film.tif", "film.png"])
def test_read_picture_obeys_the_orientation(tmp_path: Path, name: str) -> None:
    for orientation in range(1, 9):
        image = Image.fromarray(gradient(8))
        image.getexif()[ExifTags.Base.Orientation] = orientation
        image.save(tmp_path / name, exif=image.getexif())
        expected = in_unit_range(np.asarray(ImageOps.exif_transpose(image)))
        assert expected.shape == ((81, 60) if orientation > 4 else (60, 81))
        np.testing.assert_allclose(read(tmp_path / name).pixels, expected, rtol=0, atol=0.02)
    Image.fromarray(gradient(8)).save(tmp_path / "film.jpg", exif=b"Exif\0\0MM\0*\0\0\0\7garbage")
    assert read(tmp_path / "film.jpg").size == (60, 81)


@pytest.mark.parametrize("suffix", ["png", "jpg", "tif"])
def test_read_never_takes_a_cut_picture_for_whole(tmp_path: Path, suffix: str) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (60, 80), np.uint8)
    path = tmp_path / "a folder, ünï"
    Image.fromarray(noise).save(tmp_path / f"film.{suffix}")
    whole = (tmp_path / f"film.{suffix}").read_bytes()
    for part in np.linspace(0.05, 0.95, 19):
        path.write_bytes(whole[: int(part * len(whole))])
        assert_refused(path, NotAnImage, "cannot be decoded|neither DICOM")


def test_read_picture_refuses_small_files_that_take_much_memory(tmp_path: Path) -> None:
    """12,000 x 12,000 pixels took 2.4 GB; the header is enough to refuse them."""
    Image.fromarray(np.zeros((40, 40), np.uint8)).convert("RGBA").save(tmp_path / "film.png")
    content = bytearray((tmp_path / "film.png").read_bytes())
    for side, message in [
        (12_000, "the limit for a file of its size is 768 MB"),
        (13_000, "more than the limit of 150 million"),
        (60_000, "more pixels than any film"),  # Pillow's own limit
    ]:
        struct.pack_into(">2I", content, 16, side, side)
        struct.pack_into(">I", content, 29, zlib.crc32(content[12:29]))
        (tmp_path / "film.png").write_bytes(content)
        assert_refused(tmp_path / "film.png", NotARadiograph, message)
