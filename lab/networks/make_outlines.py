"""Train the built-in outline network on phantoms only.

    python lab/networks/make_outlines.py --device cuda --workers 16 --knees 24000 --steps 5818 \
        -o first.safetensors
    python lab/networks/make_outlines.py --device cuda --workers 16 --start first.safetensors \
        --steps 4000 --rate 1e-3 --seed 1 -o src/kneematch/models/outlines.safetensors

The outlines of a phantom's bones are known exactly. No real film is used. The first run was made
before the definition of borders in `training/outline_crops.py` was changed.
"""

import argparse
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import torch

from kneematch.films.files import content_hash
from kneematch.models.outlines import CHANNELS, OutlineNetwork, load_network, save_network
from kneematch.training.outline_crops import JOINT, LEG, Extent, KneeMaps, render_maps
from kneematch.training.outline_training import OutlineConfig, train_outlines

FIRST_SEED = 20_000_000  # disjoint from those of any test


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
    config = OutlineConfig(args.steps, args.batch, args.rate, frozen_from=0.6, seed=args.seed)

    def report(step: int, loss: torch.Tensor) -> None:
        if step % 250 == 0 or step == args.steps - 1:
            seconds = time.perf_counter() - started
            print(f"{args.out.name} step {step} loss {loss:.3f} {seconds:.0f} s", flush=True)

    train_outlines(network, [each.to(args.device) for each in maps], config, report)
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


if __name__ == "__main__":
    main()
