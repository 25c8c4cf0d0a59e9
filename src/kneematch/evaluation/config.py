"""Settings of `kneematch evaluate`; importing them is fast."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from kneematch import options
from kneematch.errors import SettingsError
from kneematch.options import AUTO, INPUT, METHOD, check_options, option, parse_names

RUNS: Final = "runs"  # folder of the methods' own runs
GRID: Final = "grid"
METHODS: Final = tuple(name for name in options.METHODS if name not in (AUTO, GRID))

_input: Any = partial(option, None, group=INPUT)
_method: Any = partial(option, group=METHOD)


@dataclass(frozen=True, slots=True)
class EvaluateConfig:
    """Which methods `kneematch.evaluate` compares, and how they are run."""

    series: str | None = options.series_option()
    truth: Path | None = _input(
        help="Labelled tibial plateaus: id, knee, x1, y1, x2, y2[, flag][, source].", metavar="CSV"
    )
    model: str | None = options.model_option()
    template: str | None = options.template_option()
    methods: tuple[str, ...] = _method(
        METHODS, help="Methods to run, separated by commas.", metavar="NAMES", parser=parse_names
    )
    grid: int = _method(
        0, help="Number of films to also run the (slow) grid search on.", metavar="N", minimum=0
    )
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
            raise SettingsError(f"--methods must be some of {', '.join(METHODS)}, each once.")
