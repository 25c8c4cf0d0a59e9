"""From a folder of films and an annotated knee to a model."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from kneematch.geometry.split import SIDES, split
from kneematch.geometry.view import View
from kneematch.io.read import read
from kneematch.matching.annotation import Annotation
from kneematch.matching.template import cut_from_half
from kneematch.networks.model_file import Model, load_model
from kneematch.networks.pose_network import PoseNetwork
from kneematch.networks.template_transfer import carried
from kneematch.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from kneematch.training.config import Recipe
from kneematch.training.distributed import Group
from kneematch.training.initial_weights import SYNTHETIC, model_of, start_networks
from kneematch.training.mean_template import as_drawn, mean_template
from kneematch.training.phase import Learner
from kneematch.training.phase_data import Films, First, InMemory, On
from kneematch.training.pseudo_labels import searched, told
from kneematch.training.two_phases import (
    PHASES,
    Drawn,
    Task,
    first_phase,
    found,
    second_phase,
    train,
)

RESIDENT: Final = 0.3  # of a GPU's free memory, that films may take to stay there
FILM_BYTES: Final = 2 * 800 * 500 * 4


@dataclass(frozen=True, slots=True)
class Settings:
    """What the weights depend on, but for the films."""

    recipe: Recipe
    start: str = SYNTHETIC
    seed: int = 0
    device: str = "cpu"

    def told(self, films: str, template: str) -> dict[str, Any]:
        """What a checkpoint must agree with."""
        return {
            "recipe": asdict(self.recipe),
            "start": self.start,
            "seed": self.seed,
            "films": films,
            "template": template,
        }


@dataclass(frozen=True, slots=True, eq=False)
class Session:
    """A training that is ready to go on."""

    task: Task
    networks: tuple[PoseNetwork, PoseNetwork]
    settings: Settings
    told: dict[str, Any]
    checkpoint: Checkpoint | None

    def run(self, path: Path, group: Group, report: Callable[[str, Learner], None]) -> Model:
        """Train, leaving a checkpoint at a path after every epoch."""

        def epoch_done(phase: str, learner: Learner) -> None:
            if group.rank == 0:
                self._save(path, phase, learner)
                report(phase, learner)

        def restore(phase: str, learner: Learner) -> None:
            if self.checkpoint is not None:
                self.checkpoint.restore(phase, learner, self.task.recipe.rounds)
            elif group.rank == 0:
                self._save(path, phase, learner)

        train(self.task, self.networks, group, epoch_done, restore)
        drawn = self.task.drawn
        coarse, fine = (network.state_dict() for network in self.networks)
        settings = {**self.told, "count": len(self.task.films)}
        return Model(coarse, fine, drawn.coarse, drawn.fine, settings)

    def glance(self, phase: str, learner: Learner, count: int) -> tuple[Tensor, Tensor, float]:
        """The first films' halves (K, 2, H, W), where a network sees what, and its aspect."""
        first = First(self.task.films, min(count, len(self.task.films)))
        targets = None if self.task.targets is None else self.task.targets[: len(first)]
        task, alone = replace(self.task, films=first, targets=targets), Group()
        coarse = phase == PHASES[0]
        lesson, _ = first_phase(task) if coarse else second_phase(task, self.networks[0], alone)
        halves = first.halves(torch.arange(len(first)))
        return halves, found(learner.network, lesson, alone), lesson.template.aspect

    def _save(self, path: Path, phase: str, learner: Learner) -> None:
        save_checkpoint(path, phase, learner, self.networks, self.task, self.told)


def prepare(
    films: Films,
    annotation: Annotation,
    settings: Settings,
    told_of: tuple[str, str],
    group: Group,
    resume: Path | None,
) -> Session:
    """Everything that comes before the first epoch, or the checkpoint that has it.

    Args:
        films: the training films.
        annotation: the boxes.
        settings: how to train.
        told_of: what stands for the films and for the template in a checkpoint.
        group: the processes that train together.
        resume: a checkpoint to go on from.
    """
    told_settings = settings.told(*told_of)
    films = placed(films, settings.device)
    drawn, half = draw(annotation, settings.device)
    coarse, fine = start_networks(settings.start, seed=settings.seed)
    networks = coarse.to(settings.device), fine.to(settings.device)
    if resume is not None:
        checkpoint = load_checkpoint(resume, told_settings, settings.device)
        drawn, targets = checkpoint.drawn(drawn), checkpoint.tensors.get("targets")
        task = Task(films, drawn, settings.recipe, targets, settings.seed)
        return Session(task, networks, settings, told_settings, checkpoint)
    targets = None
    if not settings.recipe.energy:
        drawn, targets = find_targets(films, drawn, half, settings, group)
    task = Task(films, drawn, settings.recipe, targets, settings.seed)
    return Session(task, networks, settings, told_settings, None)


def draw(annotation: Annotation, device: str) -> tuple[Drawn, Tensor]:
    """Both templates, and the half (H, W) that they were drawn on."""
    halves, side = split(read(annotation.film)), SIDES.index(annotation.side)
    half = View(halves.pixels[side], halves.to_film[side])
    like = torch.empty(0, device=device)
    coarse, coarse_pose = cut_from_half(half, annotation, "coarse")
    fine, fine_pose = cut_from_half(half, annotation, "fine")
    drawn = Drawn(coarse.to(like), fine.to(like), coarse_pose.to(like), fine_pose.to(like))
    return drawn, half.pixels.to(like)


def find_targets(
    films: Films, drawn: Drawn, half: Tensor, settings: Settings, group: Group
) -> tuple[Drawn, Tensor]:
    """Where the fine template lies on the films, and the template, refined if that is asked for."""
    start = model_of(settings.start)
    if start is None:
        find = partial(searched, films, group=group)
    else:
        known = carried(load_model(start).networks(settings.device), half, drawn.fine_pose)
        find = partial(told, films, networks=known, group=group)
    targets = find(drawn.fine)
    for _ in range(settings.recipe.mean_template):
        fine = mean_template(films, drawn.fine, targets)
        targets = as_drawn(fine, half, drawn.fine_pose, find(fine))
        drawn = replace(drawn, fine=mean_template(films, fine, targets))
    return drawn, targets


def placed(films: Films, device: str) -> Films:
    """The films where they are quickest to reach."""
    where = torch.device(device)
    if where.type != "cuda":
        return On(films, where)
    free, _ = torch.cuda.mem_get_info(where)
    if len(films) * FILM_BYTES > RESIDENT * free:
        return On(films, where)
    batches = torch.split(torch.arange(len(films)), 64)
    return InMemory(torch.cat([films.halves(rows).to(where) for rows in batches]))
