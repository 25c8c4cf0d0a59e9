"""Train the network that sees metal and open growth plates, on phantoms.

    python lab/networks/make_findings.py -o src/kneematch/models/findings.safetensors

It takes minutes on a GPU. No real film is used. Legs and hardware are rendered once; each step
combines them anew: a leg of any exposure, with or without hardware and growth plates, and with
things that look alike: fractures, words, balls, saturated bone, edges. The network in the package
had 1,871 steps of 128 views on a GPU. Then bright lines in bones, films made for the metal and
narrower strips were added to the views, and it was continued (`--start`, `--rate 1e-3`) on a CPU:
2,000 steps of 16 out of 9,600 stored views, a third of them new; averages of its weights were kept.
"""

import argparse
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from kneematch.models.findings import FindingsNetwork
from locator_training import train_one_cycle
from phantom_findings import render_parts, sample_batch

AGREE = (3, 8)  # likeliest cells whose mean log odds are those of a view: metal, growth plates


def binary(logits: Tensor, wanted: Tensor) -> Tensor:
    """Return the mean cross-entropy where it is known what is wanted."""
    known = ~wanted.isnan()
    loss = F.binary_cross_entropy_with_logits(logits, wanted.nan_to_num(0), reduction="none")
    return (loss * known).sum() / known.sum().clamp(min=1)


def pool_cells(cells: Tensor) -> Tensor:
    """Return the log odds (N, 2) of a whole view, given those of its cells (N, 2, h, w)."""
    pooled = (
        each.flatten(1).topk(count).values.mean(1)
        for each, count in zip(cells.unbind(1), AGREE, strict=True)
    )
    return torch.stack(list(pooled), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--start", type=Path, help="continue with these weights")
    parser.add_argument("--legs", type=int, default=3000, help="phantoms")
    parser.add_argument("--steps", type=int, default=1871)
    parser.add_argument("--batch", type=int, default=128, help="views a step")
    parser.add_argument("--rate", type=float, default=4e-3, help="largest learning rate")
    parser.add_argument("--workers", type=int, default=10, help="processes that render")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    started = time.perf_counter()
    parts = render_parts(args.legs, args.workers, device)
    print(f"rendered in {time.perf_counter() - started:.0f} s", flush=True)
    torch.manual_seed(2)
    generator = torch.Generator(device).manual_seed(0)
    network = FindingsNetwork()
    if args.start:
        network.load_state_dict(load_file(args.start))
    network.to(device)

    def losses() -> dict[str, Tensor]:
        batch = sample_batch(parts, args.batch, generator)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            cells = network(batch.views)
        metal, plates = pool_cells(cells.float()).unbind(1)
        return {
            "cells": binary(cells.float(), batch.cells),
            "metal": binary(metal, batch.whole[:, 0]),
            "plates": binary(plates, batch.whole[:, 1]),
        }

    train_one_cycle("findings", network, args.steps, args.rate, losses)
    save_file({name: each.half().cpu() for name, each in network.state_dict().items()}, args.out)


if __name__ == "__main__":
    main()
