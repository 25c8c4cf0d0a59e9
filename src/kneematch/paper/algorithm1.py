"""Algorithm 1: train one network G(.; phi) to find one template (paper, Sect. 5)."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from kneematch.paper.energy import MakeProblem, Refiner, paper_problem
from kneematch.paper.network import Network, PoseNetwork, network_input
from kneematch.paper.pose import pose_from_vector
from kneematch.paper.sharpening import sharpen
from kneematch.paper.template import Template
from kneematch.sampling import sample

SHIFT: Final = 0.02  # largest random translation, as a share of the image; not in the paper
AT_ONCE: Final = 16  # radiographs that are sharpened together, which changes no result


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """The numbers of Algorithm 1; the defaults are the paper's."""

    rounds: int = 3  # T
    epochs: int = 15  # M, epochs per round
    batch_size: int = 8
    backbone_rate: float = 1e-5  # Adam's learning rate of the ResNet18 layers
    head_rate: float = 1e-4  # and of the other layers
    decay: Callable[[float], float] = lambda done: 1.0  # factor of the rates, by share of a round


@dataclass(frozen=True, slots=True, eq=False)
class PhaseData:
    """The training data u_1 ... u_N of a phase, and the template to find in them."""

    images: Callable[[Tensor], Tensor]  # indices (K,) of radiographs to images (K, S, H, W)
    count: int  # N
    template: Template
    make_problem: MakeProblem = paper_problem
    refine: Refiner = sharpen

    def map_images(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """Return a function's values (N, ...) of all images, of which it gets some at once."""
        batches = torch.split(torch.arange(self.count), AT_ONCE)
        return torch.cat([function(self.images(rows)) for rows in batches])


class PhaseState:
    """Everything that changes from epoch to epoch."""

    def __init__(self, network: PoseNetwork, count: int, seed: int) -> None:
        """Start a phase on `count` radiographs."""
        backbone = list(network.backbone.parameters())
        head = [*network.reduce.parameters(), *network.regress.parameters()]
        device = head[0].device
        self.network = network  # G(.; phi^t)
        groups = [{"params": backbone}, {"params": head}]
        self.optimiser = torch.optim.Adam(groups, lr=0.0, fused=True)
        self.generator = torch.Generator(device).manual_seed(seed)
        self.c_u = torch.ones(count, device=device)
        self.round = 0  # t, finished rounds
        self.epoch = 0  # finished epochs of the current round
        self.loss = math.nan  # mean of the last epoch

    def state_dict(self) -> dict[str, Any]:
        """Return the state as tensors and numbers, which `torch.save` can write."""
        return {
            "network": self.network.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "generator": self.generator.get_state(),
            "c_u": self.c_u,
            "round": self.round,
            "epoch": self.epoch,
            "loss": self.loss,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned; KeyError, ValueError or RuntimeError if bad."""
        self.network.load_state_dict(state["network"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.generator.set_state(state["generator"].cpu())
        self.c_u.copy_(state["c_u"])
        self.round, self.epoch = int(state["round"]), int(state["epoch"])
        self.loss = float(state["loss"])


# Losses (B,) of a network on radiographs of given indices (B,); the state has the generator.
Loss = Callable[[Network, PhaseData, Tensor, PhaseState], Tensor]


def random_translation(images: Tensor, shift: float, generator: torch.Generator) -> Tensor:
    """Translate images (..., H, W) by whole pixels, at most by a share of their size (Sect. 2)."""
    height, width = images.shape[-2:]
    drawn = torch.rand(*images.shape[:-2], 2, generator=generator, device=generator.device)
    pixels = drawn.new_tensor([width, height])
    matrices = torch.eye(2, 3, device=images.device).repeat(*images.shape[:-2], 1, 1)
    matrices[..., 2] = 2 * (shift * (2 * drawn - 1) * pixels).round() / pixels  # u is 2 wide
    return sample(images, matrices.to(images), (height, width))


def energy_loss(shift: float = SHIFT) -> Loss:
    """Return the paper's loss f(u, G(u)) on images that are translated by at most `shift`."""

    def loss(network: Network, data: PhaseData, rows: Tensor, state: PhaseState) -> Tensor:
        images = random_translation(data.images(rows), shift, state.generator)
        problem = data.make_problem(images, data.template)
        v = network(network_input(images))
        return problem.energy(pose_from_vector(v, problem.height_ratio))

    return loss


def train_phase(
    state: PhaseState,
    data: PhaseData,
    loss: Loss,
    numbers: Hyperparameters,
    begin_epoch: Callable[[PoseNetwork], Network] = PoseNetwork.train,
) -> Iterator[None]:
    """Run Algorithm 1 from a state on; yield after every epoch, with the state updated.

    `begin_epoch` puts the network into training mode and returns what the loss calls.
    """
    while state.round < numbers.rounds:  # t != T
        if state.round > 0 and state.epoch == 0:
            state.c_u.copy_(1 / sharpened_energies(state.network, data))
        while state.epoch < numbers.epochs:
            state.loss = _train_epoch(begin_epoch(state.network), state, data, loss, numbers)
            state.epoch += 1
            yield
        state.round, state.epoch = state.round + 1, 0
    state.network.eval()


def _train_epoch(
    network: Network, state: PhaseState, data: PhaseData, loss: Loss, numbers: Hyperparameters
) -> float:
    """Minimise E[c_u f(u, G(u))] over all radiographs once; return its mean."""
    order = torch.randperm(data.count, generator=state.generator, device=state.generator.device)
    batches = torch.split(order, numbers.batch_size)
    total = state.c_u.new_zeros(())
    for number, rows in enumerate(batches):
        decay = numbers.decay((state.epoch + number / len(batches)) / numbers.epochs)
        rates = numbers.backbone_rate, numbers.head_rate
        for group, rate in zip(state.optimiser.param_groups, rates, strict=True):
            group["lr"] = decay * rate
        mean = (state.c_u[rows] * loss(network, data, rows, state)).mean()
        state.optimiser.zero_grad(set_to_none=True)
        mean.backward()  # type: ignore[no-untyped-call]
        state.optimiser.step()
        total += mean.detach() * len(rows)
    return float(total) / data.count


def sharpened_energies(network: PoseNetwork, data: PhaseData) -> Tensor:
    """Return min_j f(u_i, v_j), (N,), over the sharpening steps that start at G(u_i)."""
    network.eval()

    def lowest(images: Tensor) -> Tensor:
        problem = data.make_problem(images, data.template)
        with torch.no_grad():
            v = network(network_input(images))
        return data.refine(problem, pose_from_vector(v, problem.height_ratio)).energy

    return data.map_images(lowest)
