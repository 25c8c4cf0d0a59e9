"""Settings of `kneematch evaluate`; importing them is fast."""

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from kneematch import options
from kneematch.errors import SettingsError
from kneematch.options import INPUT, METHOD, check_options, option, parse_names
from kneematch.search.settings import N_SCALES, RATE, STEPS, STRIDE, PaperSettings

RUNS: Final = "runs"  # folder of the methods' own runs
GRID: Final = "grid"
METHODS: Final = ("locator", "sliding", "neural", "neural+sharpen", "search")

_input: Any = partial(option, None, group=INPUT)
_method: Any = partial(option, group=METHOD)


@dataclass(frozen=True, slots=True)
class EvaluateConfig:
    """Which methods `kneematch.evaluate` compares, and how they are run."""

    series: str | None = options.series_option()
    limit: int | None = options.limit_option()
    truth: Path | None = _input(
        help="Labelled tibial plateaus: id, knee, x1, y1, x2, y2[, flag][, source].", metavar="CSV"
    )
    templates: Path | None = _input(
        help="Rank the annotated knees (*.json) of this folder instead of comparing methods.",
        metavar="FOLDER",
    )
    model: str | None = options.model_option()
    template: str | None = options.template_option()
    methods: tuple[str, ...] = _method(
        METHODS, help="Methods to run, separated by commas.", metavar="NAMES", parser=parse_names
    )
    grid: int = _method(
        0, help="Number of films to also run the (slow) grid search on.", metavar="N", minimum=0
    )
    grid_scales: int = _method(
        N_SCALES, help="Scales of the grid (the paper's N_s).", metavar="N", minimum=2
    )
    grid_stride: float = _method(
        STRIDE,
        help="Distance of the grid's patches as a share of their size (the paper's r).",
        metavar="SHARE",
    )
    adam_steps: int = _method(
        STEPS,
        help="Steps of Adam, in the grid search and, with --paper, in the refinement.",
        metavar="N",
        minimum=1,
    )
    adam_rate: float = _method(RATE, help="Learning rate of these steps.", metavar="RATE")
    paper: bool = options.paper_option()
    resume: bool = options.resume_option()
    force: bool = options.force_option()
    device: str = options.device_option()
    workers: int | None = options.workers_option()
    batch_size: int | None = options.batch_size_option()

    def __post_init__(self) -> None:
        """Refuse settings that contradict each other."""
        check_options(self)
        if GRID in self.methods:
            raise SettingsError("The grid search is slow: run it on a few films with --grid N.")
        if not self.methods or sorted(set(METHODS) & set(self.methods)) != sorted(self.methods):
            raise SettingsError(
                f"--methods {','.join(self.methods)}: Name some of {', '.join(METHODS)}, each once."
            )
        if not 0 < self.grid_stride < 1:
            raise SettingsError("--grid-stride must be between 0 and 1.")
        if not 0 < self.adam_rate < math.inf:
            raise SettingsError("--adam-rate must be a positive number.")
        comparing = ("model", "template", "grid", "resume")
        given = [f"--{name}" for name in comparing if getattr(self, name)]
        if self.templates is not None and given:
            raise SettingsError(
                f"--templates ranks templates and compares no methods: leave out "
                f"{' and '.join(given)}."
            )

    def paper_settings(self) -> PaperSettings:
        """Return the settings of the paper's solvers."""
        return PaperSettings(*(getattr(self, name) for name in PaperSettings._fields))
