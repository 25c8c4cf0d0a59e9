"""Reproduce the paper's Tables 1 and 2: train on a study's films, test on others, compare.

    python scripts/reproduce_oai_most.py oai --root OAI --template template.json -o oai-out
    python scripts/reproduce_oai_most.py most --root MOST --model oai-out/model.safetensors -o OUT

docs/reproduce.md describes the films and the options.
"""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from kneematch import EvaluateConfig, TrainConfig, evaluate, train
from kneematch.cli.evaluate import print_failures, print_tables
from kneematch.cli.main import CONTEXT, run
from kneematch.cli.options import OutFolder, config_options
from kneematch.cli.terminal import (
    SOME_FAILED,
    print_table,
    progress_bar,
    shown,
    stopping_cleanly,
    writing,
)
from kneematch.errors import SettingsError
from kneematch.evaluation.config import GRID, RUNS
from kneematch.evaluation.losses import film_losses, mean_and_error
from kneematch.evaluation.method_runs import MethodRun
from kneematch.evaluation.run import EvaluateResult
from kneematch.evaluation.scores import require_margins
from kneematch.evaluation.tables import (
    Table,
    columns,
    to_csv,
    to_markdown,
    write_text,
)
from kneematch.films.annotation import load_annotation
from kneematch.films.csv_text import Cell
from kneematch.films.files import make_folder, refuse_existing, write_file
from kneematch.models.model_file import load_model
from kneematch.progress import Progress, no_progress
from kneematch.search.settings import PaperSettings
from kneematch.training.config import RECIPES
from kneematch.training.trainer import checkpoint_path, training_settings
from reproduce_config import ReproduceConfig
from study_films import STUDIES, Split, Study, relative_path, split_films
from study_labels import load_oai_labels

MODEL = "model.safetensors"
LISTS = ("train.txt", "test.txt")
TABLE = "reproduction"
TITLES = {
    "sliding": "template matching",
    "neural": "neural method",
    "neural+sharpen": "neural method + sharpening step",
    "search": "search (not in the paper)",
    GRID: "grid initialized search",
}
COLUMNS = columns("method", "printed:3", "here:3", "standard error:4", "difference:3")

# Settings that the training and the evaluation take over.
TRAINING = "recipe", "start", "rounds", "epochs", "seed", "device", "workers", "cache"
EVALUATION = (
    *("methods", "grid", *PaperSettings._fields),
    *("resume", "force", "device", "workers"),
)

logger = logging.getLogger("kneematch")
app = typer.Typer(
    name="reproduce_oai_most.py", pretty_exceptions_enable=False, context_settings=CONTEXT
)


class StudyName(StrEnum):
    """Studies that the paper used."""

    OAI = "oai"
    MOST = "most"


@dataclass(frozen=True, slots=True, eq=False)
class ReproduceResult:
    """The table beside the paper's, the evaluation behind it, and films that were left out."""

    table: Table
    evaluation: EvaluateResult
    left_out: tuple[str, ...]  # reasons why films could not be trained on

    @property
    def page(self) -> Path:
        """The table as Markdown."""
        return self.evaluation.out / f"{self.table.name}.md"


def reproduce(
    study: Study,
    root: Path,
    out: Path,
    config: ReproduceConfig,
    *,
    progress: Progress = no_progress,
) -> ReproduceResult:
    """Choose films, train, run every method on other films, and compare with the paper.

    Args:
        study: OAI or MOST.
        root: folder of the study's films.
        out: folder for the model, the evaluation and the table.
        config: which films, and how to train.
        progress: opened for the films to prepare, and for every method.

    Raises:
        SettingsError: the settings contradict the study, there are too few films, or the folder
            holds another reproduction.
    """
    _check(study, config)
    logger.info("looking for films of %s", study.name)
    annotated = None if config.template is None else load_annotation(config.template).film
    split = split_films(study, root, config, annotated)
    truth = None if config.truth is None else load_oai_labels(config.truth, split.test)
    if truth is not None:
        truth.match(split.test)
        _check_margins(config)
    _write_split(split, root, out, config)
    logger.info("%d films to train on, %d to test", len(split.train), len(split.test))
    model, left_out = config.model, tuple[str, ...]()
    if config.template is not None:
        model = out / MODEL
        left_out = _train(split.train, config.template, model, config, progress)
    shared = {name: getattr(config, name) for name in EVALUATION}
    paper = RECIPES[config.recipe].paper_energy
    tested = EvaluateConfig(model=str(model), paper=paper, **shared)
    evaluation = evaluate(split.test, out, tested, labels=truth, progress=progress)
    table = reproduction_table(study, config, evaluation.runs)
    for suffix, write in ((".csv", to_csv), (".md", to_markdown)):
        write_text(out / f"{table.name}{suffix}", write(table))
    return ReproduceResult(table, evaluation, left_out)


def reproduction_table(study: Study, config: ReproduceConfig, runs: Sequence[MethodRun]) -> Table:
    """Return the printed and the measured loss of every method, on the films that all have.

    The grid search, which is run on the first films only, counts on its own films.
    """
    losses = {run.method: film_losses(run) for run in runs}
    common = set.intersection(*(set(loss) for name, loss in losses.items() if name != GRID))
    rows: list[tuple[Cell, ...]] = []
    for method, loss in losses.items():
        _, here, error = mean_and_error([loss[film] for film in sorted(common & set(loss))])
        printed = study.printed.get(method)
        difference = None if printed is None or here is None else here - printed
        rows.append((TITLES[method], printed, here, error, difference))
    model = "the given model" if config.model else f"trained from {config.start} weights"
    caption = (
        f"Mean of left + right loss over {len(common)} films of {study.name}, beside the paper's "
        f"{study.table} ({study.test} films); {config.recipe} recipe, {model}. Neither the "
        "template nor the films are the paper's."
    )
    if GRID in losses:
        caption += f" The grid search was run on {len(common & set(losses[GRID]))} of these films."
    return Table(TABLE, caption, COLUMNS, tuple(rows))


def _check(study: Study, config: ReproduceConfig) -> None:
    """Refuse settings that contradict the study."""
    if not study.train and (config.train or config.train_list):
        raise SettingsError(
            f"films of {study.name} to train on; expected only films to test, as in the paper's "
            f"{study.table}; leave --train and --train-list out"
        )
    if not study.train and config.model is None:
        raise SettingsError(
            f"{study.name} without a model; expected one that was trained on OAI, as for the "
            f"paper's {study.table}; name with --model the {MODEL} that this script made "
            "for oai"
        )
    if (config.model is None) == (config.template is None):
        found = "neither --template nor" if config.model is None else "both --template and"
        raise SettingsError(
            f"{found} --model; expected a template to train on (draw it with `kneematch "
            "annotate`), or a model, which has its own; name one of them"
        )


def _check_margins(config: ReproduceConfig) -> None:
    """Refuse, before hours of training, a template without the margins that labels have."""
    if config.template is not None:
        landmarks = load_annotation(config.template).landmarks
    else:
        landmarks = dict(load_model(str(config.model)).fine_template.landmarks)
    require_margins(landmarks)


def _write_split(split: Split, root: Path, out: Path, config: ReproduceConfig) -> None:
    """Write lists of the films, unless the folder holds another reproduction."""
    model = out / MODEL
    begun = any(path.exists() for path in (model, checkpoint_path(model), out / RUNS))
    if begun and not (config.resume or config.force):
        refuse_existing(out, "a reproduction", can_resume=True)
    make_folder(out)
    for name, films in zip(LISTS, (split.train, split.test), strict=True):
        text = b"".join(os.fsencode(relative_path(film, root)) + b"\n" for film in films)
        path = out / name
        if config.resume and path.exists() and path.read_bytes() != text:
            raise SettingsError(
                f"{path}: other films than are chosen now; expected the same; resume with the "
                "options it began with, or start over with --force"
            )
        if films:
            write_file(path, text)


def _train(
    films: Sequence[str], template: Path, model: Path, config: ReproduceConfig, progress: Progress
) -> tuple[str, ...]:
    """Train the model, unless it is there to resume with; return why films were left out."""
    checkpoint = checkpoint_path(model)
    resume = config.resume and checkpoint.exists()
    chosen = {name: getattr(config, name) for name in TRAINING}
    training = TrainConfig(resume=resume, force=not resume, **chosen)
    if config.resume and model.exists():
        _check_model(model, training, template)
        return ()
    load_annotation(template)  # before an earlier model is removed
    model.unlink(missing_ok=True)
    result = train(films, template, model, training, progress=progress)
    return tuple(reason for _, reason in result.failures)


def _check_model(model: Path, training: TrainConfig, template: Path) -> None:
    """Refuse to resume with a model that was trained with other settings."""
    stored = load_model(model).settings
    for name, value in training_settings(training, template).items():
        if stored.get(name) != value:
            raise SettingsError(
                f"{model}: trained with another {name}; expected the same; resume with the options "
                "it began with, or start over with --force"
            )


@app.command()
@config_options(ReproduceConfig)
def command(
    study: Annotated[StudyName, typer.Argument(help="oai: Table 1; most: Table 2.")],
    root: Annotated[Path, typer.Option(metavar="FOLDER", help="The study's films, unpacked.")],
    out: OutFolder,
    config: ReproduceConfig,
) -> None:
    """Train and test on the paper's data, and print its table beside the new results.

    Draw the template on a film of your choice first, since the paper's is not published. For MOST,
    name with --model the model that was trained on OAI. docs/reproduce.md describes the layout of
    the films.
    """
    with stopping_cleanly(out), writing(out):
        done = reproduce(STUDIES[study], root, out, config, progress=progress_bar)
    print_failures(done.evaluation)  # train() has logged films that could not be trained on
    print_table(done.table)
    print_tables(done.evaluation, ("accuracy", "distances"))
    typer.echo(done.table.caption)
    typer.echo(f"{shown(done.page)}, {shown(done.evaluation.page)}")
    if done.evaluation.failed or done.left_out:
        raise typer.Exit(SOME_FAILED)


if __name__ == "__main__":
    run(app)
