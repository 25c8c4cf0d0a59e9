"""Train the built-in model: both networks, on phantoms only, and a mean template of phantoms.

    python scripts/make_model.py --device cuda -o src/kneematch/networks/synthetic.safetensors

The poses of a phantom's knees are known, so the networks are trained with supervision. No real film
is used.
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
from kneematch.geometry.split import HALF_ASPECT, ROOM, split
from kneematch.geometry.view import transform
from kneematch.io.radiograph import Radiograph
from kneematch.matching.annotation import PLATEAU_MARGINS, Box
from kneematch.matching.local_contrast import normalize_local_contrast
from kneematch.matching.template import Template, Window
from kneematch.networks.model_file import PHASES, Model, save_model
from kneematch.networks.pose_network import PoseNetwork
from kneematch.synthetic.annotation import COARSE, FINE, GREEN, RED
from kneematch.synthetic.film_plan import plan_film
from kneematch.synthetic.phantom import render, true_knees
from kneematch.training.config import DEFAULT
from kneematch.training.dataset import FilmsInMemory
from kneematch.training.distributed import Group
from kneematch.training.phase import Loss, PhaseData
from kneematch.training.two_phases import Task, TemplatePair, coarse_phase, fine_phase

FIRST_SEED = 10_000_000  # disjoint from those of any test
PLATEAU_PX = 220  # plateau width in the mean template
HIGHEST_GRADE = 1  # of the knees that are averaged
AVERAGED = 2000  # number of these knees


def main() -> None:
    args = parse_arguments()
    started = time.perf_counter()
    halves, margins, healthy = render_phantoms(args.films, args.workers)
    print(f"{len(halves)} phantoms in {time.perf_counter() - started:.0f} s", flush=True)
    films, margins = FilmsInMemory(halves.to(args.device)), margins.to(args.device)
    coarse, fine = (mean_template(films, margins, healthy, box) for box in (COARSE, FINE))
    templates = TemplatePair(
        coarse, fine, pose(margins[0, 0], COARSE, coarse), pose(margins[0, 0], FINE, fine)
    )
    task = Task(films, templates, DEFAULT, pose(margins, FINE, fine), args.seed)
    networks = []
    for number, phase in enumerate(PHASES):
        torch.manual_seed(args.seed + number)
        network = PoseNetwork().to(args.device)
        data, loss = fine_phase(task, network, Group()) if number else coarse_phase(task)
        networks.append(train_network(network, phase, data, loss, args))
    weights = (network.state_dict() for network in networks)
    settings = {"start": "none", "films": f"{len(films)} phantoms", "steps": args.steps}
    save_model(args.out, Model(*weights, coarse, fine, settings), dtype=torch.float16)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, required=True, help="model file")
    parser.add_argument("--films", type=int, default=12_000, help="number of phantoms")
    parser.add_argument("--steps", type=int, default=4_000, help="training steps of each network")
    parser.add_argument("--batch", type=int, default=128, help="films per batch")
    parser.add_argument("--rate", type=float, default=1.5e-3, help="peak learning rate")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=2, help="processes that render phantoms")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def render_phantoms(count: int, workers: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return halves (N, 2, 800, 500) in bytes, margins (N, 2, 2, 2), and healthy knees (N, 2).

    Margins are the medial and lateral end (x, y) of the plateau in a half's [-1, 1]^2.
    """
    seeds = range(FIRST_SEED, FIRST_SEED + count)
    with ProcessPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        made = list(pool.map(render_phantom, seeds, chunksize=16))
    halves, margins, healthy = (np.stack(part) for part in zip(*made, strict=True))
    return torch.from_numpy(halves), torch.from_numpy(margins), torch.from_numpy(healthy)


def render_phantom(seed: int) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.bool_]]:
    """Return halves (2, 800, 500), margins (2, 2, 2) and healthy knees (2,) of a phantom."""
    plan = plan_film(seed)
    halves = split(Radiograph(pixels=render(plan).numpy()), room=ROOM)
    knees = true_knees(plan)
    points = torch.tensor([[knee.plateau_medial, knee.plateau_lateral] for knee in knees])
    margins = transform(torch.linalg.inv(halves.to_film), points.double()).float()
    plain = [not plan.negative and not knee.implant for knee in knees]
    healthy = np.array(plain) & [knee.grade <= HIGHEST_GRADE for knee in knees]
    return (halves.pixels * 255).round().byte().numpy(), margins.numpy(), healthy


def mean_template(films: FilmsInMemory, margins: Tensor, healthy: Tensor, box: Box) -> Template:
    """Return the mean of healthy knees, aligned by their margins and standardised."""
    x0, y0, x1, y1 = box
    size = round((y1 - y0) * PLATEAU_PX), round((x1 - x0) * PLATEAU_PX)
    rows, sides = (part[:AVERAGED].to(margins.device) for part in healthy.nonzero().unbind(-1))
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
        for total, view in ((image, lambda half: half), (fine, normalize_local_contrast)):
            patches = sample(view(halves), matrices, size)
            deviation, mean = torch.std_mean(patches, dim=(-2, -1), keepdim=True)
            total += ((patches - mean) / deviation).sum(0) / len(rows)
    places = ((float(x), float(y)) for x, y in margins_in(box))
    landmarks = dict(zip(PLATEAU_MARGINS, places, strict=True))
    return Template(image, fine, template.red, template.green, landmarks)


def pose(margins: Tensor, box: Box, template: Template) -> Tensor:
    """Return the pose (..., 4) of a box around a plateau with margins (..., 2, 2)."""
    return pose_from_points(margins, margins_in(box).to(margins), template.aspect, HALF_ASPECT)


def margins_in(box: Box) -> Tensor:
    """Return the margins (2, 2), half a plateau to either side, in a box's [-1, 1]^2."""
    corner, far = torch.tensor(box[:2]), torch.tensor(box[2:])
    return 2 * (torch.tensor([[-0.5, 0.0], [0.5, 0.0]]) - corner) / (far - corner) - 1


def _window(inner: Box, box: Box, size: tuple[int, int]) -> Window:
    x0, y0, x1, y1 = box
    rows = [round((y - y0) / (y1 - y0) * size[0]) for y in (inner[1], inner[3])]
    columns = [round((x - x0) / (x1 - x0) * size[1]) for x in (inner[0], inner[2])]
    return ..., slice(*rows), slice(*columns)


def train_network(
    network: PoseNetwork,
    phase: str,
    data: PhaseData,
    loss: Loss,
    args: argparse.Namespace,
) -> PoseNetwork:
    """Train one network with AdamW and a one-cycle schedule."""
    network = network.to(memory_format=torch.channels_last).train()
    optimiser = torch.optim.AdamW(network.parameters(), weight_decay=0.02, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, args.rate, total_steps=args.steps, pct_start=0.1
    )
    device = data.frames.device
    generator = torch.Generator(device).manual_seed(args.seed)
    everyone = torch.arange(args.batch, device=device)
    started = time.perf_counter()

    def answer(images: Tensor) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            return network(images)

    for step in range(args.steps):
        count = len(data.films), (args.batch,)
        rows = torch.randint(*count, generator=generator, device=device)
        mean = loss(answer, data, rows, everyone, generator).mean()
        optimiser.zero_grad(set_to_none=True)
        mean.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if step % 500 == 0 or step == args.steps - 1:
            seconds = time.perf_counter() - started
            print(f"{phase} step {step} distance {mean / 2:.4f} {seconds:.0f} s", flush=True)
    return network.eval()


if __name__ == "__main__":
    main()
