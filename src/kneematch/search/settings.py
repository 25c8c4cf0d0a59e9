"""Names of the methods, and settings of the paper's solvers; importing them is fast."""

from typing import Final, NamedTuple

AUTO: Final = "auto"
LOCATOR: Final = "locator"  # networks and refinement around the knees that the locator finds
NEURAL: Final = (LOCATOR, "neural+sharpen", "neural")
SEARCHES: Final = ("search", "grid", "sliding")  # need no network
METHODS: Final = (AUTO, *NEURAL, *SEARCHES)

STEPS: Final = 300  # of Adam
RATE: Final = 1e-2  # not in the paper: 1e-3 does not converge in 300 steps, 1e-1 diverges
N_SCALES: Final = 10  # of the grid; not in the paper
STRIDE: Final = 0.25  # r: neighbouring patches are at most this share of their size apart


class PaperSettings(NamedTuple):
    """Settings of the refinement by Adam (Sect. 5) and of the grid search (Appendix)."""

    adam_steps: int = STEPS
    adam_rate: float = RATE
    grid_scales: int = N_SCALES  # N_s
    grid_stride: float = STRIDE  # r


DEFAULT_SETTINGS: Final = PaperSettings()
