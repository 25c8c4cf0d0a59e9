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
