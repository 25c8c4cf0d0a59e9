"""A few of the faults that `make faults` injects, and of the files that `make fuzz` spoils."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

LAB = Path(__file__).parents[2] / "lab"


def checked(script: str, *arguments: str) -> str:
    command = [sys.executable, str(LAB / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="calls are intercepted as Linux does")
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler; run: apt-get install gcc")
def test_faults_leave_nothing_half_written_and_resume_to_the_same_bytes() -> None:
    checked("faults.py", "detect", "others", "--every", "97")


def test_fuzz_finds_only_results_and_clear_refusals(tmp_path: Path) -> None:
    printed = checked("fuzz.py", "--inputs", "600", "--seed", "7", "--findings", str(tmp_path))
    assert "| all | 600 |" in printed
