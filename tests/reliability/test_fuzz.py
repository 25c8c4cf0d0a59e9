"""A short run of the fuzzer; `make fuzz` takes longer and tries other inputs."""

import subprocess
import sys
from pathlib import Path

FUZZ = Path(__file__).parents[2] / "lab" / "fuzz.py"


def test_fuzz_finds_only_results_and_clear_refusals(tmp_path: Path) -> None:
    command = [sys.executable, str(FUZZ), "--inputs", "600", "--seed", "7"]
    done = subprocess.run(
        [*command, "--findings", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "| all | 600 |" in done.stdout
