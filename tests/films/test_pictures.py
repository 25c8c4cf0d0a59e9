"""Pictures that are written read back, and replace nothing that kneematch did not draw."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kneematch.errors import SettingsError
from kneematch.films.pictures import (
    THUMBNAIL_PX,
    check_picture_path,
    save_picture,
    thumbnail,
    to_grey8,
    write_png16,
)
from kneematch.films.read import read

GRADIENT = np.linspace(0, 1, 50 * 70, dtype=np.float32).reshape(50, 70)


def test_write_png16_reads_back_within_half_a_level(tmp_path: Path) -> None:
    path = tmp_path / "film.png"
    write_png16(path, GRADIENT)
    with Image.open(path) as image:
        assert (image.format, image.mode, image.size) == ("PNG", "I;16", (70, 50))
    assert np.abs(read(path).pixels - GRADIENT).max() <= 0.51 / 65535
    nan = np.full((4, 4), np.nan, np.float32)
    for pixels in (GRADIENT + 0.1, GRADIENT - 0.1, nan, GRADIENT[:0], GRADIENT[None]):
        with pytest.raises(ValueError, match="pixels"):
            write_png16(tmp_path / "other.png", pixels)
    assert list(tmp_path.iterdir()) == [path]


def test_thumbnail_is_a_small_picture_in_grey_whatever_the_range() -> None:
    film = 1000 * np.repeat(np.repeat(GRADIENT, 20, 0), 20, 1)
    with Image.open(io.BytesIO(thumbnail(film))) as small:
        grey = np.asarray(small.convert("L")).astype(float)
    assert max(grey.shape) == THUMBNAIL_PX
    assert grey[0, 0] < 10 < 245 < grey[-1, -1]
    assert to_grey8(np.full((3, 3), 7, np.float32)).max() == 0


def test_check_picture_path_takes_new_names_and_own_pictures(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    check_picture_path(path)
    save_picture(Image.new("RGB", (4, 4)), path)
    check_picture_path(path)
    check_picture_path(tmp_path / "out" / "a.png", out=tmp_path / "out")
    with pytest.raises(SettingsError, match="folder does not exist"):
        check_picture_path(tmp_path / "gone" / "a.png", out=tmp_path / "out")


def test_check_picture_path_refuses_what_is_not_ours(tmp_path: Path) -> None:
    write_png16(tmp_path / "film.dcm", np.eye(8, dtype=np.float32))
    save_picture(Image.new("L", (4, 4)), tmp_path / "film.png")
    Image.new("L", (4, 4)).save(tmp_path / "mine.png")
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nnothing")
    (tmp_path / "link.png").symlink_to("missing")
    for name in ("film.dcm", "film.png", "mine.png", "broken.png", "link.png", "a"):
        with pytest.raises(SettingsError, match=f"{name}: "):
            check_picture_path(tmp_path / name, [tmp_path / "film.png"])
