"""Settings of `kneematch evaluate` and `kneematch reproduce`; importing them is fast."""

import math
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from kneematch import options
from kneematch.errors import SettingsError
from kneematch.options import INPUT, METHOD, check_options, option, option_like, parse_names
from kneematch.solvers.settings import N_SCALES, RATE, STEPS, STRIDE, PaperSettings
from kneematch.training.config import PAPER, TrainConfig

GRID: Final = "grid"
PAPER_METHODS: Final = ("sliding", "neural", "neural+sharpen", "search")  # on two half images
METHODS: Final = ("locator", *PAPER_METHODS)

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
        _check_methods(self.methods, METHODS)
        if not (0 < self.grid_stride < 1 and 0 < self.adam_rate < math.inf):
            raise SettingsError(
                f"--grid-stride {self.grid_stride} and --adam-rate {self.adam_rate}; expected a "
                "share between 0 and 1 and a positive rate; correct them"
            )
        comparing = ("model", "template", "grid", "resume")
        given = [f"--{name}" for name in comparing if getattr(self, name)]
        if self.templates is not None and given:
            raise SettingsError(
                f"--templates with {' and '.join(given)}; expected one or the other: to rank "
                "templates, or to compare methods; leave one out"
            )

    def paper_settings(self) -> PaperSettings:
        """Return the settings of the paper's solvers."""
        return PaperSettings(*(getattr(self, name) for name in PaperSettings._fields))


@dataclass(frozen=True, slots=True)
class ReproduceConfig:
    """Which films of a study are used, and how the model is trained and tested."""

    visit: str | None = _input(
        help="Name pattern of the visit's folders.",
        metavar="PATTERN",
        default_text="the study's baseline",
    )
    series: str | None = _input(
        help="Only DICOM files whose SeriesDescription contains TEXT, whatever their folder.",
        metavar="TEXT",
        default_text="the study's bilateral PA films",
    )
    participant: str | None = _input(
        help="Regular expression that matches the names of participants' folders.",
        metavar="REGEX",
        default_text="the study's",
    )
    films: Path | None = _input(
        help="Choose among these films: one path per line, or a CSV with a column of paths.",
        metavar="LIST",
    )
    train: int | None = _input(
        help="Number of films to train on.", metavar="N", minimum=2, default_text="500 for OAI"
    )
    test: int | None = _input(
        help="Number of films to test on.", metavar="N", minimum=1, default_text="400"
    )
    train_list: Path | None = _input(help="Train on exactly these films.", metavar="LIST")
    test_list: Path | None = _input(help="Test on exactly these films.", metavar="LIST")
    truth: Path | None = _input(
        help="Labels of test films: KNEEL's landmarks or denizlab's boxes of OAI, or a CSV as "
        "`kneematch evaluate` takes it.",
        metavar="CSV",
    )
    template: Path | None = _method(None, help="Annotated knee to train on.", metavar="FILE")
    model: Path | None = _method(
        None, help="Model to test instead of training one.", metavar="FILE"
    )
    recipe: str = option_like(TrainConfig, "recipe", default=PAPER.name)
    start: str = option_like(TrainConfig, "start")
    rounds: int | None = option_like(TrainConfig, "rounds")
    epochs: int | None = option_like(TrainConfig, "epochs")
    methods: tuple[str, ...] = option_like(EvaluateConfig, "methods", PAPER_METHODS)
    grid: int = option_like(EvaluateConfig, "grid")
    grid_scales: int = option_like(EvaluateConfig, "grid_scales")
    grid_stride: float = option_like(EvaluateConfig, "grid_stride")
    adam_steps: int = option_like(EvaluateConfig, "adam_steps")
    adam_rate: float = option_like(EvaluateConfig, "adam_rate")
    seed: int = options.seed_option()
    resume: bool = options.resume_option()
    force: bool = options.force_option()
    device: str = options.device_option()
    workers: int | None = options.workers_option()
    cache: Path | None = option_like(TrainConfig, "cache")

    def __post_init__(self) -> None:
        """Refuse settings that contradict each other."""
        check_options(self)
        _check_methods(self.methods, PAPER_METHODS)
        try:
            re.compile(self.participant or "")
        except re.error as error:
            raise SettingsError(
                f"--participant {self.participant}: {error}; expected a regular expression of "
                "folders' names; correct it"
            ) from error


def _check_methods(methods: tuple[str, ...], allowed: tuple[str, ...]) -> None:
    expected = ", ".join(allowed)
    if not methods:
        raise SettingsError(f"no methods; expected some of {expected}; name one")
    if GRID in methods:
        raise SettingsError(
            "grid among the methods; expected the number of films it is run on, since it takes "
            "long; leave it out there and add --grid N"
        )
    unknown = [method for method in methods if method not in allowed]
    if unknown:
        raise SettingsError(f"method {unknown[0]!r}; expected some of {expected}; correct it")
    if len(set(methods)) < len(methods):
        raise SettingsError(f"methods {', '.join(methods)}; expected each once; leave one out")
