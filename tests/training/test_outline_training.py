"""Joint spaces that people drew, and the tuning of the outline network on them."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kneematch.errors import SettingsError
from kneematch.knee.measure import Outlines, widths_at
from kneematch.models.outlines import OutlineNetwork, load_network, save_network
from kneematch.run.database import Run
from kneematch.training.outline_training import (
    DrawnKnee,
    outlines_of_mask,
    read_corrected,
    read_masks,
    sample_crop,
    tune_outlines,
)
from kneephantoms.files import write_png16

STEPS = 6


def wedge() -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    """Ten pixels high on the left, twenty on the right, 100 wide."""
    x, y = np.arange(120), np.arange(80)[:, None]
    return (x >= 10) & (x < 110) & (y >= 40 - (x - 10) / 10) & (y < 50)


def drawn_wedge(angle_deg: float = 0.0) -> DrawnKnee:
    """A dark wedge between bright bones, drawn exactly, on a film that is turned."""
    cos, sin = np.cos(np.radians(angle_deg)), np.sin(np.radians(angle_deg))
    y, x = np.mgrid[:300, :300] + 0.5 - 150
    across, down = cos * x + sin * y, cos * y - sin * x
    gap = (np.abs(across) < 60) & (down > -14 - across / 12) & (down < 0)
    lines = np.array([[(-60, -9), (60, -19)], [(-60, 0), (60, 0)]], float)
    femur, tibia = lines @ np.array([[cos, sin], [-sin, cos]]) + 150
    pixels = np.where(gap, 0.2, 0.7).astype(np.float32)
    return DrawnKnee(Path("film.png"), pixels, Outlines(femur, tibia, "left"))


@pytest.mark.parametrize("angle_deg", [0, 90, -170])
def test_sample_crop_has_borders_where_the_picture_changes(angle_deg: float) -> None:
    """However the film is turned, the knee is upright, and in a crop of its own each time."""
    random, seen = np.random.default_rng(0), set()
    for _ in range(8):
        crop, borders, ends = sample_crop(drawn_wedge(angle_deg), random)
        known = np.flatnonzero(np.isfinite(borders).all(0))
        shown = ends[:, 0].clip(0, crop.shape[1])
        assert shown == pytest.approx([known[0], known[-1] + 1], abs=1)
        femur, tibia = borders[:, known[5:-5]]
        for line, inside in ((femur, 4), (tibia, -4)):
            bone, space = (
                crop[(line + shift).astype(int), known[5:-5]].mean() for shift in (-inside, inside)
            )
            assert bone > space + 0.1
        narrow_left = bool((tibia - femur)[0] < (tibia - femur)[-1])
        seen.add((narrow_left, round(float(ends[0, 0]))))
    assert len(seen) > 5
    assert len({narrow_left for narrow_left, _ in seen}) == 2  # some are mirrored


def test_tune_outlines_writes_a_network_that_says_what_it_saw(tmp_path: Path) -> None:
    for name in ("0", "1"):
        write_png16(tmp_path / f"{name}.png", 1 - wedge().astype(np.float32))
        write_png16(tmp_path / f"{name}-mask.png", wedge().astype(np.float32))
    start, out = tmp_path / "start.safetensors", tmp_path / "tuned.safetensors"
    torch.manual_seed(0)
    save_network(start, OutlineNetwork((4, 4, 4, 4, 4)), {"trained_on": "nothing"})
    tune = partial(tune_outlines, steps=STEPS, start=start, device="cpu")
    shown: list[str] = []

    @contextmanager
    def progress(title: str, total: int, done: int = 0) -> Iterator[Callable[[str], None]]:
        assert (title, total, done) == ("tuning", STEPS, 0)
        yield shown.append

    assert tune(read_masks(tmp_path), out, progress=progress) == 2
    assert len(shown) == STEPS
    losses = [float(text.removeprefix("loss ")) for text in shown]
    assert losses[-1] < losses[0]
    assert b"phantoms and 2 drawn knees" in out.read_bytes()
    with pytest.raises(SettingsError, match="`force`"):
        tune(read_masks(tmp_path), out)
    with pytest.raises(SettingsError, match=r"0\.png"):
        tune(read_masks(tmp_path), tmp_path / "0.png", force=True)
    before, after = load_network(start), load_network(out)
    assert not torch.equal(before.head.weight, after.head.weight)
    assert tune(read_masks(tmp_path), out, steps=10, force=True) == 2  # one of which warms up


def test_outlines_of_mask_are_its_borders_bridged_where_columns_are_empty() -> None:
    mask = wedge()
    widths = widths_at(outlines_of_mask(mask), np.linspace(0.1, 0.3))
    assert widths.min() == pytest.approx(11, abs=0.6)
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


def write_outlines(out: Path, *knees: dict[str, Any]) -> None:
    """Write the outlines of a run named "out"."""
    with Run(out, create=True) as run:
        run.store(out="out")
    (out / "outlines.json").write_text(json.dumps({"knees": knees}))


def test_read_corrected_finds_films_from_another_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, moved = tmp_path / "out", tmp_path / "elsewhere"
    out.mkdir()
    moved.mkdir()
    write_png16(tmp_path / "film.png", wedge().astype(np.float32))
    write_outlines(
        out, {"film": "film.png", "corrected": True, **outlines_of_mask(wedge()).to_dict()}
    )
    for folder in (tmp_path, out):
        monkeypatch.chdir(folder)
        (found,) = read_corrected(out)
        assert found.path.resolve() == tmp_path / "film.png"
        assert found.pixels.shape == wedge().shape
    (tmp_path / "film.png").rename(moved / "film.png")
    (found,) = read_corrected(out, moved)
    assert found.path == moved / "film.png"


def test_read_corrected_takes_marked_outlines_only(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="Make the run with `measure`"):
        list(read_corrected(tmp_path))
    film = tmp_path / "film.png"
    write_png16(film, np.linspace(0, 1, 80 * 120, dtype=np.float32).reshape(80, 120))
    plain = {"film": str(film), **outlines_of_mask(wedge()).to_dict()}
    write_outlines(tmp_path, plain)
    with pytest.raises(SettingsError, match="has no outlines with"):
        list(read_corrected(tmp_path))
    marked = plain | {"corrected": True}
    write_outlines(tmp_path, plain, marked, marked | {"polarity": "negative"})
    knee, negative = read_corrected(tmp_path)
    assert knee.outlines.width_px == 100
    np.testing.assert_array_equal(negative.pixels, 1 - knee.pixels)
    for text in ("[]", "[" * 100_000, '{"knees": [{"corrected": true}]}'):
        (tmp_path / "outlines.json").write_text(text)
        with pytest.raises(SettingsError, match="cannot be read"):
            list(read_corrected(tmp_path))
