"""Algorithm 1: train one network to find one template (paper, Sect. 5)."""

import math
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor, nn

from kneematch.geometry.pose import vector_from_pose
from kneematch.networks.pose_network import PoseNetwork
from kneematch.networks.two_stage import Network
from kneematch.solvers.adam import adam
from kneematch.solvers.anchored_refinement import nearby
from kneematch.solvers.problem import problem
from kneematch.training.config import Recipe
from kneematch.training.distributed import Group
from kneematch.training.losses import Objective
from kneematch.training.phase_data import InMemory, Lesson
from kneematch.training.replay import Replay

SHARPENED_AT_ONCE: Final = 16  # films, on a CPU
SHARPENED_BYTES: Final = 60_000_000  # a film, on a GPU


class Learner:
    """G(.; phi) while it learns: all that changes from epoch to epoch."""

    def __init__(self, network: PoseNetwork, films: int, recipe: Recipe, seed: int) -> None:
        backbone = list(network.backbone.parameters())
        head = [*network.reduce.parameters(), *network.regress.parameters()]
        device = head[0].device
        self.network = network
        # Rates are tensors, since a recorded step reads them again.
        self.rates = torch.zeros(2, device=device).unbind()
        groups = zip((backbone, head), self.rates, strict=True)
        self.optimiser = torch.optim.Adam(
            [{"params": part, "lr": rate} for part, rate in groups],
            fused=True,
            capturable=device.type == "cuda",
        )
        self.generator = torch.Generator(device).manual_seed(seed)
        self.replay = Replay(self.generator)
        self.c_u = torch.ones(films, device=device)
        self.round = 0  # t
        self.epoch = 0  # of this round
        self.loss = math.nan  # the last epoch's mean

    def set_rates(self, recipe: Recipe, progress: float) -> None:
        """The learning rates at a share of a round."""
        fall = (1 + math.cos(math.pi * progress)) / 2 if recipe.cosine else 1.0
        for rate, full in zip(self.rates, (recipe.backbone_rate, recipe.head_rate), strict=True):
            rate.fill_(fall * full)


def train_phase(
    learner: Learner,
    lesson: Lesson,
    objective: Objective,
    recipe: Recipe,
    group: Group,
    report: Callable[[Learner], None],
) -> None:
    """Run Algorithm 1 from where the learner stands; report after every epoch."""
    network = _mixed(group.wrapped(learner.network))
    still = isinstance(lesson.films, InMemory) and group.size == 1
    learner.replay.on = still and learner.c_u.is_cuda
    while learner.round < recipe.rounds:
        if learner.round > 0 and learner.epoch == 0:
            learner.c_u.copy_(1 / sharpened_energies(learner.network, lesson, group))
        while learner.epoch < recipe.epochs:
            _prepare(learner.network, recipe)
            learner.loss = _epoch(network, learner, lesson, objective, recipe, group)
            learner.epoch += 1
            report(learner)
        learner.round, learner.epoch = learner.round + 1, 0
    learner.network.eval()


def sharpened_energies(network: PoseNetwork, lesson: Lesson, group: Group) -> Tensor:
    """min_j f(u, v_j) over a sharpening that starts at v_0 = G(u), of every film: (N,)."""
    network.eval()

    def sharpen(rows: Tensor) -> Tensor:
        halves = lesson.films.halves(rows)
        asked = problem(halves, lesson.template, paper=lesson.printed)
        with torch.no_grad():
            theta = lesson.answer(network, halves, lesson.of(lesson.frames, rows))
        start = vector_from_pose(theta, asked.height_ratio)
        return (adam if lesson.printed else nearby)(asked, start).energy

    like = lesson.frames.new_zeros(())
    return group.each(len(lesson.films), at_once(like.device), sharpen, like)


def at_once(device: torch.device) -> int:
    """As many films as a device has memory for."""
    if device.type != "cuda":
        return SHARPENED_AT_ONCE
    free, _ = torch.cuda.mem_get_info(device)
    return min(max(free // SHARPENED_BYTES, 8), 512)


def _mixed(network: nn.Module) -> Network:
    """On a GPU, the network in bfloat16, whose gradients need no scaling."""

    def answer(images: Tensor) -> Tensor:
        kind, on = images.device.type, images.is_cuda
        with torch.autocast(kind, torch.bfloat16, enabled=on, cache_enabled=False):
            v: Tensor = network(images)
        return v

    return answer


def _prepare(network: PoseNetwork, recipe: Recipe) -> None:
    network.train()
    if recipe.frozen_statistics:
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()


def _epoch(
    network: Network,
    learner: Learner,
    lesson: Lesson,
    objective: Objective,
    recipe: Recipe,
    group: Group,
) -> float:
    """One pass over the films in random order: the mean loss."""
    generator, count = learner.generator, len(lesson.films)
    order = torch.randperm(count, generator=generator, device=generator.device)
    batches = torch.split(order, recipe.batch_size)
    total = lesson.frames.new_zeros(())

    def step(rows: Tensor) -> Tensor:
        """One step of Adam for the films (B,) of a batch: their mean loss, as far as it is ours."""
        mine, counts = group.share(len(rows), rows.device)
        losses = objective(network, lesson, rows, mine, generator)
        loss = counts * (learner.c_u[rows[mine]] * losses).sum() / len(rows)
        learner.optimiser.zero_grad(set_to_none=True)
        (group.size * loss).backward()  # type: ignore[no-untyped-call]
        learner.optimiser.step()
        return loss.detach()

    for number, rows in enumerate(batches):
        learner.set_rates(recipe, (learner.epoch + number / len(batches)) / recipe.epochs)
        total += learner.replay(step, rows) * len(rows)
    return float(group.sum(total)) / count
