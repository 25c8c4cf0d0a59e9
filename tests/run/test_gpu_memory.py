"""A GPU whose memory is too small for a batch; needs one."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_memory.py"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")
def test_detect_on_a_gpu_with_too_little_memory_halves_batches_and_finds_the_same() -> None:
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
