"""The paper's Tables 1 and 2 again: train on a study's films, test on others, compare."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from kneematch.batch.config import DetectorSource
from kneematch.errors import SettingsError
from kneematch.evaluation import config as evaluation
from kneematch.evaluation.datasets import Choice, Split, Study, from_root, split_films
from kneematch.evaluation.losses import film_losses
from kneematch.evaluation.method_runs import RUNS, unheard
from kneematch.evaluation.run import Evaluation, evaluate
from kneematch.evaluation.statistics import mean
from kneematch.evaluation.tables import Cell, Column, Table, digits, to_csv, to_latex, to_markdown
from kneematch.io.atomic import write_aside
from kneematch.matching.annotation import load_annotation
from kneematch.networks.model_file import load_model
from kneematch.progress import Progress, no_progress
from kneematch.training.config import TrainConfig, recipe_from_json
from kneematch.training.trainer import checkpoint_path, train, training_settings

MODEL: Final = "model.safetensors"
LISTS: Final = ("train.txt", "test.txt")
TABLE: Final = "reproduction"
TITLES: Final = {
    "sliding": "template matching",
    "neural": "neural method",
    "neural+sharpen": "neural method + sharpening step",
    "search": "search (not in the paper)",
}


@dataclass(frozen=True, slots=True)
class Settings:
    """Which study, where its films are, and how the model is trained."""

    study: Study
    root: Path
    out: Path
    training: TrainConfig
    template: Path | None = None  # to train on; a model has its own
    model: Path | None = None  # trained before
    choice: Choice = field(default_factory=Choice)
    methods: tuple[str, ...] = evaluation.METHODS
    workers: int | None = None  # processes that read films; None goes by the cores
    cache: Path | None = None  # for prepared films
    resume: bool = False
    force: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        name, choice = self.study.name, self.choice
        if self.resume and self.force:
            raise SettingsError(
                "--resume and --force; expected one of them: to continue, or to start over"
            )
        if not self.study.train and (choice.train or choice.train_list):
            raise SettingsError(
                f"films of {name} to train on; expected only films to test, as in the paper's "
                f"{self.study.table}; leave --train and --train-list out"
            )
        if not self.study.train and self.model is None:
            raise SettingsError(
                f"{name} without a model; expected one that was trained on OAI, as for the paper's "
                f"{self.study.table}; name with --model the {MODEL} that `kneematch reproduce oai` "
                "made"
            )
        if (self.model is None) == (self.template is None):
            found = "neither --template nor" if self.model is None else "both --template and"
            raise SettingsError(
                f"{found} --model; expected a template to train on (draw it with `kneematch "
                "annotate`), or a model, which has its own; name one of them"
            )


@dataclass(frozen=True, slots=True, eq=False)
class Reproduction:
    """The table, where it was written, and what could not be used."""

    table: Table
    evaluation: Evaluation
    left_out: tuple[str, ...]  # why, of films that were to be trained on


def reproduce(
    settings: Settings,
    progress: Progress = no_progress,
    say: Callable[[str], None] = unheard,
    show: Progress = no_progress,
    command: Sequence[str] = (),
) -> Reproduction:
    """Choose films, train, run every method on the others, and compare with what was printed.

    Args:
        settings: of all of that.
        progress: opened for the films to prepare, and then for every method.
        say: told what is done next.
        show: opened for the films to prepare, and for the epochs of the training.
        command: as it was typed, for evaluation.json.

    Raises:
        SettingsError: too few films, or the folder holds another reproduction.
    """
    say(f"looking for films of {settings.study.name}")
    split = split_films(settings.study, settings.root, settings.choice)
    _settle(settings, split)
    say(f"{len(split.train)} films to train on, {len(split.test)} to test")
    model, left_out = settings.model, tuple[str, ...]()
    if model is None:
        model = settings.out / MODEL
        if settings.resume and model.exists():
            _check_model(model, settings)
        else:
            left_out = _train(settings, split.train, show)
    asked = evaluation.Settings(
        settings.out,
        DetectorSource(
            model=str(model),
            paper=settings.training.hyperparameters().paper_energy,
            device=settings.training.device,
        ),
        methods=settings.methods,
        workers=settings.workers,
        resume=settings.resume,
        force=settings.force,
    )
    done = evaluate(asked, split.test, progress, say, command)
    table = reproduction_table(settings, done)
    _write(table, settings.out)
    return Reproduction(table, done, left_out)


def reproduction_table(settings: Settings, done: Evaluation) -> Table:
    """Method by method: what was printed, what came out, and how they differ."""
    losses = {trial.method: film_losses(trial) for trial in done.trials}
    shared = set.intersection(*map(set, losses.values()))
    rows: list[tuple[Cell, ...]] = []
    for method, loss in losses.items():
        found = mean([loss[film] for film in sorted(shared)])
        printed = settings.study.printed.get(method)
        difference = None
        if printed is not None and found.value is not None:
            difference = found.value - printed
        rows.append((TITLES[method], printed, found.value, found.error, difference))
    columns = (
        Column("method"),
        Column("printed", digits(3)),
        Column("here", digits(3)),
        Column("standard error", digits(4)),
        Column("difference", digits(3)),
    )
    return Table(TABLE, _caption(settings, len(shared)), columns, tuple(rows))


def _caption(settings: Settings, films: int) -> str:
    study, how = settings.study, settings.training
    model = "the model that was given" if settings.model else f"trained from {how.start} weights"
    return (
        f"Mean of left + right loss over {films} films of {study.name}, beside the paper's "
        f"{study.table} ({study.test} films); {how.recipe} recipe, {model}. The template is "
        "not the paper's, nor are the films the same."
    )


def _settle(settings: Settings, split: Split) -> None:
    """Write down which films are meant, unless that would spoil what is there."""
    out, model = settings.out, settings.out / MODEL
    began = (model, checkpoint_path(model), out / RUNS)
    if not (settings.resume or settings.force) and any(path.exists() for path in began):
        raise SettingsError(
            f"{out}: there is a reproduction in this folder already; expected a new folder; "
            "continue it with --resume, start over with --force, or name another folder"
        )
    out.mkdir(parents=True, exist_ok=True)
    for name, films in zip(LISTS, (split.train, split.test), strict=True):
        text = b"".join(os.fsencode(from_root(film, settings.root)) + b"\n" for film in films)
        path = out / name
        if settings.resume and path.exists() and path.read_bytes() != text:
            raise SettingsError(
                f"{path}: other films than are chosen now; expected the same; resume with the "
                "options it began with, or start over with --force"
            )
        if films:
            with write_aside(path) as aside:
                aside.write_bytes(text)


def _check_model(model: Path, settings: Settings) -> None:
    """See that a model that is not trained again is what would be trained."""
    told = dict(load_model(model).settings)
    told["recipe"] = recipe_from_json(told.get("recipe", {}))
    for name, value in training_settings(settings.training, _template(settings)).items():
        if told.get(name) != value:
            raise SettingsError(
                f"{model}: trained with another {name}; expected the same; resume with the options "
                "it began with, or start over with --force"
            )


def _train(settings: Settings, films: Sequence[str], show: Progress) -> tuple[str, ...]:
    """Make the model; return why films were left out."""
    model = settings.out / MODEL
    config = replace(
        settings.training,
        workers=settings.workers,
        cache=settings.cache,
        resume=settings.resume and checkpoint_path(model).exists(),
    )
    load_annotation(_template(settings))  # before the model of an earlier training is removed
    model.unlink(missing_ok=True)  # or a stop would leave what is not this training's
    if not config.resume:
        checkpoint_path(model).unlink(missing_ok=True)
    done = train(films, _template(settings), model, config, progress=show)
    return tuple(reason for _, reason in done.failures)


def _template(settings: Settings) -> Path:
    if settings.template is None:
        raise ValueError("no template; expected one, as the settings have made sure of")
    return settings.template


def _write(table: Table, out: Path) -> None:
    for suffix, text in ((".csv", to_csv), (".md", to_markdown), (".tex", to_latex)):
        with write_aside(out / f"{table.name}{suffix}") as aside:
            aside.write_text(text(table), encoding="utf-8")
