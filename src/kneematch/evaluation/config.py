"""Settings of `kneematch evaluate` and `kneematch reproduce`; importing them is fast."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kneematch.errors import SettingsError
from kneematch.options import (
    INPUT,
    METHOD,
    batch_size_option,
    check_options,
    device_option,
    force_option,
    limit_option,
    model_option,
    option,
    option_like,
    paper_option,
    resume_option,
    seed_option,
    series_option,
    template_option,
    workers_option,
)
from kneematch.training.config import PAPER, TrainConfig

GRID: Final = "grid"
METHODS: Final = ("sliding", "neural", "neural+sharpen", "search")
FEWEST_TO_TRAIN: Final = 2
LIST: Final = "LIST"


def parse_names(text: str) -> tuple[str, ...]:
    """Return names that are separated by commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


@dataclass(frozen=True, slots=True)
class EvaluateConfig:
    """Which methods `kneematch.evaluate` compares, and how they are run."""

    series: str | None = series_option()
    limit: int | None = limit_option()
    truth: Path | None = option(
        None,
        help="Labelled tibial plateaus: id, knee, x1, y1, x2, y2[, flag][, source].",
        group=INPUT,
        metavar="CSV",
    )
    templates: Path | None = option(
        None,
        help="Rank the annotated knees (*.json) of this folder instead of comparing methods.",
        group=INPUT,
        metavar="FOLDER",
    )
    model: str | None = model_option()
    template: str | None = template_option()
    methods: tuple[str, ...] = option(
        METHODS,
        help="Methods to run, separated by commas.",
        group=METHOD,
        metavar="NAMES",
        parser=parse_names,
    )
    grid: int = option(
        0,
        help="Number of films to also run the (slow) grid search on.",
        group=METHOD,
        metavar="N",
        minimum=0,
    )
    paper: bool = paper_option()
    resume: bool = resume_option()
    force: bool = force_option()
    device: str = device_option()
    workers: int | None = workers_option()
    batch_size: int | None = batch_size_option()

    def __post_init__(self) -> None:
        """Refuse settings that contradict each other."""
        check_options(self)
        _check_methods(self.methods)
        _check_resume(self.resume, self.force)
        comparing = {
            "--model": self.model,
            "--template": self.template,
            "--grid": self.grid,
            "--resume": self.resume,
        }
        given = [name for name, value in comparing.items() if value]
        if self.templates is not None and given:
            raise SettingsError(
                f"--templates with {' and '.join(given)}; expected one or the other: to rank "
                "templates, or to compare methods; leave one out"
            )


@dataclass(frozen=True, slots=True)
class ReproduceConfig:
    """Which films of a study are used, and how the model is trained and tested."""

    visit: str | None = option(
        None,
        help="Name pattern of the visit's folders.",
        group=INPUT,
        metavar="PATTERN",
        default_text="the study's baseline",
    )
    series: str | None = option(
        None,
        help="Only DICOM files whose SeriesDescription contains TEXT, whatever their folder.",
        group=INPUT,
        metavar="TEXT",
        default_text="the study's bilateral PA films",
    )
    participant: str | None = option(
        None,
        help="Regular expression that matches the names of participants' folders.",
        group=INPUT,
        metavar="REGEX",
        default_text="the study's",
    )
    films: Path | None = option(
        None,
        help="Choose among these films: one path per line, or a CSV with a column of paths.",
        group=INPUT,
        metavar=LIST,
    )
    train: int | None = option(
        None,
        help="Number of films to train on.",
        group=INPUT,
        metavar="N",
        minimum=FEWEST_TO_TRAIN,
        default_text="500 for OAI",
    )
    test: int | None = option(
        None,
        help="Number of films to test on.",
        group=INPUT,
        metavar="N",
        minimum=1,
        default_text="400",
    )
    train_list: Path | None = option(
        None, help="Train on exactly these films.", group=INPUT, metavar=LIST
    )
    test_list: Path | None = option(
        None, help="Test on exactly these films.", group=INPUT, metavar=LIST
    )
    template: Path | None = option(
        None, help="Annotated knee to train on.", group=METHOD, metavar="FILE"
    )
    model: Path | None = option(
        None, help="Model to test instead of training one.", group=METHOD, metavar="FILE"
    )
    recipe: str = option_like(TrainConfig, "recipe", default=PAPER.name)
    start: str = option_like(TrainConfig, "start")
    rounds: int | None = option_like(TrainConfig, "rounds")
    epochs: int | None = option_like(TrainConfig, "epochs")
    methods: tuple[str, ...] = option_like(EvaluateConfig, "methods")
    seed: int = seed_option()
    resume: bool = resume_option()
    force: bool = force_option()
    device: str = device_option()
    workers: int | None = workers_option()
    cache: Path | None = option_like(TrainConfig, "cache")

    def __post_init__(self) -> None:
        """Refuse settings that contradict each other."""
        check_options(self)
        _check_methods(self.methods)
        _check_resume(self.resume, self.force)
        try:
            re.compile(self.participant or "")
        except re.error as error:
            raise SettingsError(
                f"--participant {self.participant}: {error}; expected a regular expression of "
                "folders' names; correct it"
            ) from error


def _check_methods(methods: tuple[str, ...]) -> None:
    expected = ", ".join(METHODS)
    if not methods:
        raise SettingsError(f"no methods; expected some of {expected}; name one")
    for method in methods:
        if method == GRID:
            raise SettingsError(
                "grid among the methods; expected the number of films it is run on, since it "
                "takes long; leave it out there and add --grid N"
            )
        if method not in METHODS:
            raise SettingsError(f"method {method!r}; expected some of {expected}; correct it")
    if len(set(methods)) < len(methods):
        raise SettingsError(f"methods {', '.join(methods)}; expected each once; leave one out")


def _check_resume(resume: bool, force: bool) -> None:
    if resume and force:
        raise SettingsError(
            "--resume and --force; expected one of them: to continue, or to start over"
        )
