"""A few of the faults that `make faults` injects into a run."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FAULTS = Path(__file__).parents[2] / "lab" / "faults.py"


@pytest.mark.skipif(sys.platform != "linux", reason="calls are intercepted as Linux does")
def test_faults_leave_nothing_half_written_and_resume_to_the_same_bytes() -> None:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler; expected cc; run: apt-get install gcc")
    command = [sys.executable, str(FAULTS), "detect", "others", "--every", "97"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
