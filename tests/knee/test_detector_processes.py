"""A detector in other threads and processes, however these were started."""

import multiprocessing
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import film_dataset
from film_dataset import Knees
from kneematch import Detector
from kneephantoms.config import SynthConfig
from kneephantoms.dataset import synthesize

# As a program of its own: torch has several threads, and they have worked before the fork.
PROGRAM = """
import multiprocessing, sys, torch
from torch.utils.data import DataLoader
from film_dataset import Knees
from kneematch import Detector
torch.set_num_threads(4)
method, *films = sys.argv[1:]
if __name__ == "__main__":
    dataset = Knees(films, Detector.load(device="cpu"))
    before = [dataset[k] for k in range(len(films))]
    torch.ones(2000, 2000) @ torch.ones(2000, 2000)
    with multiprocessing.get_context(method).Pool(2) as pool:
        pooled = pool.map(dataset.__getitem__, range(len(films)))
    workers = dict(num_workers=2, multiprocessing_context=method)
    loaded = list(DataLoader(dataset, batch_size=None, **workers))
    # The last digits depend on the number of threads.
    for after in (pooled, loaded):
        assert abs(torch.cat(before) - torch.cat(after)).max() < 0.01
    print(len(torch.cat(loaded)))
"""


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two phantoms in DICOM and one in a PNG, which needs a decoder."""
    folder = tmp_path_factory.mktemp("films")
    synthesize(folder, SynthConfig(2, size=(320, 400), workers=0))
    paths = sorted(folder.glob("*.dcm"))
    from kneematch import read

    grey = (255 * read(paths[0]).pixels).astype(np.uint8)
    Image.fromarray(grey).save(folder / "film.png")
    return [*paths, folder / "film.png"]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_detector_works_in_processes_of_a_program_with_many_threads(
    films: list[Path], tmp_path: Path, method: str
) -> None:
    """In a Pool, and in the workers of a DataLoader."""
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip("no such start method here")
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    environment["PYTHONPATH"] = str(Path(film_dataset.__file__).parent)
    command = [sys.executable, str(tmp_path / "program.py"), method, *map(str, films)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert (done.returncode, done.stdout) == (0, "6\n"), done.stderr


def test_detector_works_in_threads(films: list[Path]) -> None:
    knees = Knees(films, Detector.load(device="cpu"))
    alone = [knees[k] for k in range(len(films))]
    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(knees.__getitem__, [*range(len(films))] * 2))
    for one, other in zip(found, alone * 2, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


def test_detector_pickles_what_it_was_loaded_with(
    films: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(films[0].parent)
    given = {"method": "search", "device": "cpu", "left_is": "L", "cropped": True}
    drawn = Detector.load(template="template.json", **given)
    pickled = pickle.dumps(drawn)
    assert len(pickled) < 2000
    monkeypatch.chdir(tmp_path)
    again = pickle.loads(pickled)
    assert (again.method, again.preparation) == (drawn.method, drawn.preparation)
    np.testing.assert_array_equal(again.template.image, drawn.template.image)
    with pytest.raises(TypeError, match=r"Detector\.load"):
        pickle.dumps(Detector(drawn.template, drawn.solver, "search"))
