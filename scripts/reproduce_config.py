"""Settings of reproduce_oai_most.py."""

import re
from dataclasses import MISSING, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

from kneematch import options
from kneematch.errors import SettingsError
from kneematch.evaluation.config import PAPER_METHODS, EvaluateConfig, check_methods
from kneematch.options import INPUT, METHOD, check_options, option
from kneematch.training.config import PAPER, TrainConfig

_input: Any = partial(option, None, group=INPUT)
_method: Any = partial(option, None, group=METHOD)


def like(config: type[Any], name: str, default: Any = MISSING) -> Any:
    """Return a dataclass field with the option of another configuration's field of this name."""
    other = next(item for item in fields(config) if item.name == name)
    return field(default=other.default if default is MISSING else default, metadata=other.metadata)


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
    template: Path | None = _method(help="Annotated knee to train on.", metavar="FILE")
    model: Path | None = _method(help="Model to test instead of training one.", metavar="FILE")
    recipe: str = like(TrainConfig, "recipe", default=PAPER.name)
    start: str = like(TrainConfig, "start")
    rounds: int | None = like(TrainConfig, "rounds")
    epochs: int | None = like(TrainConfig, "epochs")
    methods: tuple[str, ...] = like(EvaluateConfig, "methods", PAPER_METHODS)
    grid: int = like(EvaluateConfig, "grid")
    grid_scales: int = like(EvaluateConfig, "grid_scales")
    grid_stride: float = like(EvaluateConfig, "grid_stride")
    adam_steps: int = like(EvaluateConfig, "adam_steps")
    adam_rate: float = like(EvaluateConfig, "adam_rate")
    seed: int = options.seed_option()
    resume: bool = options.resume_option()
    force: bool = options.force_option()
    device: str = options.device_option()
    workers: int | None = options.workers_option()
    cache: Path | None = like(TrainConfig, "cache")

    def __post_init__(self) -> None:
        """Refuse settings that contradict each other."""
        check_options(self)
        check_methods(self.methods, PAPER_METHODS)
        try:
            re.compile(self.participant or "")
        except re.error as error:
            raise SettingsError(
                f"--participant {self.participant}: {error}; expected a regular expression of "
                "folders' names; correct it"
            ) from error
