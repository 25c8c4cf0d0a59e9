"""The networks as this machine's CPU runs them fastest."""

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from kneematch.geometry.split import split
from kneematch.networks import eight_bits
from kneematch.networks.folded import folded
from kneematch.networks.pose_network import look, whole
from kneematch.networks.two_stage import Network
from kneematch.synthetic.phantom import phantom

SEEDS: Final = (0, 1)  # of the phantoms in the examples
SIZE: Final = (256, 320)  # of them, in pixels: what the networks see of a film is smaller still
ZOOMS: Final = (1.0, 0.5)  # of the examples: what the coarse and, about, the fine network sees
COMPARED: Final = 4  # examples on which both must agree
AGREEMENT: Final = 0.01  # of vectors v, the median: about 0.5 % of a knee's width


def fast(weights: Mapping[str, Tensor], seen: Tensor | None = None) -> Network:
    """What a PoseNetwork does, images (..., 224, 224) to v (..., 4), for inference on the CPU.

    It is in 8-bit integers where those are exact on this machine (an x86 CPU with VNNI) and agree
    with float32 on the examples, and in float32 anywhere else.

    Args:
        weights: of a PoseNetwork; they are copied.
        seen: (K, 224, 224), images of the kind it will see, instead of our examples.
    """
    plain = folded(weights)
    if not eight_bits.exact():
        return plain
    seen = examples() if seen is None else seen
    short = eight_bits.in_bytes(plain, seen)
    some = seen[:: len(seen) // COMPARED or 1]
    return short if float((short(some) - plain(some)).abs().median()) < AGREEMENT else plain


@torch.no_grad()
def examples() -> Tensor:
    """Views (8, 224, 224) of phantoms, half of them as a negative."""
    views = []
    for seed in SEEDS:
        halves = split(phantom(seed, size=SIZE).radiograph).pixels[None]
        aspect = halves.shape[-2] / halves.shape[-1]
        for zoom in ZOOMS:
            frames = whole(halves) * halves.new_tensor([zoom, 1, 1, 1])
            view = look(halves, frames, aspect)[0]
            views.append(view if seed == SEEDS[0] else 1 - view)
    return torch.cat(views)
