"""Train the outline network on views of phantom knees, and on corrected outlines."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from kneematch.measures.augmentation import Views, draw_views
from kneematch.measures.network import (
    JOINT_FRAME,
    LEG_FRAME,
    OutlineNetwork,
    split_logits,
    standardize,
)
from kneematch.measures.phantom_crops import KneeMaps

WARM_UP: Final = 0.1  # share of the steps during which the learning rate rises
TARGET_SD: Final = 1.0  # of the distribution that is learnt, in pixels
SIDE_WEIGHT: Final = 0.3  # of the sides, and of each coordinate of the margins, in the loss
DISTANCE_WEIGHT: Final = 0.2  # of the mean's error in pixels


@dataclass(frozen=True, slots=True)
class LearningConfig:
    """How the outline network is trained."""

    steps: int = 5000
    batch: int = 64
    rate: float = 2e-3  # peak learning rate
    seed: int = 0
    leg_share: float = 0.25  # size of a batch of leg crops over that of a batch of joint crops
    # Share of the steps after which batch normalisation uses its running statistics, which joint
    # and leg crops share, as it will when the network is used.
    frozen_from: float = 0.6


def train_outlines(
    network: OutlineNetwork,
    maps: Sequence[KneeMaps],
    config: LearningConfig,
    *,
    report: Callable[[int, Tensor], None] | None = None,
    more: Callable[[torch.Generator], Views] | None = None,
) -> OutlineNetwork:
    """Train with AdamW and a cosine schedule; return the network in evaluation mode.

    Args:
        network: on the maps' device.
        maps: knees around the joint and, second, whole legs.
        config: settings.
        report: called after every step with its number, from 0, and its loss, a scalar tensor.
        more: draws further views, such as corrected outlines, for every step.
    """
    device = maps[0].attenuation.device
    generator = torch.Generator(device).manual_seed(config.seed)
    optimiser = torch.optim.AdamW(network.parameters(), weight_decay=0.02)
    network.train().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    counts = config.batch, max(1, round(config.leg_share * config.batch))
    for step in range(config.steps):
        done = step / config.steps
        if done >= config.frozen_from:
            _freeze_normalization(network)
        for group in optimiser.param_groups:
            group["lr"] = config.rate * _rate(done)
        views = [
            draw_views(each, choose(each, count, generator), frame, generator)
            for each, count, frame in zip(maps, counts, (JOINT_FRAME, LEG_FRAME), strict=False)
        ]
        if more is not None:
            views.append(more(generator))
        loss = torch.stack([outline_loss(network, view) for view in views]).sum()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()
        if report is not None:
            report(step, loss.detach())
    return network.eval()


def _rate(done: float) -> float:
    """Return the learning rate over its peak: a linear rise, then half a cosine."""
    return min(done / WARM_UP, 0.5 + 0.5 * math.cos(math.pi * (done - WARM_UP) / (1 - WARM_UP)))


def _freeze_normalization(network: OutlineNetwork) -> None:
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.eval()


def choose(maps: KneeMaps, count: int, generator: torch.Generator) -> Tensor:
    """Return the indices (count,) of knees, at random."""
    device = generator.device
    return torch.randint(len(maps.attenuation), (count,), generator=generator, device=device)


def outline_loss(network: OutlineNetwork, views: Views) -> Tensor:
    """Return the mean loss of the network on views."""
    device = views.crops.device.type
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        logits = network(standardize(views.crops))
    borders, sides, margins = split_logits(logits.float())
    ends = margins.logsumexp(-2), margins.logsumexp(-1)  # over x, over y
    at_ends = (_line_loss(each, views.margins[..., k]) for k, each in enumerate(ends))
    around = _line_loss(sides, views.sides) + torch.stack(list(at_ends)).sum()
    return _line_loss(borders, views.borders) + SIDE_WEIGHT * around


def _line_loss(logits: Tensor, places: Tensor) -> Tensor:
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
