"""Films for the tests of runs."""

from pathlib import Path

import pytest

from kneematch.knee.detector import Detector
from kneephantoms import SynthConfig, synthesize


@pytest.fixture(scope="session")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of ten small phantoms and a template.json."""
    folder = tmp_path_factory.mktemp("films")
    synthesize(folder, SynthConfig(10, size=(320, 400), workers=0))
    return folder


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Where a run writes."""
    return tmp_path / "out"


@pytest.fixture(scope="session")
def detector() -> Detector:
    """The built-in model."""
    return Detector.load(device="cpu")


@pytest.fixture(scope="session")
def template(films: Path) -> str:
    """The path of an annotation."""
    return str(films / "template.json")
