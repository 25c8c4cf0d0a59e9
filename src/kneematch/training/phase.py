"""Algorithm 1: train one network to find one template (paper, Sect. 5)."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from kneematch.models.two_stage import Network
from kneematch.paper.network import PoseNetwork, crop_views
from kneematch.paper.pose import compose_pose, pose_from_vector, vector_from_pose
from kneematch.paper.problem import make_problem
from kneematch.paper.sharpening import adam
from kneematch.paper.split import HALF_ASPECT
from kneematch.paper.template import Template
from kneematch.search.anchored_refinement import refine_anchored
from kneematch.training.config import Recipe
from kneematch.training.cuda_graph import Step, StepGraphs
from kneematch.training.dataset import Films, FilmsInMemory
from kneematch.training.distributed import Group


@dataclass(frozen=True, slots=True, eq=False)
class PhaseData:
    """The template that a phase looks for, and the views of the films it looks for it in."""

    films: Films
    template: Template
    aspect: float  # height over width of the views
    frames: Tensor  # (N, 2, 4), poses of the views in the halves
    paper_energy: bool  # otherwise the robust energy
    shrink: int = 1  # how many times smaller the energy's images are

    @property
    def height_ratio(self) -> float:
        """Template aspect over view aspect, as `pose_from_vector` takes it."""
        return self.template.aspect / self.aspect

    def frames_of(self, rows: Tensor) -> Tensor:
        """Return the frames (K, 2, 4) of some films, given by their indices (K,)."""
        return self.frames[rows.to(self.frames.device)]

    def predict(self, network: Network, halves: Tensor, frames: Tensor) -> Tensor:
        """Return the poses (K, 2, 4) that a network predicts in halves (K, 2, H, W).

        `frames` (K, 2, 4) are the views of the halves that the network sees.
        """
        in_view = pose_from_vector(
            network(crop_views(halves, frames, self.aspect)), self.height_ratio
        )
        return compose_pose(frames, in_view, self.aspect, HALF_ASPECT)


# Called with the network, the data, the films (B,) of a batch, the indices (K,) into the batch of
# those to compute, and a generator; returns one loss per film, (K,). Random numbers are drawn for
# the whole batch, so that they do not depend on which process computes which film.
Loss = Callable[[Network, PhaseData, Tensor, Tensor, torch.Generator], Tensor]


class PhaseState:
    """Everything that changes from epoch to epoch, which a checkpoint stores."""

    def __init__(self, network: PoseNetwork, films: int, seed: int, random: bool = False) -> None:
        """Start a phase; a backbone that begins at random learns at the head's rate."""
        backbone = list(network.backbone.parameters())
        head = [*network.reduce.parameters(), *network.regress.parameters()]
        if random:
            backbone, head = [], [*backbone, *head]
        device = head[0].device
        self.network = network  # G(.; phi)
        # Learning rates are tensors, because a CUDA graph reads them again at every replay.
        self.rates = torch.zeros(2, device=device).unbind()
        groups = zip((backbone, head), self.rates, strict=True)
        self.optimiser = torch.optim.Adam(
            [{"params": part, "lr": rate} for part, rate in groups],
            fused=True,
            capturable=device.type == "cuda",
        )
        self.generator = torch.Generator(device).manual_seed(seed)
        self.c_u = torch.ones(films, device=device)  # weights of the films
        self.round = 0  # finished rounds
        self.epoch = 0  # finished epochs of the current round
        self.loss = math.nan  # mean of the last epoch

    def set_learning_rates(self, recipe: Recipe, progress: float) -> None:
        """Set the learning rates for a moment of a round, from 0 (start) to 1 (end)."""
        decay = (1 + math.cos(math.pi * progress)) / 2 if recipe.cosine else 1.0
        for rate, full in zip(self.rates, (recipe.backbone_rate, recipe.head_rate), strict=True):
            rate.fill_(decay * full)


def train_phase(
    state: PhaseState, data: PhaseData, loss: Loss, recipe: Recipe, group: Group
) -> Iterator[None]:
    """Run Algorithm 1 from a state on; yield after every epoch, with the state updated."""
    network = _autocast(group.parallel(state.network), recipe)
    recordable = isinstance(data.films, FilmsInMemory) and group.size == 1 and state.c_u.is_cuda
    while state.round < recipe.rounds:
        data = replace(data, shrink=recipe.shrink_in(state.round))
        step = _make_step(network, state, data, loss, group)
        if recordable:
            step = StepGraphs(step, state.generator)  # a graph holds the images of its round
        if state.round > 0 and state.epoch == 0:
            state.c_u.copy_(1 / refined_energies(state.network, data, group))
        while state.epoch < recipe.epochs:
            state.network.train()
            if recipe.frozen_statistics:
                freeze_batchnorm(state.network)
            state.loss = _train_epoch(step, state, recipe, group)
            state.epoch += 1
            yield
        state.round, state.epoch = state.round + 1, 0
    state.network.eval()


def refined_energies(network: PoseNetwork, data: PhaseData, group: Group) -> Tensor:
    """Return the lowest energy (N,) met by the refinement that starts at G(u), for every film."""
    network.eval()

    def refine(rows: Tensor) -> Tensor:
        halves = data.films.halves(rows)
        problem = make_problem(halves, data.template, paper=data.paper_energy)
        with torch.no_grad():
            theta = data.predict(network, halves, data.frames_of(rows))
        start = vector_from_pose(theta, problem.height_ratio)
        return (adam if data.paper_energy else refine_anchored)(problem, start).energy

    return group.map_films(len(data.films), refine, like=data.frames.new_zeros(()))


@torch.no_grad()
def predict_poses(network: PoseNetwork, data: PhaseData, group: Group) -> Tensor:
    """Return the poses theta (N, 2, 4) that a network predicts for every film."""
    network.eval()

    def predict(rows: Tensor) -> Tensor:
        return data.predict(network, data.films.halves(rows), data.frames_of(rows))

    return group.map_films(len(data.films), predict, like=data.frames.new_zeros(2, 4))


def _autocast(network: nn.Module, recipe: Recipe) -> Network:
    """Return the network in the recipe's precision; bfloat16 gradients need no scaling."""

    def forward(images: Tensor) -> Tensor:
        kind, on = images.device.type, images.is_cuda and recipe.bfloat16
        with torch.autocast(kind, torch.bfloat16, enabled=on, cache_enabled=False):
            v: Tensor = network(images)
        return v

    return forward


def freeze_batchnorm(network: nn.Module) -> None:
    """Let the BatchNorm layers of a network in training mode use their running statistics."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()


def _make_step(
    network: Network, state: PhaseState, data: PhaseData, loss: Loss, group: Group
) -> Step:
    """Return one step of Adam on films (B,); it returns this process's part of their mean loss."""

    def step(rows: Tensor) -> Tensor:
        local, weight = group.share(len(rows), rows.device)
        losses = loss(network, data, rows, local, state.generator)
        mean = weight * (state.c_u[rows[local]] * losses).sum() / len(rows)
        state.optimiser.zero_grad(set_to_none=True)
        (group.size * mean).backward()  # type: ignore[no-untyped-call]
        state.optimiser.step()
        return mean.detach()

    return step


def _train_epoch(step: Step, state: PhaseState, recipe: Recipe, group: Group) -> float:
    """Train on every film once, in random order; return the mean weighted loss."""
    generator, count = state.generator, len(state.c_u)
    order = torch.randperm(count, generator=generator, device=generator.device)
    batches = torch.split(order, recipe.batch_size)
    total = state.c_u.new_zeros(())
    for number, rows in enumerate(batches):
        state.set_learning_rates(recipe, (state.epoch + number / len(batches)) / recipe.epochs)
        total += step(rows) * len(rows)
    return float(group.sum(total)) / count
