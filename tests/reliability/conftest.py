"""A folder of films to run the program in, as a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kneephantoms import SynthConfig, synthesize
from program import Run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three small films and a template.json."""
    synthesize(tmp_path, SynthConfig(3, size=(320, 400), workers=0))
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
