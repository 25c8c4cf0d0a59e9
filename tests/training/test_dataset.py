"""Tests of the training films: prepared once, in order, whatever happens to one of them."""

import resource
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kneematch.errors import SettingsError
from kneematch.films.read import read
from kneematch.knee.knee_images import film_tensor
from kneematch.paper.split import split
from kneematch.training import dataset
from kneephantoms.config import SynthConfig
from kneephantoms.dataset import synthesize
from kneephantoms.files import write_dicom

SIDE_MARGIN = 0.08
COUNT = 4
prepare_films = partial(dataset.prepare_films, side_margin=SIDE_MARGIN)


@pytest.fixture
def films(tmp_path: Path) -> list[Path]:
    synthesize(tmp_path / "films", SynthConfig(COUNT, size=(320, 400), workers=0))
    return sorted((tmp_path / "films").glob("*.dcm"))


def wanted(films: list[Path]) -> Tensor:
    return torch.stack(
        [split(film_tensor(read(film)), side_margin=SIDE_MARGIN).pixels for film in films]
    )


def test_prepare_films_keeps_halves_to_sixteen_bits(films: list[Path], tmp_path: Path) -> None:
    made, failures = prepare_films(films, tmp_path)
    assert failures == []
    assert len(made) == COUNT
    halves = made.halves(torch.tensor([2, 0, 2]))
    assert (halves.shape, halves.dtype) == ((3, 2, 800, 500), torch.float32)
    assert (halves - wanted([films[2], films[0], films[2]])).abs().max() < 1e-5
    assert [path.name for path in tmp_path.iterdir()] == ["films"]
    again, _ = prepare_films(films, tmp_path)
    other, _ = prepare_films(films[::-1], tmp_path)
    assert again.digest == made.digest != other.digest


def test_prepare_films_gives_a_reason_for_films_of_one_knee_and_broken_ones(
    films: list[Path], tmp_path: Path
) -> None:
    knee, broken, gone = (tmp_path / name for name in ("knee.dcm", "broken.dcm", "gone.dcm"))
    write_dicom(knee, read(films[0]).pixels, mm_per_px=None, laterality="L")
    broken.write_bytes(b"no film")
    named = [knee, films[1], broken, tmp_path, films[0], gone, films[1]]
    calls: list[int] = []
    made, failures = prepare_films(named, tmp_path, report=lambda: calls.append(1))
    assert len(calls) == len(set(named))
    assert (made.halves(torch.arange(2)) - wanted([films[1], films[0]])).abs().max() < 1e-5
    assert [path for path, _ in failures] == [str(p) for p in (knee, broken, tmp_path, gone)]
    assert all(path in reason for path, reason in failures)
    for (_, reason), text in zip(
        failures, ("one knee", "", "a folder", "No such file"), strict=True
    ):
        assert text in reason
    assert len(prepare_films([broken], tmp_path)[0]) == 0


def test_prepare_films_says_how_much_room_it_needs(films: list[Path], tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, before[1]))  # bytes: one film
    try:
        with pytest.raises(SettingsError, match=r"File too large\. .*1\.6 MB per film"):
            prepare_films(films, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
