"""Pictures that are written read back."""

import io
from pathlib import Path

import numpy as np
from PIL import Image

from kneematch.films.pictures import (
    THUMBNAIL_PX,
    thumbnail,
    to_grey8,
    write_png16,
)
from kneephantoms import phantom

GRADIENT = np.linspace(0, 1, 50 * 70, dtype=np.float32).reshape(50, 70)


def test_thumbnail_is_a_small_picture_in_grey_whatever_the_range() -> None:
    film = 1000 * np.repeat(np.repeat(GRADIENT, 20, 0), 20, 1)
    with Image.open(io.BytesIO(thumbnail(film))) as small:
        grey = np.asarray(small.convert("L")).astype(float)
    assert max(grey.shape) == THUMBNAIL_PX
    assert grey[0, 0] < 10 < 245 < grey[-1, -1]
    assert to_grey8(np.full((3, 3), 7, np.float32)).max() == 0
    ramp = np.linspace(0, 1, 1001, dtype=np.float32)[None].repeat(3, 0)
    narrow = to_grey8(ramp, (0.4, 0.6))[0]
    assert (narrow[:400].max(), narrow[602:].min()) == (0, 255)
    assert 126 <= narrow[500] <= 129
    assert set(to_grey8(ramp, (0.5, 0.5))[0].tolist()) >= {0, 255}  # and not divided by zero


def test_write_png16_is_lossless_and_no_larger_than_pillow_s(tmp_path: Path) -> None:
    pixels = phantom(3).pixels[:400, :400]
    write_png16(tmp_path / "a.png", pixels)
    levels = np.rint(pixels * 65535).astype(np.uint16)
    np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / "a.png")), levels)
    Image.fromarray(levels).save(tmp_path / "b.png")
    assert (tmp_path / "a.png").stat().st_size < 1.02 * (tmp_path / "b.png").stat().st_size
