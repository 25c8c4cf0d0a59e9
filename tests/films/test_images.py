"""PNG, TIFF and JPEG films come back as they were, and pictures that are no film do not."""

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image, ImageOps, TiffImagePlugin

from kneematch.errors import NotARadiograph
from kneematch.films.read import is_dicom, read


def gradient(bits: int = 8) -> np.ndarray:
    values = np.linspace(0, 2**bits - 1, 64 * 80).reshape(64, 80)
    return np.rint(values).astype(np.uint8 if bits == 8 else np.uint16)


def in_unit_range(stored: np.ndarray) -> np.ndarray:
    return (stored - stored.min().astype(np.float64)) / float(stored.max() - stored.min())


def colour() -> Image.Image:
    red, green = np.meshgrid(np.linspace(0, 255, 80), np.linspace(0, 255, 64))
    return Image.fromarray(np.stack([red, green, 255 - red], axis=-1).astype(np.uint8))


def assert_same(path: Path, expected: np.ndarray, within: float = 1e-7) -> None:
    radiograph = read(path)
    assert radiograph.pixels.dtype == np.float32
    assert radiograph.pixels.flags.c_contiguous
    np.testing.assert_allclose(radiograph.pixels, expected, rtol=0, atol=within)
    assert (radiograph.mm_per_px, radiograph.spacing_tag) == (None, None)
    assert not is_dicom(path)


def assert_refused(path: Path, found: str) -> None:
    with pytest.raises(NotARadiograph, match=found) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
@pytest.mark.parametrize("bits", [8, 16])
def test_read_image_is_exact_for_lossless_pictures(tmp_path: Path, kind: str, bits: int) -> None:
    path = tmp_path / "film"
    Image.fromarray(gradient(bits)).save(path, format=kind, dpi=(180, 180))
    assert_same(path, in_unit_range(gradient(bits)))


@pytest.mark.parametrize("compression", ["tiff_lzw", "tiff_adobe_deflate", "packbits"])
def test_read_image_is_exact_for_compressed_tiffs(tmp_path: Path, compression: str) -> None:
    path = tmp_path / "film.tif"
    Image.fromarray(gradient(16)).save(path, compression=compression)
    assert_same(path, in_unit_range(gradient(16)))


def test_read_image_is_exact_for_big_endian_tiffs(tmp_path: Path) -> None:
    path = tmp_path / "film.tif"
    Image.frombytes("I;16B", (80, 64), gradient(16).astype(">u2").tobytes()).save(path)
    assert path.read_bytes()[:2] == b"MM"
    assert_same(path, in_unit_range(gradient(16)))


@pytest.mark.parametrize("bits", [8, 16])
def test_read_image_inverts_a_tiff_whose_zero_is_white(tmp_path: Path, bits: int) -> None:
    path = tmp_path / "film.tif"
    Image.fromarray(gradient(bits)).save(path)
    with Image.open(path) as image:
        assert isinstance(image, TiffImagePlugin.TiffImageFile)
        assert image.tag_v2[262] == 1
    entry = b"\x06\x01\x03\x00\x01\x00\x00\x00"  # tag 262, one short
    content = path.read_bytes()
    assert content.count(entry + b"\x01") == 1
    path.write_bytes(content.replace(entry + b"\x01", entry + b"\x00"))
    assert_same(path, 1 - in_unit_range(gradient(bits)))


def test_read_image_keeps_the_order_of_floating_point_tiffs(tmp_path: Path) -> None:
    path = tmp_path / "film.tif"
    Image.fromarray(gradient(16).astype(np.float32) - 1000).save(path)
    assert_same(path, in_unit_range(gradient(16)))


def test_read_image_is_close_for_jpegs(tmp_path: Path) -> None:
    path = tmp_path / "film"
    Image.fromarray(gradient()).save(path, format="JPEG", quality=95)
    assert_same(path, in_unit_range(gradient()), within=0.02)


def test_read_image_reads_grey_stored_in_colour(tmp_path: Path) -> None:
    grey = Image.fromarray(gradient())
    for mode in ("RGB", "RGBA", "LA", "P"):
        path = tmp_path / f"{mode}.png"
        grey.convert(mode).save(path)
        assert_same(path, in_unit_range(gradient()))
    for mode in ("RGB", "CMYK"):
        path = tmp_path / f"{mode}.jpg"
        grey.convert(mode).save(path, quality=90)
        assert_same(path, in_unit_range(gradient()), within=0.03)


def test_read_image_takes_an_invisible_tint_for_grey(tmp_path: Path) -> None:
    path = tmp_path / "film.png"
    stored = np.repeat(gradient()[..., None], 3, axis=2)
    stored[..., 0] = np.minimum(stored[..., 0], 250) + 5
    Image.fromarray(stored).save(path)
    assert_same(path, in_unit_range(gradient()))


@pytest.mark.parametrize("name", ["photo.png", "photo.jpg", "photo.tif"])
def test_read_image_refuses_a_colour_photograph(tmp_path: Path, name: str) -> None:
    colour().save(tmp_path / name)
    assert_refused(tmp_path / name, "a colour picture")


def test_read_image_refuses_a_colourful_palette(tmp_path: Path) -> None:
    colour().quantize(32).save(tmp_path / "photo.png")
    assert_refused(tmp_path / "photo.png", "a colour picture")


def test_read_image_refuses_a_transparent_picture(tmp_path: Path) -> None:
    image = Image.fromarray(gradient()).convert("RGBA")
    image.putpixel((3, 3), (0, 0, 0, 100))
    image.save(tmp_path / "film.png")
    assert_refused(tmp_path / "film.png", "transparent")


@pytest.mark.parametrize("name", ["mask.png", "mask.tif"])
def test_read_image_refuses_a_picture_of_one_bit(tmp_path: Path, name: str) -> None:
    Image.fromarray(gradient()).convert("1").save(tmp_path / name)
    assert_refused(tmp_path / name, "1 bit")


@pytest.mark.parametrize("name", ["stack.png", "stack.tif"])
def test_read_image_refuses_several_frames(tmp_path: Path, name: str) -> None:
    pages = [Image.fromarray(gradient()), Image.fromarray(255 - gradient())]
    pages[0].save(tmp_path / name, save_all=True, append_images=pages[1:])
    assert_refused(tmp_path / name, "2 frames")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_read_image_refuses_nan_and_infinity(tmp_path: Path, value: float) -> None:
    stored = gradient().astype(np.float32)
    stored[5, 6] = value
    Image.fromarray(stored).save(tmp_path / "film.tif")
    assert_refused(tmp_path / "film.tif", "not finite")


@pytest.mark.parametrize("name", ["flat.png", "flat.jpg", "flat.tif"])
def test_read_image_refuses_a_picture_of_one_value(tmp_path: Path, name: str) -> None:
    Image.fromarray(np.full((64, 80), 17, np.uint8)).save(tmp_path / name)
    assert_refused(tmp_path / name, "every pixel has the value 17")


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("name", ["film.jpg", "film.tif", "film.png"])
def test_read_image_obeys_the_orientation(tmp_path: Path, name: str, orientation: int) -> None:
    image = Image.fromarray(gradient())
    image.getexif()[ExifTags.Base.Orientation] = orientation
    image.save(tmp_path / name, exif=image.getexif())
    expected = in_unit_range(np.asarray(ImageOps.exif_transpose(image)))
    assert expected.shape == ((80, 64) if orientation > 4 else (64, 80))
    assert_same(tmp_path / name, expected, within=0.02)


def test_read_image_ignores_broken_exif(tmp_path: Path) -> None:
    Image.fromarray(gradient()).save(tmp_path / "film.jpg", exif=b"Exif\0\0MM\0*\0\0\0\7garbage")
    assert read(tmp_path / "film.jpg").size == (64, 80)


@pytest.mark.parametrize("scale", [1e-42, 3e38])
def test_read_image_refuses_a_range_that_float32_does_not_hold(
    tmp_path: Path, scale: float
) -> None:
    stored = ((gradient() / 255.0 * 2 - 1) * scale).astype(np.float32)
    Image.fromarray(stored).save(tmp_path / "film.tif")
    assert_refused(tmp_path / "film.tif", "fits 32-bit floats")


def test_read_image_refuses_small_files_that_take_much_memory(tmp_path: Path) -> None:
    """12,000 x 12,000 pixels took 2.4 GB; the header is enough to refuse them."""
    Image.fromarray(np.zeros((40, 40), np.uint8)).convert("RGBA").save(tmp_path / "film.png")
    content = bytearray((tmp_path / "film.png").read_bytes())
    struct.pack_into(">2I", content, 16, 12_000, 12_000)
    struct.pack_into(">I", content, 29, zlib.crc32(content[12:29]))
    (tmp_path / "film.png").write_bytes(content)
    assert_refused(tmp_path / "film.png", "MB of memory; expected at most 768 MB")
