"""The good files that are spoilt for fuzzing are good, or hardly anything would be tried."""

import shutil
from pathlib import Path

from fuzz_targets import TARGETS, prepare_folder, write_seeds

PICTURES = "film."  # some of these are pydicom's test files, which are no films


def test_targets_read_their_own_files(tmp_path: Path) -> None:
    seeds, folder = tmp_path / "seeds", tmp_path / "inputs"
    seeds.mkdir()
    folder.mkdir()
    write_seeds(seeds)
    prepare_folder(seeds, folder)
    names = [name for name in TARGETS if not name.startswith(PICTURES)]
    assert len(names) == 7
    for name in names:
        (good, *_) = sorted((seeds / name).iterdir())
        path = folder / f"input-{name}"
        shutil.copy(good, path)
        TARGETS[name].read(path)
