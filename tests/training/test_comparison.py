"""A trained model against the built-in one."""

from dataclasses import replace
from pathlib import Path

import torch

from kneematch.geometry.split import split
from kneematch.io.write import write_dicom
from kneematch.matching.annotation import Annotation, annotate
from kneematch.networks.model_file import load_model, save_model, shipped_model
from kneematch.networks.pose_network import PoseNetwork
from kneematch.synthetic.phantom import phantom
from kneematch.training.comparison import compare_with_built_in

SIZE = (480, 600)


def drawn_on(folder: Path, seed: int) -> Annotation:
    made = phantom(seed, size=SIZE)
    path = folder / "film.dcm"
    write_dicom(path, made.radiograph.pixels, mm_per_px=None, laterality="B", bits=16)
    knee = made.knees[1]
    return annotate(path, knee.side, knee.plateau_left, knee.plateau_right)


def test_compare_with_built_in_tells_an_untrained_model_from_a_good_one(tmp_path: Path) -> None:
    drawn = drawn_on(tmp_path, 22)
    films = [phantom(seed, size=SIZE).radiograph for seed in (1, 2, 5, 22)]
    halves = torch.stack([split(film).pixels for film in films])
    good = load_model(shipped_model())
    torch.manual_seed(0)
    bad = replace(good, coarse=PoseNetwork().state_dict(), fine=PoseNetwork().state_dict())
    save_model(tmp_path / "bad.safetensors", bad)
    loss, _ = compare_with_built_in(tmp_path / "bad.safetensors", drawn, halves)
    assert loss.worse
    assert loss.trained > 2 * loss.built_in
    same, heights = compare_with_built_in(shipped_model(), drawn, halves)
    assert not same.worse
    assert not heights.worse


def test_compare_with_built_in_says_nothing_where_it_sees_no_knee(tmp_path: Path) -> None:
    drawn = drawn_on(tmp_path, 22)
    noise = torch.rand(SIZE, generator=torch.Generator().manual_seed(0)).numpy()
    write_dicom(drawn.film, noise, mm_per_px=None, laterality="B", bits=16)
    halves = split(phantom(1, size=SIZE).radiograph).pixels[None]
    assert compare_with_built_in(shipped_model(), drawn, halves) == []
