"""Tests of joint spaces that people drew."""

import json
from pathlib import Path

import numpy as np
import pytest

from kneematch.errors import SettingsError
from kneematch.knee.measure import MEDIAL, minimum_width
from kneematch.training.drawn_knees import outlines_of_mask, read_corrected, read_masks
from kneephantoms.files import write_png16


def wedge() -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    """Ten pixels high on the left, twenty on the right, 100 wide."""
    x, y = np.arange(120), np.arange(80)[:, None]
    return (x >= 10) & (x < 110) & (y >= 40 - (x - 10) / 10) & (y < 50)


def test_outlines_of_mask_are_its_borders() -> None:
    outlines = outlines_of_mask(wedge())
    assert outlines.width_px == 100
    assert minimum_width(outlines, MEDIAL) == pytest.approx(11, abs=0.6)


def test_outlines_of_mask_bridges_columns_without_mask() -> None:
    mask = wedge()
    mask[:, 40:50] = False
    assert outlines_of_mask(mask).width_px == 100
    with pytest.raises(ValueError, match="fewer than 16 columns"):
        outlines_of_mask(np.zeros((80, 120), bool))


def test_read_masks_pairs_crops_with_masks(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no crops NAME"):
        list(read_masks(tmp_path))
    crop = np.linspace(0, 1, 80 * 120, dtype=np.float32).reshape(80, 120)
    write_png16(tmp_path / "a-masked.png", crop)
    write_png16(tmp_path / "a-masked-mask.png", wedge().astype(np.float32))
    write_png16(tmp_path / "without.png", crop)
    (found,) = read_masks(tmp_path)
    assert found.path == tmp_path / "a-masked.png"
    assert found.outlines.width_px == 100
    for wrong, message in (
        (np.eye(80), r"\(80, 80\) pixels, but its crop has \(80, 120\)"),
        (np.eye(80, 120, 110), "a-masked-mask.png cannot be used: the joint space has fewer"),
    ):
        write_png16(tmp_path / "a-masked-mask.png", wrong.astype(np.float32))
        with pytest.raises(SettingsError, match=message):
            list(read_masks(tmp_path))


def test_read_corrected_finds_films_from_another_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    write_png16(tmp_path / "film.png", wedge().astype(np.float32))
    knee = {"film": "film.png", "corrected": True, **outlines_of_mask(wedge()).to_dict()}
    (out / "outlines.json").write_text(json.dumps({"knees": [knee]}))
    (out / "run.json").write_text(json.dumps({"settings": {"out": "out"}}))
    for folder in (tmp_path, out):
        monkeypatch.chdir(folder)
        (found,) = read_corrected(out)
        assert found.path.resolve() == tmp_path / "film.png"
        assert found.pixels.shape == wedge().shape
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    (tmp_path / "film.png").rename(moved / "film.png")
    (found,) = read_corrected(out, moved)
    assert found.path == moved / "film.png"


def test_read_corrected_takes_marked_outlines_only(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="Make the run with --measure"):
        list(read_corrected(tmp_path))
    film = tmp_path / "film.png"
    write_png16(film, np.linspace(0, 1, 80 * 120, dtype=np.float32).reshape(80, 120))
    plain = {"film": str(film), **outlines_of_mask(wedge()).to_dict()}
    path = tmp_path / "outlines.json"
    path.write_text(json.dumps({"knees": [plain]}))
    with pytest.raises(SettingsError, match="has no outlines with"):
        list(read_corrected(tmp_path))
    path.write_text(json.dumps({"knees": [plain, plain | {"corrected": True}]}))
    (knee,) = read_corrected(tmp_path)
    assert knee.pixels.shape == (80, 120)
    assert knee.outlines.width_px == 100
    path.write_text(json.dumps({"knees": [plain | {"corrected": True, "polarity": "negative"}]}))
    (negative,) = read_corrected(tmp_path)
    np.testing.assert_array_equal(negative.pixels, 1 - knee.pixels)
    for text in ("[]", "[" * 100_000, '{"knees": [{"corrected": true}]}'):
        path.write_text(text)
        with pytest.raises(SettingsError, match="cannot be read"):
            list(read_corrected(tmp_path))
