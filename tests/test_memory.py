"""Freed memory is kept, or returned to the system."""

import subprocess
import sys


def test_keep_memory_gives_freed_memory_out_again_without_page_faults() -> None:
    code = """
import resource, sys
import numpy as np
from kneematch.parallel import keep_memory
if sys.argv[1] == "kept":
    keep_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
np.ones(50_000_000, np.uint8)
before = faults()
np.ones(50_000_000, np.uint8)
print(faults() - before)
"""
    kept, returned = (
        int(subprocess.check_output([sys.executable, "-c", code, how])) for how in ("kept", "not")
    )
    assert kept < 100 < returned


def test_release_memory_returns_what_was_kept() -> None:
    code = """
from pathlib import Path
import numpy as np
from kneematch.parallel import keep_memory, release_memory
def resident_mb():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6
keep_memory()
np.ones(50_000_000, np.uint8)
kept = resident_mb()
release_memory()
print(kept - resident_mb())
"""
    assert float(subprocess.check_output([sys.executable, "-c", code])) > 40
