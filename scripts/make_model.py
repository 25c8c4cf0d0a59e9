"""Make the model in the box: both networks, trained on phantoms alone, and a mean knee of theirs.

    python scripts/make_model.py --device cuda -o src/kneematch/minimisers/synthetic.safetensors

Phantoms know where their knees are, so the networks learn poses from the start. No real film takes
part in it.
"""

import argparse
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kneematch.geometry.pose import pose_from_points, pose_matrix
from kneematch.geometry.sampling import sample
from kneematch.geometry.split import HALF_ASPECT, LEFT, ROOM, split
from kneematch.geometry.view import transform
from kneematch.io.radiograph import Radiograph
from kneematch.matching.annotation import Box
from kneematch.matching.local_contrast import detail
from kneematch.matching.template import Template, Window
from kneematch.networks.model_file import Model, save_model
from kneematch.networks.pose_network import PoseNetwork
from kneematch.synthetic.annotation import COARSE, FINE, GREEN, RED
from kneematch.synthetic.phantom import plan_film, render, true_knees
from kneematch.training.config import DEFAULT
from kneematch.training.distributed import Group
from kneematch.training.losses import Objective
from kneematch.training.phase_data import InMemory, Lesson
from kneematch.training.two_phases import PHASES, Drawn, Task, first_phase, second_phase

FIRST_SEED = 10_000_000  # apart from those of any test
PLATEAU_PX = 220  # of the mean knee
ORDINARY = 1  # the highest grade of the knees it is the mean of
AVERAGED = 2000  # of them
LANDMARKS = ("plateau_left", "plateau_right")


def main() -> None:
    chosen = options()
    started = time.perf_counter()
    halves, margins, ordinary = phantoms(chosen.films, chosen.workers)
    print(f"{len(halves)} phantoms in {time.perf_counter() - started:.0f} s", flush=True)
    films, margins = InMemory(halves.to(chosen.device)), margins.to(chosen.device)
    coarse, fine = (mean_knee(films, margins, ordinary, box) for box in (COARSE, FINE))
    drawn = Drawn(
        coarse, fine, pose(margins[0, 0], COARSE, coarse), pose(margins[0, 0], FINE, fine)
    )
    task = Task(films, drawn, DEFAULT, pose(margins, FINE, fine), chosen.seed)
    networks = []
    for number, phase in enumerate(PHASES):
        torch.manual_seed(chosen.seed + number)
        network = PoseNetwork().to(chosen.device)
        lesson, objective = second_phase(task, network, Group()) if number else first_phase(task)
        networks.append(trained(network, phase, lesson, objective, chosen))
    weights = (network.state_dict() for network in networks)
    settings = {"start": "none", "films": f"{len(films)} phantoms", "steps": chosen.steps}
    save_model(chosen.out, Model(*weights, coarse, fine, settings), dtype=torch.float16)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--films", type=int, default=12_000)
    parser.add_argument("--steps", type=int, default=4_000, help="of each network")
    parser.add_argument("--batch", type=int, default=128, help="films")
    parser.add_argument("--rate", type=float, default=1.5e-3, help="the highest learning rate")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=2, help="processes that make phantoms")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def phantoms(count: int, workers: int) -> tuple[Tensor, Tensor, Tensor]:
    """Halves (N, 2, 800, 500) in bytes, margins (N, 2, 2, 2) in them, ordinary knees (N, 2)."""
    seeds = range(FIRST_SEED, FIRST_SEED + count)
    with ProcessPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        made = list(pool.map(one, seeds, chunksize=16))
    halves, margins, ordinary = (np.stack(part) for part in zip(*made, strict=True))
    return torch.from_numpy(halves), torch.from_numpy(margins), torch.from_numpy(ordinary)


def one(seed: int) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.bool_]]:
    """A phantom: halves (2, 800, 500), margins (2, 2, 2) in them, and which knees are ordinary."""
    plan = plan_film(seed)
    halves = split(Radiograph(pixels=render(plan).numpy()), room=ROOM)
    knees = true_knees(plan)
    points = torch.tensor([[knee.plateau_left, knee.plateau_right] for knee in knees])
    margins = transform(torch.linalg.inv(halves.to_film), points.double()).float()
    margins[LEFT] = margins[LEFT].flip(0)  # mirrored
    plain = not plan.negative and not plan.hardware
    ordinary = np.array([plain and knee.grade <= ORDINARY for knee in knees])
    return (halves.pixels * 255).round().byte().numpy(), margins.numpy(), ordinary


def mean_knee(films: InMemory, margins: Tensor, ordinary: Tensor, box: Box) -> Template:
    """The mean of ordinary knees, each put in its place and standardised."""
    x0, y0, x1, y1 = box
    size = round((y1 - y0) * PLATEAU_PX), round((x1 - x0) * PLATEAU_PX)
    rows, sides = (part[:AVERAGED].to(margins.device) for part in ordinary.nonzero().unbind(-1))
    view: Callable[[Tensor], Tensor]
    image, fine = (
        torch.zeros(size, device=margins.device),
        torch.zeros(size, device=margins.device),
    )
    template = Template(image, fine, _window(RED, box, size), _window(GREEN, box, size))
    for row, side in zip(rows.split(50), sides.split(50), strict=True):
        halves = films.pixels[row, side].float() / 255
        matrices = pose_matrix(
            pose(margins[row, side], box, template), template.aspect, HALF_ASPECT
        )
        for total, view in ((image, lambda half: half), (fine, detail)):
            patches = sample(view(halves), matrices, size)
            deviation, mean = torch.std_mean(patches, dim=(-2, -1), keepdim=True)
            total += ((patches - mean) / deviation).sum(0) / len(rows)
    places = ((float(x), float(y)) for x, y in margins_in(box))
    landmarks = dict(zip(LANDMARKS, places, strict=True))
    return Template(image, fine, template.red, template.green, landmarks)


def pose(margins: Tensor, box: Box, template: Template) -> Tensor:
    """The pose (..., 4) of a box around a plateau with margins (..., 2, 2)."""
    return pose_from_points(margins, margins_in(box).to(margins), template.aspect, HALF_ASPECT)


def margins_in(box: Box) -> Tensor:
    """The margins, half a plateau to either side, in a box's [-1, 1]^2."""
    corner, far = torch.tensor(box[:2]), torch.tensor(box[2:])
    return 2 * (torch.tensor([[-0.5, 0.0], [0.5, 0.0]]) - corner) / (far - corner) - 1


def _window(inner: Box, box: Box, size: tuple[int, int]) -> Window:
    x0, y0, x1, y1 = box
    rows = [round((y - y0) / (y1 - y0) * size[0]) for y in (inner[1], inner[3])]
    columns = [round((x - x0) / (x1 - x0) * size[1]) for x in (inner[0], inner[2])]
    return ..., slice(*rows), slice(*columns)


def trained(
    network: PoseNetwork,
    phase: str,
    lesson: Lesson,
    objective: Objective,
    chosen: argparse.Namespace,
) -> PoseNetwork:
    """Learn to see the coarse template in a half, or the fine one in the enlarged coarse one."""
    network = network.to(memory_format=torch.channels_last).train()
    optimiser = torch.optim.AdamW(network.parameters(), weight_decay=0.02, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, chosen.rate, total_steps=chosen.steps, pct_start=0.1
    )
    device = lesson.frames.device
    generator = torch.Generator(device).manual_seed(chosen.seed)
    everyone = torch.arange(chosen.batch, device=device)
    started = time.perf_counter()

    def answer(images: Tensor) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            return network(images)

    for step in range(chosen.steps):
        count = len(lesson.films), (chosen.batch,)
        rows = torch.randint(*count, generator=generator, device=device)
        loss = objective(answer, lesson, rows, everyone, generator).mean()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if step % 500 == 0 or step == chosen.steps - 1:
            seconds = time.perf_counter() - started
            print(f"{phase} step {step} distance {loss / 2:.4f} {seconds:.0f} s", flush=True)
    return network.eval()


if __name__ == "__main__":
    main()
