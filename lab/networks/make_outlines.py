"""Train the built-in outline network on phantoms only.

    python lab/networks/make_outlines.py --device cuda --workers 16 --knees 24000 --steps 5818 \
        -o first.safetensors
    python lab/networks/make_outlines.py --device cuda --workers 16 --start first.safetensors \
        --steps 4000 --rate 1e-3 --seed 1 -o src/kneematch/models/outlines.safetensors

The outlines of a phantom's bones are known exactly. No real film is used. The first run was made
before the definition of borders in `phantom_outlines.py` was changed.
"""

import argparse
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from kneematch.films.files import content_hash
from kneematch.models.outlines import (
    CHANNELS,
    OutlineNetwork,
    load_network,
    save_network,
    split_logits,
    standardize,
)
from kneematch.training.recipes import freeze_batchnorm
from phantom_outlines import (
    JOINT,
    LEG,
    Extent,
    KneeMaps,
    TrainingCrops,
    render_maps,
    sample_crops,
)

FIRST_SEED = 20_000_000  # disjoint from those of any test
# Share of the steps after which batch normalisation uses its running statistics, which joint and
# leg crops share, as it will when the network is used.
FROZEN_FROM = 0.6
WARM_UP = 0.1  # share of the steps during which the learning rate rises
SIDE_WEIGHT = 0.3  # weight in the loss of the sides and of each coordinate of the margins
TARGET_SD = 1.0  # standard deviation of the distribution that is learnt, in pixels
DISTANCE_WEIGHT = 0.2  # weight in the loss of the mean's error in pixels
LEG_SHARE = 0.25  # size of a batch of leg crops over that of a batch of joint crops


def main() -> None:
    args = parse_arguments()
    started = time.perf_counter()
    maps = [render(JOINT, args.knees, args.workers), render(LEG, args.legs, args.workers)]
    seconds = time.perf_counter() - started
    print(f"{args.knees} knees, {args.legs} legs in {seconds:.0f} s", flush=True)
    torch.manual_seed(args.seed)
    network = (
        OutlineNetwork(tuple(args.channels)) if args.start is None else load_network(args.start)
    )
    network.to(args.device)

    def report(step: int, loss: Tensor) -> None:
        if step % 250 == 0 or step == args.steps - 1:
            seconds = time.perf_counter() - started
            print(f"{args.out.name} step {step} loss {loss:.3f} {seconds:.0f} s", flush=True)

    train_outlines(network, [each.to(args.device) for each in maps], args, report)
    about = {"trained_on": f"{args.knees} phantom knees", "steps": args.steps, "batch": args.batch}
    if args.start is not None:
        about["start"] = content_hash(args.start)
    save_network(args.out, network, about)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, required=True, help="file of the network")
    parser.add_argument("--start", type=Path, help="network to go on from; none: random weights")
    parser.add_argument("--knees", type=int, default=16_000, help="number of knees")
    parser.add_argument("--legs", type=int, default=6_000, help="number of legs")
    parser.add_argument("--steps", type=int, default=5_000, help="training steps")
    parser.add_argument("--batch", type=int, default=64, help="knees per batch")
    parser.add_argument("--rate", type=float, default=2e-3, help="peak learning rate")
    parser.add_argument("--channels", type=int, nargs="+", default=CHANNELS, help="of each level")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=2, help="processes that draw phantoms")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def render(extent: Extent, count: int, workers: int) -> KneeMaps:
    """Return the maps of phantoms, rendered in worker processes."""
    seeds = range(FIRST_SEED, FIRST_SEED + count)
    with ProcessPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return render_maps(seeds, extent, partial(pool.map, chunksize=32))


def train_outlines(
    network: OutlineNetwork,
    maps: Sequence[KneeMaps],
    args: argparse.Namespace,
    report: Callable[[int, Tensor], None],
) -> OutlineNetwork:
    """Train with AdamW and a cosine schedule; return the network in evaluation mode.

    A step takes a batch from each of the maps, which are on the network's device; `report` is
    called after it with its number, from 0, and its loss, a scalar tensor.
    """
    generator = torch.Generator(maps[0].pixels.device).manual_seed(args.seed)
    optimiser = torch.optim.AdamW(network.parameters(), weight_decay=0.02)
    network.train().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for step in range(args.steps):
        done = step / args.steps
        if done >= FROZEN_FROM:
            freeze_batchnorm(network)
        for group in optimiser.param_groups:
            group["lr"] = args.rate * _rate(done)
        batches = [_sample_batch(each, args.batch, generator) for each in maps]
        loss = torch.stack([outline_loss(network, batch) for batch in batches]).sum()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()
        report(step, loss.detach())
    return network.eval()


def _rate(done: float) -> float:
    """Return the learning rate over its peak: a linear rise, then half a cosine."""
    return min(done / WARM_UP, 0.5 + 0.5 * math.cos(math.pi * (done - WARM_UP) / (1 - WARM_UP)))


def _sample_batch(maps: KneeMaps, size: int, generator: torch.Generator) -> TrainingCrops:
    """Return crops of random knees."""
    count = size if maps.extent == JOINT else max(1, round(LEG_SHARE * size))
    device = generator.device
    rows = torch.randint(len(maps.pixels), (count,), generator=generator, device=device)
    return sample_crops(maps, rows, generator)


def outline_loss(network: OutlineNetwork, batch: TrainingCrops) -> Tensor:
    """Return the mean loss of the network on crops."""
    device = batch.crops.device.type
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        logits = network(standardize(batch.crops))
    borders, sides, margins = split_logits(logits.float())
    ends = margins.logsumexp(-2), margins.logsumexp(-1)  # over x, over y
    at_ends = (line_loss(each, batch.margins[..., k]) for k, each in enumerate(ends))
    around = line_loss(sides, batch.sides) + torch.stack(list(at_ends)).sum()
    return line_loss(borders, batch.borders) + SIDE_WEIGHT * around


def line_loss(logits: Tensor, places: Tensor) -> Tensor:
    """Return the mean loss of distributions (..., K) whose true places (...) may be NaN."""
    length = logits.shape[-1]
    known = places.isfinite() & (places > 0) & (places < length)
    logits, places = logits[known], places[known]
    if not len(places):
        return logits.sum() * 0.0
    centres = torch.arange(length, device=logits.device) + 0.5
    target = (-0.5 * ((centres - places[:, None]) / TARGET_SD).square()).softmax(-1)
    log_share = logits.log_softmax(-1)
    mean = (log_share.exp() * centres).sum(-1)
    distance = torch.nn.functional.smooth_l1_loss(mean, places)
    return -(target * log_share).sum(-1).mean() + DISTANCE_WEIGHT * distance


if __name__ == "__main__":
    main()
