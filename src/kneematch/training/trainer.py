"""Train a model for one's own template on films without labels: `train()`."""

import hashlib
import io
import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from kneematch.devices import resolve_device
from kneematch.errors import SettingsError
from kneematch.films.annotation import Annotation, load_annotation
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
from kneematch.models.model_file import Model, save_model
from kneematch.paper.algorithm1 import PhaseState
from kneematch.paper.algorithm2 import PHASES, Networks
from kneematch.parallel import choose_workers
from kneematch.progress import Progress, no_progress
from kneematch.training.config import MODEL_SUFFIX, TrainConfig
from kneematch.training.dataset import CachedFilms, prepare_films, to_device
from kneematch.training.initial_weights import initial_networks, load_dict
from kneematch.training.recipes import (
    Task,
    TemplatePair,
    activation_ranges,
    make_pseudo_labels,
    train_task,
)
from kneematch.training.report import Epoch, compare_with_built_in, plot_preview, write_metrics

CHECKPOINT_FORMAT: Final = "kneematch-checkpoint/3"
METRICS, PREVIEW = "metrics.csv", "preview.png"  # beside the model
FEWEST_FILMS: Final = 2
COMPARED_FILMS: Final = 32

logger = logging.getLogger("kneematch")


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What a training produced."""

    model: Path
    films: int  # number of films that were used
    failures: tuple[tuple[str, str], ...]  # (path, reason) of films that could not be used
    epochs: tuple[Epoch, ...]  # the losses


def train(
    films: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    template: str | os.PathLike[str],
    out: str | os.PathLike[str],
    config: TrainConfig = TrainConfig(),
    *,
    progress: Progress = no_progress,
) -> TrainResult:
    """Train both networks to find the boxes of a template (paper, Sect. 5, Algorithm 2).

    Beside the model, NAME.metrics.csv and NAME.preview.png are updated after every epoch, and so is
    a checkpoint, which is removed at the end.

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
    out, template = Path(out), Path(template)
    paths, recipe = find_films(films), config.hyperparameters()
    _check_out(out, config)
    settings, drawn = training_settings(config, template), load_annotation(template)
    device = resolve_device(config.device)
    start = initial_networks(config.start, seed=config.seed)
    cached, failures = _prepare(paths, config, progress)
    logger.info("%d films; %s recipe on %s", len(cached), config.recipe, device)
    settings["films"] = hashlib.sha256("\n".join(cached.keys).encode()).hexdigest()
    saved = load_checkpoint(checkpoint_path(out), settings) if config.resume else {}

    on_device, labels = to_device(cached, device), None
    templates, half = cut_templates(drawn, device)
    if saved and not recipe.paper_energy:
        labels = saved["pseudo_labels"].to(device)
    elif not recipe.paper_energy:
        labels = make_pseudo_labels(on_device, templates, half, start.model)
    task = Task(on_device, templates, recipe, labels, config.seed, start.random)
    coarse, fine = (network.to(device) for network in start.networks)
    epochs = _train(out, task, (coarse, fine), settings, saved, progress)
    model = Model(
        coarse.state_dict(),
        fine.state_dict(),
        templates.coarse,
        templates.fine,
        {**settings, "count": len(cached)},
        activation_ranges(task, (coarse, fine)),
    )
    with writing(out):
        save_model(out, model)
    checkpoint_path(out).unlink(missing_ok=True)
    compared = on_device.halves(torch.arange(min(COMPARED_FILMS, len(cached))))
    for text in compare_with_built_in(out, drawn, compared):
        logger.warning(
            "%s: The built-in model is better on %d of the training films (%s). Train longer or on "
            "more films, or detect with --template alone.",
            out,
            len(compared),
            text,
        )
    return TrainResult(out, len(cached), tuple(failures), tuple(epochs))


def checkpoint_path(model: Path) -> Path:
    """Return the checkpoint file of a training that will write a model."""
    return _beside(model, "checkpoint.pt")


def training_settings(config: TrainConfig, template: Path) -> dict[str, Any]:
    """Return what the weights depend on besides the films; checkpoints and models store it."""
    film = load_annotation(template).film
    return {
        "recipe": asdict(config.hyperparameters()),
        "start": config.start,
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
    recipe, states, begun = task.recipe, dict[str, PhaseState](), saved.get("states", {})
    epochs = [Epoch(*row) for row in saved.get("epochs", ())]
    started = time.monotonic() - (epochs[-1].seconds if epochs else 0.0)

    def resume(phase: str, state: PhaseState) -> bool:
        states[phase] = state
        if phase in begun:
            restore(state, begun[phase], checkpoint_path(out))
        return phase in begun

    with progress("training", len(PHASES) * recipe.rounds * recipe.epochs, len(epochs)) as advance:
        for phase, state in train_task(task, networks, resume):
            with writing(out):
                if state.epoch > 0:  # else the phase has only begun
                    seconds = time.monotonic() - started
                    epochs.append(Epoch(phase, state.round, state.epoch, state.loss, seconds))
                    write_metrics(epochs, _beside(out, METRICS))
                    plot_preview(task, networks, phase, _beside(out, PREVIEW))
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
        SettingsError: the file is missing or damaged, or belongs to another training.
    """
    if not Path(path).is_file():
        raise SettingsError(f"There is no checkpoint {path} to continue. Leave out --resume.")
    content = load_dict(path)
    if content.get("format") != CHECKPOINT_FORMAT or not isinstance(content.get("settings"), dict):
        raise SettingsError(
            f"{path} is not a checkpoint of this version of kneematch. Start over with --force."
        )
    before, now = (dict(_flat(each)) for each in (content["settings"], settings))
    if different := [name for name in now if before.get(name) != now[name]]:
        raise SettingsError(
            f"The checkpoint {path} was made with another {', '.join(different)}. Repeat the "
            "options of the interrupted command, or start over with --force."
        )
    return content


def restore(state: PhaseState, saved: Mapping[str, Any], path: Path) -> None:
    """Set the state of a phase to what a checkpoint holds.

    Raises:
        SettingsError: it does not fit the network or the films.
    """
    try:
        state.load_state_dict(saved)
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:100]
        raise SettingsError(
            f"The checkpoint {path} does not fit ({reason}). Start over with --force."
        ) from error


def _flat(settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of settings, those of the recipe among them."""
    for name, value in settings.items():
        yield from _flat(value) if isinstance(value, Mapping) else [(name, value)]


def _check_out(out: Path, config: TrainConfig) -> None:
    """Check, before hours of work, that the model can be written and nothing is overwritten."""
    check_suffix(out, MODEL_SUFFIX, "a model")
    if not (config.resume or config.force):
        if checkpoint_path(out).exists():
            refuse_existing(checkpoint_path(out), "an interrupted training", can_resume=True)
        for path in (out, *(_beside(out, ending) for ending in (METRICS, PREVIEW))):
            if os.path.lexists(path):
                refuse_existing(path)
    with writing(out):
        make_folder(out.parent)
        remove_leftovers(out.parent)
        if config.force:
            checkpoint_path(out).unlink(missing_ok=True)


def _prepare(
    paths: list[str], config: TrainConfig, progress: Progress
) -> tuple[CachedFilms, list[tuple[str, str]]]:
    """Prepare the films, and warn of those that cannot be used."""
    side_margin = 0.0 if config.hyperparameters().paper_energy else SIDE_MARGIN
    with progress("preparing films", len(paths)) as advance:
        cached, failures = prepare_films(
            paths,
            config.cache,
            side_margin=side_margin,
            workers=choose_workers(config.workers, len(paths)),
            report=lambda: advance(""),
        )
    for _, reason in failures:
        logger.warning(reason)
    if len(cached) < FEWEST_FILMS:
        raise SettingsError(
            f"{len(cached)} of {len(paths)} films can be used. Training needs {FEWEST_FILMS} or "
            "more, better 50."
        )
    return cached, failures


def _beside(model: Path, ending: str) -> Path:
    return model.with_name(f"{model.stem}.{ending}")
