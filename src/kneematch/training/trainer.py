"""Train a model for one's own template on films without labels: `train()`."""

import hashlib
import io
import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from kneematch.devices import resolve_device
from kneematch.errors import SettingsError
from kneematch.films.annotation import KNEES, Annotation, load_annotation
from kneematch.films.csv_text import write_csv
from kneematch.films.discovery import find_films
from kneematch.films.files import (
    check_suffix,
    make_folder,
    refuse_existing,
    remove_leftovers,
    write_file,
    writing,
)
from kneematch.films.read import read_isolated
from kneematch.knee.knee_images import SIDE_MARGIN
from kneematch.knee.template import annotated_half, cut_from_view
from kneematch.models.model_file import Model, builtin_model, load_model, save_model
from kneematch.models.weights import network_from_weights
from kneematch.paper.algorithm1 import PhaseState
from kneematch.paper.algorithm2 import PHASES, Networks
from kneematch.parallel import choose_workers
from kneematch.progress import Progress, no_progress
from kneematch.settings import as_path, check_type, option_name
from kneematch.training import MODEL_SUFFIX, TrainConfig
from kneematch.training.dataset import Films, prepare_films
from kneematch.training.landmark_training import train_landmarks
from kneematch.training.recipes import (
    Task,
    TemplatePair,
    activation_ranges,
    hyperparameters,
    make_pseudo_labels,
    train_task,
)

CHECKPOINT_FORMAT: Final = "kneematch-checkpoint/5"
CHECKPOINT, METRICS = "checkpoint.pt", "metrics.csv"  # beside the model
FEWEST_FILMS: Final = 2

logger = logging.getLogger("kneematch")


@dataclass(frozen=True, slots=True)
class Epoch:
    """One row of metrics.csv."""

    phase: str
    round: int
    epoch: int
    loss: float  # mean over the films, weighted by c_u after the first round
    seconds: float  # since the training began


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What a training produced."""

    model: Path
    films: int  # number of films that were used
    failures: tuple[tuple[str, str], ...]  # (path, reason) of films that could not be used
    epochs: tuple[Epoch, ...]  # the losses; none where landmarks were learnt


def train(
    films: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    template: str | os.PathLike[str],
    out: str | os.PathLike[str],
    config: TrainConfig = TrainConfig(),
    *,
    progress: Progress = no_progress,
) -> TrainResult:
    """Train both networks to find the boxes of a template (paper, Sect. 5, Algorithm 2).

    For a template of another part than knees, only its landmarks are learnt.

    Beside the model, NAME.metrics.csv is updated after every epoch, and so is a checkpoint, which
    is removed at the end. A training that was interrupted is continued from it.

    Args:
        films: files, folders, patterns or lists of films, as `find_films` takes them.
        template: annotation written by `kneematch annotate`.
        out: model file to write, NAME.safetensors.
        config: how to train.
        progress: shows first the films that are prepared, then the epochs.

    Raises:
        SettingsError: the options contradict each other or the files, or too few films are usable.
        TemplateError: the annotation cannot serve as a template.
    """
    check_type("config", config, TrainConfig)
    out, template = as_path("out", out), as_path("template", template)
    paths = find_films(films)
    _check_out(out, config)
    settings, drawn = training_settings(config, template), load_annotation(template)
    if drawn.find != KNEES:
        _refuse_settings(config)
        count, failures = train_landmarks(paths, template, out, progress)
        _warn_of(failures)
        return TrainResult(out, count, tuple(failures), ())
    device = resolve_device(config.device)
    built_in = load_model(builtin_model())
    networks = network_from_weights(built_in.coarse), network_from_weights(built_in.fine)
    prepared, failures = _prepare(paths, out.parent, config, device, progress)
    logger.info("%d films on %s", len(prepared), device)
    settings["films"] = prepared.digest
    checkpoint = checkpoint_path(out)
    saved = load_checkpoint(checkpoint, settings) if checkpoint.exists() else {}

    templates, half = cut_templates(drawn, device)
    if saved:
        labels = saved["pseudo_labels"].to(device)
    else:
        labels = make_pseudo_labels(prepared, templates, half, built_in)
    task = Task(prepared, templates, hyperparameters(config), labels, config.seed)
    coarse, fine = (network.to(device) for network in networks)
    epochs = _train(out, task, (coarse, fine), settings, saved, progress)
    model = Model(
        coarse.state_dict(),
        fine.state_dict(),
        templates.coarse,
        templates.fine,
        {**settings, "count": len(prepared)},
        activation_ranges(prepared, templates, (coarse, fine)),
    )
    with writing(out):
        save_model(out, model)
    checkpoint.unlink(missing_ok=True)
    return TrainResult(out, len(prepared), tuple(failures), tuple(epochs))


def checkpoint_path(model: Path) -> Path:
    """Return the checkpoint file of a training that will write a model."""
    return _beside(model, CHECKPOINT)


def training_settings(config: TrainConfig, template: Path) -> dict[str, Any]:
    """Return what the weights depend on besides the films; checkpoints and models store it."""
    film = load_annotation(template).film
    return {
        "rounds": config.rounds,
        "epochs": config.epochs,
        "batch_size": config.batch_size,
        "seed": config.seed,
        "template": hashlib.sha256(template.read_bytes() + film.read_bytes()).hexdigest(),
    }


def cut_templates(annotation: Annotation, device: str) -> tuple[TemplatePair, Tensor]:
    """Return both templates, and the half image (H, W) that they were annotated on."""
    half = annotated_half(read_isolated(annotation.film), annotation)
    like = torch.empty(0, device=device)
    coarse, coarse_pose = cut_from_view(half, annotation, "coarse")
    fine, fine_pose = cut_from_view(half, annotation, "fine")
    poses = coarse_pose.to(like), fine_pose.to(like)
    return TemplatePair(coarse.to(like), fine.to(like), *poses), half.pixels.to(like)


def _train(
    out: Path,
    task: Task,
    networks: Networks,
    settings: Mapping[str, Any],
    saved: Mapping[str, Any],
    progress: Progress,
) -> list[Epoch]:
    """Train from the content of a checkpoint, if any; update the files after every epoch."""
    numbers, states, begun = task.numbers, dict[str, PhaseState](), saved.get("states", {})
    epochs = [Epoch(*row) for row in saved.get("epochs", ())]
    started = time.monotonic() - (epochs[-1].seconds if epochs else 0.0)

    def resume(phase: str, state: PhaseState) -> bool:
        states[phase] = state
        if phase in begun:
            try:
                state.load_state_dict(begun[phase])
            except (RuntimeError, LookupError, ValueError, TypeError, AttributeError) as error:
                raise _damaged(checkpoint_path(out)) from error
        return phase in begun

    with progress(
        "training", len(PHASES) * numbers.rounds * numbers.epochs, len(epochs)
    ) as advance:
        for phase, state in train_task(task, networks, resume):
            with writing(out):
                if state.epoch > 0:  # else the phase has only begun
                    seconds = time.monotonic() - started
                    epochs.append(Epoch(phase, state.round, state.epoch, state.loss, seconds))
                    write_metrics(epochs, _beside(out, METRICS))
                content = {
                    "states": {name: each.state_dict() for name, each in states.items()},
                    "epochs": [astuple(epoch) for epoch in epochs],
                    "pseudo_labels": task.pseudo_labels,
                }
                save_checkpoint(checkpoint_path(out), settings, content)
            if state.epoch > 0:
                advance(f"{phase} {state.round + 1}.{state.epoch} loss {state.loss:.4f}")
    return epochs


def save_checkpoint(
    path: str | os.PathLike[str], settings: Mapping[str, Any], content: Mapping[str, Any]
) -> None:
    """Write tensors and numbers atomically, with the settings that they depend on."""
    buffer = io.BytesIO()  # torch.save would not say which error of the disk it met
    torch.save({**content, "format": CHECKPOINT_FORMAT, "settings": dict(settings)}, buffer)
    write_file(path, buffer.getvalue())


def load_checkpoint(path: str | os.PathLike[str], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of the checkpoint of a training with the same settings, on the CPU.

    Raises:
        SettingsError: the file is damaged, or belongs to another training.
    """
    try:
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        known, before = content["format"] == CHECKPOINT_FORMAT, dict(content["settings"])
    except Exception as error:  # torch raises nearly everything on damaged files
        raise _damaged(path) from error
    if not known:
        raise SettingsError(
            f"{path} is not a checkpoint of this version of kneematch. Start over with --force."
        )
    if different := [name for name in settings if before.get(name) != settings[name]]:
        raise SettingsError(
            f"The checkpoint {path} was made with another {', '.join(different)}. Repeat the "
            "options of the interrupted command, or start over with --force."
        )
    return content


def _damaged(path: str | os.PathLike[str]) -> SettingsError:
    return SettingsError(f"The checkpoint {path} is damaged. Start over with --force.")


def _refuse_settings(config: TrainConfig) -> None:
    """Refuse settings of networks, which learn nothing of another part than knees."""
    usual = TrainConfig(force=config.force)
    names = [each.name for each in fields(TrainConfig)]
    if given := [n for n in names if getattr(config, n) != getattr(usual, n)]:
        raise SettingsError(
            f"{', '.join(map(option_name, given))} cannot be used with a template of another part "
            "than knees."
        )


def _warn_of(failures: Iterable[tuple[str, str]]) -> None:
    for _, reason in failures:
        logger.warning(reason)


def _check_out(out: Path, config: TrainConfig) -> None:
    """Check, before hours of work, that the model can be written and nothing is overwritten."""
    check_suffix(out, MODEL_SUFFIX, "a model")
    if not (config.force or checkpoint_path(out).exists()):
        for path in (out, _beside(out, METRICS)):
            if os.path.lexists(path):
                refuse_existing(path)
    with writing(out):
        make_folder(out.parent)
        remove_leftovers(out.parent)
        if config.force:
            checkpoint_path(out).unlink(missing_ok=True)


def _prepare(
    paths: list[str], folder: Path, config: TrainConfig, device: str, progress: Progress
) -> tuple[Films, list[tuple[str, str]]]:
    """Prepare the films, and warn of those that cannot be used."""
    with progress("preparing films", len(paths)) as advance:
        films, failures = prepare_films(
            paths,
            folder,
            side_margin=SIDE_MARGIN,
            device=device,
            workers=choose_workers(config.workers, len(paths)),
            report=lambda: advance(""),
        )
    _warn_of(failures)
    if len(films) < FEWEST_FILMS:
        raise SettingsError(
            f"{len(films)} of {len(paths)} films can be used. Training needs {FEWEST_FILMS} or "
            "more, better 50."
        )
    return films, failures


def write_metrics(epochs: Sequence[Epoch], path: str | os.PathLike[str]) -> None:
    """Write one row per epoch."""
    with write_csv(path, [each.name for each in fields(Epoch)]) as add:
        for row in epochs:
            numbers = str(row.round), str(row.epoch), f"{row.loss:.6f}", f"{row.seconds:.2f}"
            add([row.phase, *numbers])


def _beside(model: Path, ending: str) -> Path:
    return model.with_name(f"{model.stem}.{ending}")
