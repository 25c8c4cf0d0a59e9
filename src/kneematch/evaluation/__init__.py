"""Settings of `kneematch evaluate`; importing them is fast."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter
from cyclopts.validators import Number

from kneematch import settings
from kneematch.errors import SettingsError
from kneematch.settings import (
    AUTO,
    INPUT,
    METHOD,
    BatchSize,
    Device,
    Force,
    ModelFile,
    Workers,
    check_settings,
    split_names,
)

RUNS: Final = "runs"  # folder of the methods' own runs
GRID: Final = "grid"  # a method that --grid runs on few films
METHODS: Final = (*settings.METHODS, "sliding", "neural", "neural+sharpen")
Methods = Annotated[
    tuple[str, ...],
    Parameter(
        group=METHOD,
        converter=split_names,
        metavar="NAMES",
        show_default="auto and, with --template, search",
    ),
]


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class EvaluateConfig:
    """Which methods `kneematch.evaluate` compares, and how they are run."""

    truth: Annotated[Path | None, Parameter(group=INPUT, metavar="CSV")] = None
    """Labelled tibial plateaus: id, knee, x1, y1, x2, y2 and, if known, flag and source."""
    model: ModelFile = None
    template: Annotated[str | None, Parameter(group=METHOD, metavar="FILE")] = None
    """Annotation written by `kneematch annotate`, to find its boxes instead of the model's own."""
    methods: Methods = ()
    """Methods to run, separated by commas: auto and search, as detect has them, and the paper's on
    the halves of films, sliding, neural and neural+sharpen."""
    grid: Annotated[int, Parameter(group=METHOD, metavar="N", validator=Number(gte=0))] = 0
    """Number of films to also run the paper's (slow) grid search on."""
    force: Force = False
    device: Device = "auto"
    workers: Workers = None
    batch_size: BatchSize = None

    def __post_init__(self) -> None:
        """Refuse settings that contradict each other."""
        check_settings(self)
        if GRID in self.methods:
            raise SettingsError("The grid search is slow: run it on a few films with --grid N.")
        if not self.methods:
            usual = settings.METHODS if self.template else (AUTO,)
            object.__setattr__(self, "methods", usual)
        if sorted({*METHODS} & {*self.methods}) != sorted(self.methods):
            raise SettingsError(f"--methods must be some of {', '.join(METHODS)}, each once.")
