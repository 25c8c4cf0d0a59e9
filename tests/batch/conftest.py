"""Films for the tests of cohorts."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kneematch.detection.detector import Detector
from kneematch.io.read import read
from kneematch.matching.annotation import load_annotation
from kneematch.matching.template import cut_template
from kneematch.solvers.problem import Problem, Solution
from kneematch.synthetic.config import SynthConfig
from kneematch.synthetic.dataset import synthesize


@pytest.fixture(scope="session")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of ten small phantoms and a template.json."""
    folder = tmp_path_factory.mktemp("films")
    synthesize(folder, SynthConfig(10, size=(320, 400), workers=0))
    return folder


@pytest.fixture(scope="session")
def make_detector(films: Path) -> Callable[..., Detector]:
    """Detectors that look nowhere: they find as many knees as there are, always at one pose."""
    annotation = load_annotation(films / "template.json")
    template, _ = cut_template(read(annotation.film), annotation)

    def make(batch_size: int = 3) -> Detector:
        return Detector(template, _nowhere, "nowhere", batch_size=batch_size)

    return make


def _nowhere(problem: Problem) -> Solution:
    """A pose that depends on the film, and on no other film of the batch."""
    n, sides = problem.halves.shape[:2]
    v: Tensor = problem.halves.mean((2, 3))[..., None].expand(n, sides, 4)
    return Solution(v, torch.zeros(n))
