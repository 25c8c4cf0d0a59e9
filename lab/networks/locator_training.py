"""Train the locator on random views of small phantom films; the loop of all such trainings."""

import math
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kneematch.models.locator import CHANNELS, STRIDE, UNIT_PX, Locator, prepare_input
from kneematch.training.recipes import vary_exposures
from phantom_data import PhantomData

VIEW = 256  # side of the views
SEEN = (12.0, 150.0)  # plateau widths in a view that the locator learns to find
UNSEEN = 8.0  # below this width a knee need not be found, and in between it may be
UPRIGHT = math.radians(38)  # largest rotation of a knee that it learns to find
TURNED = math.radians(55)  # from here on it learns to find none
WHOLE = 0.55  # share of the views that show the whole film
WEIGHTS = {"offset": 0.5, "width": 1.0, "rotation": 1.0, "mirrored": 0.2}


def train_one_cycle(
    name: str, network: nn.Module, steps: int, rate: float, losses: Callable[[], dict[str, Tensor]]
) -> None:
    """Train with AdamW and a one-cycle schedule; leave the network in evaluation mode.

    `losses` draws a batch and returns its losses by name; their sum is minimised.
    """
    optimiser = torch.optim.AdamW(network.parameters(), weight_decay=0.02, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, rate, total_steps=steps, pct_start=0.1
    )
    started = time.perf_counter()
    network.train()
    for step in range(steps):
        found = losses()
        optimiser.zero_grad(set_to_none=True)
        torch.stack(list(found.values())).sum().backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if step % 250 == 0 or step == steps - 1:
            text = " ".join(f"{kind} {value.detach():.4f}" for kind, value in found.items())
            print(f"{name} step {step} {text} {time.perf_counter() - started:.0f} s", flush=True)
    network.eval()


def train_locator(data: PhantomData, steps: int, batch: int, rate: float, seed: int) -> Locator:
    """Return a locator that was trained on random views."""
    device = data.films.device
    network = Locator().to(device, memory_format=torch.channels_last)
    generator = torch.Generator(device).manual_seed(seed)
    halved = (F.avg_pool2d(part.float()[:, None], 2)[:, 0] for part in data.films.split(512))
    small = torch.cat([part.round().byte() for part in halved])

    def losses() -> dict[str, Tensor]:
        rows = torch.randint(len(data.films), (batch,), generator=generator, device=device)
        views, knees = draw_views(data, small, rows, generator)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            maps = network(prepare_input(views).contiguous(memory_format=torch.channels_last))
        return locator_losses(maps.float(), knees)

    train_one_cycle("locator", network, steps, rate, losses)
    return network


def draw_views(
    data: PhantomData, small: Tensor, rows: Tensor, generator: torch.Generator
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return random views (B, 256, 256) of films, and the knees (B, 2) in them."""
    device, count = rows.device, len(rows)

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(count, generator=generator, device=device)

    def normal(deviation: float) -> Tensor:
        return deviation * torch.randn(count, generator=generator, device=device)

    sizes, margins = data.sizes[rows], data.margins[rows]  # (B, 2), (B, 2, 2, 2)
    exists = torch.arange(2, device=device) < data.count[rows][:, None]  # (B, 2)
    flip = uniform(0, 1) < 0.5
    kind = uniform(0, 1)
    angle = torch.where(kind < 0.5, normal(math.radians(4)), uniform(-1, 1) * math.radians(35))
    turns = torch.randint(1, 4, (count,), generator=generator, device=device)
    angle = torch.where(kind > 0.88, turns * math.pi / 2 + normal(math.radians(10)), angle)
    # Film pixels per view pixel: the whole film, or a knee of random size.
    long = sizes.amax(1)
    whole = uniform(0, 1) < WHOLE
    width = (margins[:, 0, 0] - margins[:, 0, 1]).norm(dim=-1)
    wanted = torch.exp(uniform(math.log(14), math.log(140)))
    smaller = long / VIEW * torch.exp(uniform(-1.5, 0.3))
    zoomed = torch.where(data.count[rows] > 0, width / wanted, smaller)
    step = torch.where(whole, long / VIEW * torch.exp(uniform(-0.1, 0.25)), zoomed).clamp(0.35, 5.5)
    # The middle of the view: that of the film, or near a knee, or anywhere.
    middle = sizes.flip(1) / 2
    shift = torch.stack([uniform(-1, 1), uniform(-1, 1)], 1)
    near = margins[:, 0].mean(1)
    anywhere = middle + shift * middle
    focus = torch.where(
        (data.count[rows] > 0)[:, None] & (uniform(0, 1) < 0.7)[:, None], near, anywhere
    )
    focus = torch.where(whole[:, None], middle, focus)
    slack = torch.where(whole, 0.06, 0.38) * VIEW
    place = VIEW / 2 + shift * slack[:, None]  # where the focus is shown
    cos, sin = angle.cos(), angle.sin()
    # From the view to the film.
    turn = torch.stack([torch.stack([cos, sin], -1), torch.stack([-sin, cos], -1)], -2)
    mirror = torch.where(flip, -1.0, 1.0)
    linear = step[:, None, None] * torch.stack([mirror[:, None] * turn[:, 0], turn[:, 1]], 1)
    offset = focus - (linear @ place[..., None])[..., 0]
    views = sample_views(
        data.films, small, rows, linear, offset, step, sizes, uniform(0, 1), uniform(0, 1)
    )
    views = vary_exposures(views, generator)
    inverse = torch.linalg.inv(linear)
    ends = (margins - offset[:, None, None]) @ inverse.mT[:, None]  # (B, 2, 2, 2): lateral, medial
    centre, across = ends.mean(2), ends[:, :, 0] - ends[:, :, 1]
    plateau = across.norm(dim=-1)
    mirrored = across[..., 0] < 0  # lateral to the left, for an upright knee
    along = torch.where(mirrored[..., None], -across, across)
    # Which way is up is the film's: a knee that is turned over has its femur below.
    up = -inverse[:, :, 1][:, None].expand(-1, 2, -1)  # film's upward direction in the view
    tilt = torch.atan2(up[..., 0], -up[..., 1])
    rotation = torch.atan2(along[..., 1], along[..., 0])
    inside = ((centre > 2) & (centre < VIEW - 2)).all(-1) & exists
    seen = inside & (plateau >= SEEN[0]) & (plateau <= SEEN[1]) & (tilt.abs() < UPRIGHT)
    return views, {
        "centre": centre,
        "width": plateau,
        "rotation": rotation,
        "mirrored": mirrored,
        "seen": seen,
        "ignored": exists & (plateau >= UNSEEN) & (tilt.abs() < TURNED) & ~seen,
    }


def sample_views(
    films: Tensor,
    small: Tensor,
    rows: Tensor,
    linear: Tensor,
    offset: Tensor,
    step: Tensor,
    sizes: Tensor,
    fill: Tensor,
    grey: Tensor,
) -> Tensor:
    """Sample views (B, 256, 256); beside the film they are black or, in a few, grey."""
    views = films.new_zeros(len(rows), VIEW, VIEW, dtype=torch.float32)
    fine = 2 * VIEW
    axis = (torch.arange(fine, device=rows.device) + 0.5) / 2
    for source, shrink, chosen in ((films, 1, step <= 2.2), (small, 2, step > 2.2)):
        which = chosen.nonzero()[:, 0]
        if not len(which):
            continue
        maps, start = linear[which] / shrink, offset[which] / shrink
        grid = (
            maps[:, None, None, :, 0] * axis[None, None, :, None]
            + maps[:, None, None, :, 1] * axis[None, :, None, None]
            + start[:, None, None]
        )  # (K, 512, 512, 2) in source pixels
        side = source.shape[-1]
        pictures = source[rows[which]].float()[:, None] / 255
        drawn = F.grid_sample(pictures, 2 * grid / side - 1, align_corners=False)[:, 0]
        limit = sizes[which].flip(1)[:, None, None] / shrink
        outside = ((grid < 0) | (grid > limit)).any(-1)
        shade = torch.where(fill[which] < 0.2, grey[which], 0.0)[:, None, None]
        drawn = torch.where(outside, shade, drawn)
        views[which] = F.avg_pool2d(drawn[:, None], 2)[:, 0]
    return views


def locator_losses(maps: Tensor, knees: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the focal loss of the score and the losses of the other maps (B, 6, 32, 32)."""
    cells = maps.shape[-1]
    centre = (torch.arange(cells, device=maps.device) + 0.5) * STRIDE
    dx = (knees["centre"][..., 0][..., None, None] - centre) / STRIDE  # (B, 2, 1, 32)
    dy = (knees["centre"][..., 1][..., None, None] - centre[:, None]) / STRIDE  # (B, 2, 32, 1)
    squared = dx.square() + dy.square()  # (B, 2, 32, 32), in cells
    sigma = (0.12 * knees["width"] / STRIDE).clamp(min=0.6)[..., None, None]
    bell = torch.exp(-squared / (2 * sigma.square()))
    seen, ignored = (knees[name][..., None, None] for name in ("seen", "ignored"))
    target = (bell * seen).amax(1)
    nearest = (dx.abs() <= 0.5) & (dy.abs() <= 0.5)
    peak = (nearest & seen).any(1)
    reach = (0.6 * knees["width"] / STRIDE).clamp(min=1.5)[..., None, None]
    counted = ~((squared < reach.square()) & ignored).any(1) | peak
    score = maps[:, CHANNELS.index("knee")]
    chance = score.sigmoid().clamp(1e-5, 1 - 1e-5)
    hit = (1 - chance).square() * chance.log() * peak
    miss = (1 - target).pow(4) * chance.square() * (1 - chance).log() * ~peak * counted
    focal = -(hit + miss).sum() / peak.sum().clamp(min=1)
    close = (dx.abs() <= 1) & (dy.abs() <= 1) & seen  # (B, 2, 32, 32)
    weight = close.float()
    total = weight.sum().clamp(min=1)

    def mean(values: Tensor) -> Tensor:
        return (values * weight).sum() / total

    def channel(name: str) -> Tensor:
        return maps[:, None, CHANNELS.index(name)]

    def binary(name: str) -> Tensor:
        wanted = knees[name][..., None, None].expand_as(weight).float()
        return F.binary_cross_entropy_with_logits(
            channel(name).expand_as(weight), wanted, reduction="none"
        )

    offset = (channel("x") - dx).abs() + (channel("y") - dy).abs()
    log_width = (knees["width"] / UNIT_PX).clamp(min=0.1).log()[..., None, None]
    return {
        "knee": focal,
        "offset": WEIGHTS["offset"] * mean(offset),
        "width": WEIGHTS["width"] * mean((channel("log_width") - log_width).abs()),
        "rotation": WEIGHTS["rotation"]
        * mean((channel("rotation") - knees["rotation"][..., None, None]).abs()),
        "mirrored": WEIGHTS["mirrored"] * mean(binary("mirrored")),
    }
