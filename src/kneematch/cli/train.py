"""`kneematch train`: a model for one's own template, from films without labels."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kneematch.cli.options import Cache, Epochs, Readers, Rounds, Start, TrainingDevice
from kneematch.cli.terminal import (
    SOME_FAILED,
    complain,
    progress,
    shown,
    stopping_cleanly,
    writing,
)
from kneematch.errors import SettingsError

if TYPE_CHECKING:
    from PIL import Image

    from kneematch.networks.model_file import Model
    from kneematch.training.config import Recipe
    from kneematch.training.dataset import PreparedFilms
    from kneematch.training.distributed import Group
    from kneematch.training.phase import Learner
    from kneematch.training.session import Session, Settings

GLANCES: Final = 4  # films that are drawn as training goes


class RecipeName(StrEnum):
    """How to train."""

    DEFAULT = "default"
    PAPER = "paper"


def train(
    films: Annotated[
        list[str],
        typer.Argument(metavar="FILMS...", help="Films, folders, patterns or @list.txt."),
    ],
    template: Annotated[Path, typer.Option(metavar="JSON", help="The annotated knee.")],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="The model to write.")],
    recipe: Annotated[
        RecipeName, typer.Option(help="Ours, or the paper's to the letter.")
    ] = RecipeName.DEFAULT,
    start: Start = "synthetic",
    rounds: Rounds = None,
    epochs: Epochs = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Else the recipe's.")] = None,
    mean_template: Annotated[
        int | None, typer.Option(min=0, help="Times the template becomes a mean; else 0.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of all that is random.")] = 0,
    device: TrainingDevice = "auto",
    workers: Readers = None,
    cache: Cache = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where a training was stopped.")
    ] = False,
) -> None:
    """Train both networks on films without labels to find the boxes of a template.

    Beside the model: metrics.csv, curves.png and glance.png, which grow as training goes, and
    until it ends a checkpoint. With several GPUs or machines:
    torchrun --nproc-per-node N -m kneematch train ...
    """
    from kneematch.training.config import chosen
    from kneematch.training.course import checkpoint_beside
    from kneematch.training.distributed import join, leave

    asked = chosen(recipe.value, rounds, epochs, batch_size, mean_template)
    checkpoint = checkpoint_beside(out)
    _check_out(out, checkpoint, resume=resume)
    group = join()
    settings = training_settings(asked, start, seed, device, group)
    with stopping_cleanly(checkpoint):
        try:
            prepared, failures = _prepared(films, workers, cache, settings, group)
            session = _session(prepared, template, settings, group, checkpoint if resume else None)
            with writing(out):
                model = watched(session, out, group)
        finally:
            leave(group)
    if group.rank == 0:
        _finish(model, out, checkpoint, len(prepared), failures)
    if failures:
        raise typer.Exit(SOME_FAILED)


def _check_out(out: Path, checkpoint: Path, *, resume: bool) -> None:
    """Before hours of work: that the model can be written, and nothing is lost."""
    if out.suffix != ".safetensors":
        raise SettingsError(f"{out}: expected a name that ends in .safetensors; rename it")
    if checkpoint.exists() and not resume:
        raise SettingsError(
            f"{checkpoint}: a training that was stopped; expected none; go on with --resume, or "
            "delete it to start over"
        )
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)


def training_settings(
    recipe: "Recipe", start: str, seed: int, device: str, group: "Group"
) -> "Settings":
    """What the weights depend on; torchvision's are fetched where they are asked for."""
    from kneematch.devices import resolve_device
    from kneematch.training.imagenet import fetch_imagenet
    from kneematch.training.initial_weights import IMAGENET, check_start
    from kneematch.training.session import Settings

    check_start(start)
    where = resolve_device(device)
    if where == "cuda" and group.size > 1:
        where = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    if start == IMAGENET:
        fetch_imagenet()
    return Settings(recipe, start, seed, where)


def _prepared(
    named: list[str], workers: int | None, cache: Path | None, settings: "Settings", group: "Group"
) -> tuple["PreparedFilms", list[tuple[str, str]]]:
    """The films' halves, made by the first process and then found by all of them."""
    from kneematch.io.discovery import find_films
    from kneematch.training.course import check_enough, room_for
    from kneematch.training.dataset import prepare_films

    paths = find_films(named, stdin=sys.stdin.buffer)
    processes = max((os.cpu_count() or 1) - 1, 0) if workers is None else workers
    group.wait_for_first()
    with _bar(len(paths), group) as advance:
        prepared, failures = prepare_films(
            paths, cache, room=room_for(settings.recipe), workers=processes, report=advance
        )
    group.first_is_done()
    if group.rank == 0:
        for _, reason in failures:
            complain(reason)
    check_enough(prepared, len(paths))
    return prepared, failures


@contextmanager
def _bar(count: int, group: "Group") -> Iterator[Callable[[], None]]:
    if group.rank:
        yield lambda: None
    else:
        with progress(count) as advance:
            yield advance


def _session(
    prepared: "PreparedFilms",
    template: Path,
    settings: "Settings",
    group: "Group",
    resume: Path | None,
) -> "Session":
    from kneematch.training.course import session_on

    if group.rank == 0:
        complain(f"{len(prepared)} films; {settings.recipe.name} recipe on {settings.device}")
    return session_on(prepared, template, settings, group, resume)


def watched(session: "Session", out: Path, group: "Group") -> "Model":
    """Train with a bar, and files that tell how it goes."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from kneematch.training.course import checkpoint_beside
    from kneematch.training.loss_plot import Epoch, draw_curves, read_metrics, write_metrics

    recipe = session.task.recipe
    metrics = out.with_name(f"{out.stem}.metrics.csv")
    before = session.checkpoint
    # An earlier training may have left rows at the same name.
    epochs = [] if before is None else read_metrics(metrics)[: before.epochs(recipe)]
    started = time.monotonic() - (epochs[-1].seconds if epochs else 0.0)
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    hidden = group.rank > 0 or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task("", total=2 * recipe.rounds * recipe.epochs, completed=len(epochs))

        def report(phase: str, learner: "Learner") -> None:
            seconds = time.monotonic() - started
            epochs.append(Epoch(phase, learner.round, learner.epoch, learner.loss, seconds))
            write_metrics(epochs, metrics)
            _save(draw_curves(epochs), out.with_name(f"{out.stem}.curves.png"))
            _save(_glance(session, phase, learner), out.with_name(f"{out.stem}.glance.png"))
            told = f"{phase} {learner.round + 1}.{learner.epoch} loss {learner.loss:.4f}"
            bar.update(task, advance=1, description=told)

        return session.run(checkpoint_beside(out), group, report)


def _glance(session: "Session", phase: str, learner: "Learner") -> "Image.Image":
    from kneematch.training.preview import draw_poses

    halves, theta, aspect = session.glance(phase, learner, GLANCES)
    return draw_poses(halves, theta, aspect)


def _save(picture: "Image.Image", path: Path) -> None:
    from kneematch.io.atomic import write_aside

    with write_aside(path) as aside:
        picture.save(aside, format="PNG")


def _finish(
    model: "Model", out: Path, checkpoint: Path, count: int, failures: list[tuple[str, str]]
) -> None:
    from kneematch.networks.model_file import save_model

    with writing(out):
        save_model(out, model)
    checkpoint.unlink(missing_ok=True)
    left_out = f", {len(failures)} left out" if failures else ""
    typer.echo(f"{shown(out)}: trained on {count} films{left_out}")
