"""Names of the methods, and settings of the paper's solvers; importing them is fast."""

from typing import Final, NamedTuple

AUTO: Final = "auto"
LOCATOR: Final = "locator"  # networks and refinement around the knees that the locator finds
NEURAL: Final = (LOCATOR, "neural+sharpen", "neural")
SEARCHES: Final = ("search", "grid", "sliding")  # need no network
METHODS: Final = (AUTO, *NEURAL, *SEARCHES)

# The defaults of paper.sharpening and paper.grid_search, which import torch; a test compares them.
STEPS: Final = 300
RATE: Final = 1e-2
N_SCALES: Final = 10
STRIDE: Final = 0.25


class PaperSettings(NamedTuple):
    """Settings of the sharpening by Adam (Sect. 5) and of the grid search (Appendix)."""

    adam_steps: int = STEPS
    adam_rate: float = RATE
    grid_scales: int = N_SCALES  # N_s
    grid_stride: float = STRIDE  # r


DEFAULT_SETTINGS: Final = PaperSettings()
