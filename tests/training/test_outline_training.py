"""Joint spaces that people drew, and the tuning of the outline network on them."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kneematch.errors import SettingsError
from kneematch.knee.measure import MEDIAL, minimum_width
from kneematch.knee.outlines import Outlines
from kneematch.models.outlines import OutlineNetwork, load_network, save_network
from kneematch.run.database import Run
from kneematch.training.outline_crops import JOINT, render_maps, sample_crops
from kneematch.training.outline_training import (
    OutlineConfig,
    maps_of_knees,
    outline_loss,
    outlines_of_mask,
    read_corrected,
    read_masks,
    train_outlines,
    tune_outlines,
)
from kneephantoms.files import write_png16


def write_phantom_masks(folder: Path, count: int) -> None:
    maps = render_maps(range(count), JOINT)
    rows = torch.arange(JOINT.size)[:, None] + 0.5
    for knee in range(count):
        left, right = maps.margins[knee, :, 0]
        columns = torch.arange(JOINT.size) + 0.5
        inside = (columns > left) & (columns < right)
        mask = (rows > maps.femur[knee]) & (rows < maps.tibia[knee]) & inside
        grey = maps.pixels[knee].float()
        write_png16(folder / f"{knee}.png", (grey / grey.max()).numpy())
        write_png16(folder / f"{knee}-mask.png", mask.float().numpy())


def test_maps_of_knees_centre_the_plateau(tmp_path: Path) -> None:
    write_phantom_masks(tmp_path, 2)
    crops = list(read_masks(tmp_path))
    maps = maps_of_knees(crops)
    widths = (maps.margins[:, 1] - maps.margins[:, 0]).norm(dim=-1)
    assert torch.allclose(widths, torch.full((2,), float(JOINT.px)), atol=0.5)
    middle = maps.margins.mean(1)
    assert torch.allclose(middle, torch.full((2, 2), JOINT.size / 2), atol=0.5)
    for crop, gap in zip(crops, (maps.tibia - maps.femur)[:, JOINT.size // 3], strict=True):
        outlines = crop.outlines
        x = outlines.tibia[0, 0] + (JOINT.size / 3 - (JOINT.size - JOINT.px) / 2) / JOINT.px * (
            outlines.width_px
        )
        drawn = [np.interp(x, *line.T) for line in (outlines.tibia, outlines.femur)]
        assert abs(gap - (drawn[0] - drawn[1]) * JOINT.px / outlines.width_px) < 2


def test_maps_of_knees_turn_films_upright(tmp_path: Path) -> None:
    write_phantom_masks(tmp_path, 1)
    (knee,) = read_masks(tmp_path)
    upright = maps_of_knees([knee])
    for _ in range(3):
        height = knee.pixels.shape[0]
        lines = (
            np.stack([height - line[:, 1], line[:, 0]], axis=1)  # a quarter turn clockwise
            for line in (knee.outlines.femur, knee.outlines.tibia)
        )
        knee = replace(
            knee,
            pixels=np.rot90(knee.pixels, -1),
            outlines=Outlines(*lines, knee.outlines.medial),
        )
        turned = maps_of_knees([knee])
        for name in ("pixels", "femur", "tibia", "margins"):
            expected = getattr(upright, name)
            torch.testing.assert_close(getattr(turned, name), expected, atol=2e-3, rtol=0)


def test_tune_outlines_writes_a_network_that_says_what_it_saw(tmp_path: Path) -> None:
    write_phantom_masks(tmp_path, 2)
    start, out = tmp_path / "start.safetensors", tmp_path / "tuned.safetensors"
    torch.manual_seed(0)
    save_network(start, OutlineNetwork((4, 4, 4, 4, 4)), {"trained_on": "nothing"})
    config = OutlineConfig(steps=4, batch=2, phantoms=2, start=start, device="cpu")
    shown: list[str] = []

    @contextmanager
    def progress(title: str, total: int, done: int = 0) -> Iterator[Callable[[str], None]]:
        assert (title, total, done) == ("tuning", 4, 0)
        yield shown.append

    assert tune_outlines(read_masks(tmp_path), out, config, progress=progress) == 2
    assert len(shown) == config.steps
    assert all(text.startswith("loss ") for text in shown)
    assert b"phantoms and 2 drawn knees" in out.read_bytes()
    with pytest.raises(SettingsError, match="--force"):
        tune_outlines(read_masks(tmp_path), out, config)
    with pytest.raises(SettingsError, match=r"0\.png"):
        tune_outlines(read_masks(tmp_path), tmp_path / "0.png", config, force=True)
    before, after = load_network(start), load_network(out)
    assert not torch.equal(before.head.weight, after.head.weight)


def test_train_outlines_lowers_the_loss() -> None:
    torch.manual_seed(0)
    network, maps = OutlineNetwork((4, 4, 4, 4, 4)), render_maps(range(3), JOINT)
    generator = torch.Generator().manual_seed(1)
    batch = sample_crops(maps, torch.arange(3), generator)
    before = outline_loss(network, batch).item()
    config = OutlineConfig(steps=5, batch=2, rate=1e-2, frozen_from=0.6)
    train_outlines(network, [maps], config)
    assert not network.training
    assert outline_loss(network, batch).item() < before


def wedge() -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    """Ten pixels high on the left, twenty on the right, 100 wide."""
    x, y = np.arange(120), np.arange(80)[:, None]
    return (x >= 10) & (x < 110) & (y >= 40 - (x - 10) / 10) & (y < 50)


def test_outlines_of_mask_are_its_borders_bridged_where_columns_are_empty() -> None:
    mask = wedge()
    assert minimum_width(outlines_of_mask(mask), MEDIAL) == pytest.approx(11, abs=0.6)
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
    with pytest.raises(SettingsError, match="Make the run with --measure"):
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
