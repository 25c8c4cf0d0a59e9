"""Train the last layers of a model's fine network anew, on phantoms only, and renew its templates.

    python scripts/retrain_head.py -o OUT/synthetic.safetensors [--model MODEL]

The ResNet18 before them stays as it is: its feature maps are computed once, so that half an hour on
two cores is enough. The built-in model was made so, from that of version 0.1.0 (commit 7fc05d7,
whose ranges of activations lay in a file beside it), since how phantoms look and where their
plateaus end changed after that was trained.
"""

import argparse
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from make_model import AVERAGED, COARSE, FINE, Views, draw_views, fine_views, mean_template
from numpy.typing import NDArray
from phantom_data import HIGHEST_GRADE, crop_around, to_bytes
from torch import Tensor

from kneematch.geometry.pose import corner_distance, pose_from_vector
from kneematch.networks.cpu_inference import byte_network
from kneematch.networks.model_file import load_model, save_model, shipped_model
from kneematch.networks.pose_network import PoseNetwork, network_from_weights
from kneematch.synthetic.film_plan import plan_film
from kneematch.synthetic.phantom import render, true_knees

FIRST_SEED = 20_000_000  # disjoint from those of make_model.py and of any test
FRAMINGS = ("bilateral",) * 56 + ("single",) * 22 + ("full_leg",) * 10 + ("offcentre",) * 12
BATCH = 128
AT_ONCE = 50  # views whose feature maps are computed together

# Crop (640, 640), margins (2, 2), and whether the knee is healthy. Arrays, since each tensor would
# hold a file open between processes.
Knee = tuple[NDArray[np.uint8], NDArray[np.float32], bool]


def main() -> None:
    args = parse_arguments()
    started = time.perf_counter()

    def report(text: str) -> None:
        print(f"{time.perf_counter() - started:.0f} s: {text}", flush=True)

    with ProcessPoolExecutor(
        args.workers, get_context("fork"), torch.set_num_threads, initargs=(1,)
    ) as pool:
        films = pool.map(knees_of_phantom, range(FIRST_SEED, FIRST_SEED + args.films), chunksize=8)
        knees = zip(*(knee for film in films for knee in film), strict=True)
        crops, margins, healthy = (torch.from_numpy(np.stack(part)) for part in knees)
    views = fine_views(crops, margins)
    report(f"{len(crops)} knees on {args.films} phantoms")
    generator = torch.Generator().manual_seed(args.seed)
    model = load_model(args.model)
    extract = byte_network(model.fine, model.ranges["fine"]).features
    order = torch.arange(len(crops)).repeat(args.views)
    maps = torch.empty(len(order), 512, 7, 7, dtype=torch.float16)
    wanted = torch.empty(len(order), 4)
    parts = (each.split(AT_ONCE) for each in (order, maps, wanted))
    for rows, here, poses in zip(*parts, strict=True):
        images, targets = draw_views(views, rows, generator)
        here.copy_(extract(images))
        poses.copy_(targets[:, 0])
    report(f"feature maps of {args.views} views of each knee")
    network = network_from_weights(model.fine)
    for distance in train_head(network, maps, wanted, views, args):
        report(f"mean distance of corners {distance:.4f}")
    chosen = healthy.nonzero()[:AVERAGED, 0]
    model = replace(
        model,
        fine=network.state_dict(),
        coarse_template=mean_template(crops[chosen], margins[chosen], COARSE),
        fine_template=mean_template(crops[chosen], margins[chosen], FINE),
        settings={**model.settings, "head": f"{args.films} further phantoms"},
    )
    save_model(args.out, model, compact=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, required=True, help="file of the new model")
    parser.add_argument("--model", default=shipped_model(), help="default: the built-in one")
    parser.add_argument("--films", type=int, default=2_600, help="number of phantoms")
    parser.add_argument("--views", type=int, default=9, help="random views of each knee")
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--rate", type=float, default=1e-3, help="peak learning rate")
    parser.add_argument("--workers", type=int, default=2, help="processes that render phantoms")
    parser.add_argument("--seed", type=int, default=0, help="of views and order")
    return parser.parse_args()


def knees_of_phantom(seed: int) -> list[Knee]:
    """Return all knees of a phantom."""
    plan = plan_film(seed, framing=FRAMINGS[seed % len(FRAMINGS)])
    film, found = render(plan), list[Knee]()
    for knee in true_knees(plan):
        crop, margins = crop_around(film, knee)
        plain = not plan.negative and not knee.implant
        found.append(
            (to_bytes(crop).numpy(), margins.numpy(), plain and knee.grade <= HIGHEST_GRADE)
        )
    return found


def train_head(
    network: PoseNetwork, maps: Tensor, wanted: Tensor, views: Views, args: argparse.Namespace
) -> Iterator[float]:
    """Train what follows the backbone on feature maps (K, 512, 7, 7) with known poses (K, 4).

    Yields the mean distance in each epoch.
    """
    torch.manual_seed(args.seed)
    head = [*network.reduce.parameters(), *network.regress.parameters()]
    optimiser = torch.optim.AdamW(head, weight_decay=0.02)
    steps = args.epochs * (len(maps) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, args.rate, total_steps=steps, pct_start=0.1
    )
    ratio = views.template_aspect / views.view_aspect
    for _ in range(args.epochs):
        total = 0.0
        for rows in torch.randperm(len(maps)).split(BATCH)[: len(maps) // BATCH]:
            found = pose_from_vector(network.head(maps[rows].float()), ratio)
            distance = corner_distance(
                found, wanted[rows], views.template_aspect, views.view_aspect
            ).mean()
            optimiser.zero_grad(set_to_none=True)
            distance.backward()
            torch.nn.utils.clip_grad_norm_(head, 1.0)
            optimiser.step()
            schedule.step()
            total += float(distance.detach())
        yield total / (len(maps) // BATCH)


if __name__ == "__main__":
    main()
