"""A folder of films to run the program in, as a process of its own."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kneephantoms.config import SynthConfig
from kneephantoms.dataset import synthesize

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def phantoms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three small films and a template.json, which tests must not change."""
    folder = tmp_path_factory.mktemp("phantoms")
    synthesize(folder, SynthConfig(3, size=(320, 400), workers=0))
    return folder


@pytest.fixture
def folder(phantoms: Path, tmp_path: Path) -> Path:
    """A copy of them."""
    shutil.copytree(phantoms, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.fixture
def run(folder: Path) -> Run:
    def kneematch(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the folder."""
        return subprocess.run(
            [sys.executable, "-m", "kneematch", *arguments],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            capture_output=True,
            text=True,
            errors="surrogateescape",
            check=False,
        )

    return kneematch
