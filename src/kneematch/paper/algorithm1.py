"""Algorithm 1: train one network G(.; phi) to find one template (paper, Sect. 5)."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kneematch.paper.energy import MakeProblem, Problem, Refiner, paper_problem
from kneematch.paper.network import Network, PoseNetwork, network_input
from kneematch.paper.pose import compose_pose, pose_from_vector, pose_matrix
from kneematch.paper.sharpening import sharpen
from kneematch.paper.template import Template
from kneematch.sampling import sample

Images = Callable[[Tensor], Tensor]  # indices (K,) of radiographs to their images (K, S, H, W)


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """The numbers of Algorithm 1; the defaults are the paper's."""

    rounds: int = 3  # T
    epochs: int = 15  # M, epochs per round
    batch_size: int = 8
    backbone_rate: float = 1e-5  # Adam's learning rate of the ResNet18 layers
    head_rate: float = 1e-4  # and of the other layers
    # Factor of both rates, by the share of a round that is done.
    decay: Callable[[float], float] = lambda done: 1.0
    at_once: int = 16  # radiographs that are sharpened together, which changes no result


@dataclass(frozen=True, slots=True, eq=False)
class PhaseData:
    """The training data u_1 ... u_N of a phase, and the template to find in them.

    Each u_i is a crop of the images of a radiograph: all of it in the first phase of Algorithm 2,
    and the enlarged coarse patch in the second.
    """

    images: Images
    crop_poses: Tensor  # (N, S, 4), where the crops lie in the images
    crop_size: tuple[int, int]  # (height, width) of the crops in pixels
    aspect: float  # height over width of the crops
    template: Template
    make_problem: MakeProblem = paper_problem
    refine: Refiner = sharpen

    def __len__(self) -> int:
        return len(self.crop_poses)

    @property
    def height_ratio(self) -> float:
        """Template aspect over crop aspect, as `pose_from_vector` takes it."""
        return self.template.aspect / self.aspect

    def poses(self, network: Network, images: Tensor, crop_poses: Tensor) -> Tensor:
        """Return D(G(u)), (K, S, 4), the poses in crops of images (K, S, H, W)."""
        v = network(network_input(images, crop_poses, self.aspect))
        return pose_from_vector(v, self.height_ratio)

    def problem(self, images: Tensor, crop_poses: Tensor) -> Problem:
        """Return the problem of finding the template in crops of images (K, S, H, W)."""
        matrices = pose_matrix(crop_poses, self.aspect, _aspect(images))
        return self.make_problem(sample(images, matrices.to(images), self.crop_size), self.template)


class PhaseState:
    """Everything that changes from epoch to epoch."""

    def __init__(self, network: PoseNetwork, count: int, seed: int, random: bool = False) -> None:
        """Start a phase on `count` radiographs.

        With `random`, the backbone has not been trained before and learns at the head's rate.
        """
        backbone = list(network.backbone.parameters())
        head = [*network.reduce.parameters(), *network.regress.parameters()]
        if random:
            backbone, head = [], [*backbone, *head]
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
        if state["c_u"].shape != self.c_u.shape:
            raise ValueError(f"weights of {len(state['c_u'])} radiographs, not {len(self.c_u)}")
        self.network.load_state_dict(state["network"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.generator.set_state(state["generator"].cpu())
        self.c_u.copy_(state["c_u"])
        self.round, self.epoch = int(state["round"]), int(state["epoch"])
        self.loss = float(state["loss"])


# Losses (B,) of a network on radiographs of given indices (B,). The state gives the generator of
# random numbers and the round.
Loss = Callable[[Network, PhaseData, Tensor, PhaseState], Tensor]
# Random poses (B, S, 4) of moved crops in crops of a size (height, width).
Move = Callable[[tuple[int, int], tuple[int, int], torch.Generator], Tensor]


def random_translation(shift: float) -> Move:
    """Return a function that draws translations by whole pixels, up to a share of the size."""

    def move(count: tuple[int, int], size: tuple[int, int], generator: torch.Generator) -> Tensor:
        drawn = 2 * torch.rand(*count, 2, generator=generator, device=generator.device) - 1
        pixels = drawn.new_tensor([size[1], size[0]])
        centre = 2 * (shift * drawn * pixels).round() / pixels  # the crop is 2 wide
        one = torch.ones_like(drawn[..., :1])
        return torch.cat([one, centre, torch.zeros_like(one)], dim=-1)

    return move


def energy_loss(
    move: Move, change: Callable[[Problem, int], Problem] = lambda problem, number: problem
) -> Loss:
    """Return the loss f(u, G(u)) on randomly translated images.

    Args:
        move: draws the translations, anew for each image and step.
        change: what is done to the problem in a round; nothing in the paper.
    """

    def loss(network: Network, data: PhaseData, rows: Tensor, state: PhaseState) -> Tensor:
        images, crop_poses = data.images(rows), data.crop_poses[rows.to(data.crop_poses.device)]
        moved = move((len(rows), images.shape[1]), data.crop_size, state.generator)
        crop_poses = compose_pose(crop_poses, moved, data.aspect, _aspect(images))
        problem = change(data.problem(images, crop_poses), state.round)
        return problem.energy(data.poses(network, images, crop_poses))

    return loss


def training_mode(network: PoseNetwork) -> nn.Module:
    """Put a network into training mode and return it; BatchNorm normalises by the batch."""
    return network.train()


def train_phase(
    state: PhaseState,
    data: PhaseData,
    loss: Loss,
    numbers: Hyperparameters,
    begin_epoch: Callable[[PoseNetwork], Network] = training_mode,
) -> Iterator[None]:
    """Run Algorithm 1 from a state on; yield after every epoch, with the state updated.

    Args:
        state: the network, and how far its training is.
        data: what it is trained on.
        loss: the paper's is `energy_loss`.
        numbers: the hyperparameters.
        begin_epoch: puts the network into training mode and returns what the loss calls.
    """
    while state.round < numbers.rounds:  # t != T
        if state.round > 0 and state.epoch == 0:
            state.c_u.copy_(1 / sharpened_energies(state.network, data, numbers.at_once))
        while state.epoch < numbers.epochs:
            network = begin_epoch(state.network)
            state.loss = _train_epoch(network, state, data, loss, numbers)
            state.epoch += 1
            yield
        state.round, state.epoch = state.round + 1, 0
    state.network.eval()


def _train_epoch(
    network: Network, state: PhaseState, data: PhaseData, loss: Loss, numbers: Hyperparameters
) -> float:
    """Minimise E[c_u f(u, G(u))] over all radiographs once; return its mean."""
    generator, count = state.generator, len(state.c_u)
    order = torch.randperm(count, generator=generator, device=generator.device)
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
    return float(total) / count


def sharpened_energies(network: PoseNetwork, data: PhaseData, at_once: int = 16) -> Tensor:
    """Return min_j f(u_i, v_j), (N,), over the sharpening steps that start at G(u_i)."""

    def sharpened(images: Tensor, crop_poses: Tensor) -> Tensor:
        with torch.no_grad():
            start = data.poses(network, images, crop_poses)
        return data.refine(data.problem(images, crop_poses), start).energy

    return _map_crops(sharpened, network, data, at_once)


@torch.no_grad()
def predict_poses(network: PoseNetwork, data: PhaseData, at_once: int = 16) -> Tensor:
    """Return the poses theta (N, S, 4) that a network predicts, in the images of the crops."""

    def predict(images: Tensor, crop_poses: Tensor) -> Tensor:
        theta = data.poses(network, images, crop_poses)
        return compose_pose(crop_poses, theta, data.aspect, _aspect(images))

    return _map_crops(predict, network, data, at_once)


def _map_crops(
    function: Callable[[Tensor, Tensor], Tensor], network: nn.Module, data: PhaseData, at_once: int
) -> Tensor:
    """Apply a function of images and crop poses to all radiographs, some at once."""
    network.eval()
    batches = torch.split(torch.arange(len(data)), at_once)
    return torch.cat([function(data.images(rows), data.crop_poses[rows]) for rows in batches])


def _aspect(images: Tensor) -> float:
    return images.shape[-2] / images.shape[-1]
