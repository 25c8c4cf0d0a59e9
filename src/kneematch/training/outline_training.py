"""Train the outline network, and tune it on joint spaces that people drew.

People draw masks on crops of single knees, or correct the outlines of a run.
"""

import json
import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.ndimage import map_coordinates
from torch import Tensor

from kneematch.devices import resolve_device
from kneematch.errors import SettingsError
from kneematch.films.files import check_suffix, refuse_existing
from kneematch.films.read import read_isolated
from kneematch.films.run_folder import find_root
from kneematch.knee.outlines import Outlines
from kneematch.models.outlines import (
    OutlineNetwork,
    load_network,
    save_network,
    split_logits,
    standardize,
)
from kneematch.progress import Progress, no_progress
from kneematch.run.database import Run
from kneematch.run.outputs.measurements import OUTLINES
from kneematch.training.config import MODEL_SUFFIX
from kneematch.training.outline_crops import (
    JOINT,
    LEG,
    KneeMaps,
    TrainingCrops,
    render_maps,
    sample_crops,
)
from kneematch.training.recipes import freeze_batchnorm

logger = logging.getLogger("kneematch")

SUFFIX: Final = "-mask"  # NAME.png has its mask in NAME-mask.png
FEWEST_COLUMNS: Final = 16
LOGGED_EVERY: Final = 50  # steps
FIRST_SEED: Final = 30_000_000  # phantoms other than those of the built-in network
WARM_UP: Final = 0.1  # share of the steps during which the learning rate rises
TARGET_SD: Final = 1.0  # standard deviation of the distribution that is learnt, in pixels
SIDE_WEIGHT: Final = 0.3  # weight in the loss of the sides and of each coordinate of the margins
DISTANCE_WEIGHT: Final = 0.2  # weight in the loss of the mean's error in pixels
LEG_SHARE: Final = 0.25  # size of a batch of leg crops over that of a batch of joint crops


@dataclass(frozen=True, slots=True, eq=False)
class DrawnKnee:
    """A film or a crop, and the joint space that was drawn on it."""

    path: Path
    pixels: NDArray[np.float32]  # (H, W) in [0, 1], bones bright
    outlines: Outlines


def read_corrected(run: Path, root: Path | None = None) -> Iterator[DrawnKnee]:
    """Yield the knees in a run's outlines.json that are marked `"corrected": true`.

    Films with relative paths lie in `root`, or else where `find_root` finds them.

    Raises:
        SettingsError: there is none, or the file or a film cannot be read.
    """
    path = run / OUTLINES
    try:
        knees = json.loads(path.read_text("utf-8"))["knees"]
        corrected = [(str(knee["film"]), knee) for knee in knees if knee.get("corrected")]
    except FileNotFoundError as error:
        raise SettingsError(f"There is no {path}. Make the run with --measure.") from error
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise SettingsError(f"{path} cannot be read ({error}). Make the run again.") from error
    if not corrected:
        raise SettingsError(
            f'{path} has no outlines with "corrected": true. Correct some with `kneematch review`, '
            "or give masks with --masks."
        )
    with Run(run, exclusive=False) as database:
        named = database.setting("out")
    folder, _ = find_root(run, named, [film for film, _ in corrected], root)
    for film, knee in corrected:
        pixels = read_isolated(folder / film).pixels
        bright = 1 - pixels if knee.get("polarity") == "negative" else pixels
        yield DrawnKnee(folder / film, bright, Outlines.from_dict(knee))


def read_masks(folder: Path) -> Iterator[DrawnKnee]:
    """Yield the crops of a folder that have a mask, by name.

    Raises:
        SettingsError: there is none, or a mask has another size than its crop.
    """
    masks = sorted(folder.glob(f"*{SUFFIX}.*"))
    if not masks:
        raise SettingsError(f"{folder} has no crops NAME.png with masks NAME{SUFFIX}.png.")
    for path in masks:
        crop = path.with_name("".join(path.name.rsplit(SUFFIX, 1)))
        pixels, mask = (read_isolated(each).pixels for each in (crop, path))
        if pixels.shape != mask.shape:
            raise SettingsError(
                f"The mask {path} has {mask.shape} pixels, but its crop has {pixels.shape}."
            )
        try:
            outlines = outlines_of_mask(mask > mask.max() / 2)
        except ValueError as error:
            raise SettingsError(f"The mask {path} cannot be used: {error}") from error
        yield DrawnKnee(crop, pixels, outlines)


def outlines_of_mask(mask: NDArray[np.bool_]) -> Outlines:
    """Return the outlines of a joint space (H, W), column by column; medial is taken as left.

    The plateau reaches from the mask's first to its last column. A column without mask between
    them, where bone touches bone, is interpolated.

    Raises:
        ValueError: the mask is all but empty.
    """
    columns = np.flatnonzero(mask.any(0))
    if len(columns) < FEWEST_COLUMNS:
        raise ValueError(f"the joint space has fewer than {FEWEST_COLUMNS} columns.")
    drawn = mask[:, columns]
    top = drawn.argmax(0).astype(np.float64)
    bottom = len(mask) - drawn[::-1].argmax(0).astype(np.float64)
    x = np.concatenate([[columns[0]], columns + 0.5, [columns[-1] + 1.0]])
    femur, tibia = (np.stack([x, np.pad(y, 1, mode="edge")], 1) for y in (top, bottom))
    return Outlines(femur, tibia, "left")


@dataclass(frozen=True, slots=True)
class OutlineConfig:
    """How the outline network is trained; the defaults are for tuning."""

    steps: int = 600
    batch: int = 8  # phantoms of a step and, when tuning, as many drawn knees
    rate: float = 1e-3  # peak learning rate
    # Share of the steps after which batch normalisation uses its running statistics, which joint
    # and leg crops share, as it will when the network is used.
    frozen_from: float = 0.0
    phantoms: int = 200  # knees that are mixed in when tuning
    start: str | os.PathLike[str] | None = None  # network that is tuned; None: the built-in one
    device: str = "auto"
    seed: int = 0


def tune_outlines(
    knees: Iterable[DrawnKnee],
    out: str | os.PathLike[str],
    config: OutlineConfig,
    *,
    force: bool = False,
    progress: Progress = no_progress,
) -> int:
    """Tune the outline network on what people drew and write it; return the number of knees.

    Raises:
        SettingsError: `out` exists and `force` is not given, or the network cannot be used.
    """
    check_suffix(Path(out), MODEL_SUFFIX, "a model")
    if os.path.lexists(out) and not force:
        refuse_existing(Path(out))
    device, drawn = resolve_device(config.device), list(knees)
    # Phantoms are mixed in because people draw the joint space alone. Tuned on drawn knees only,
    # the network measures widths as well (0.72 against 0.73 % on 9 crops, after 150 steps on 34
    # others) but forgets the shafts: on 40 phantom knees no tibiofemoral angle was left.
    seeds = range(FIRST_SEED, FIRST_SEED + config.phantoms)
    maps = [*(render_maps(seeds, extent) for extent in (JOINT, LEG)), maps_of_knees(drawn)]
    network = load_network(config.start).to(device)
    with progress("tuning", config.steps) as advance:

        def report(step: int, loss: Tensor) -> None:
            advance(f"loss {loss:.2f}")
            if (step + 1) % LOGGED_EVERY == 0:
                logger.info("step %d of %d, loss %.2f", step + 1, config.steps, loss)

        train_outlines(network, [each.to(device) for each in maps], config, report)
    save_network(out, network, {"trained_on": f"phantoms and {len(drawn)} drawn knees"})
    return len(drawn)


def maps_of_knees(knees: Sequence[DrawnKnee]) -> KneeMaps:
    """Return knees as maps in which every plateau is centred and of the same width."""
    parts = zip(*map(_map, knees), strict=True)
    pixels, *lines = (torch.from_numpy(np.stack(part)).float() for part in parts)
    femur, tibia, margins = lines
    sides = torch.full((len(knees), 2, JOINT.size), torch.nan)
    return KneeMaps(JOINT, pixels.half(), femur, tibia, sides, margins, are_films=True)


def _map(knee: DrawnKnee) -> tuple[np.ndarray, ...]:
    """Return the pixels (S, S), femur (S,), tibia (S,) and margins (2, 2) of a knee's map."""
    outlines = knee.outlines
    # Knees on films that are turned by quarter turns are turned back.
    across = outlines.tibia[-1] - outlines.tibia[0]
    quarter = round(math.atan2(across[1], across[0]) / (math.pi / 2)) * math.pi / 2
    cos, sin = round(math.cos(quarter)), round(math.sin(quarter))
    to_film = np.array([[cos, sin], [-sin, cos]])  # points (K, 2) @ to_film; transposed, back
    femur, tibia = (line @ to_film.T for line in (outlines.femur, outlines.tibia))
    step = outlines.width_px / JOINT.px
    corner = tibia[[0, -1]].mean(0) - step * JOINT.size / 2
    places = corner[:, None] + step * (np.arange(JOINT.size) + 0.5)  # (2, S) x, then y
    points = np.stack(np.meshgrid(*places), axis=-1) @ to_film - 0.5  # (S, S, 2)
    rows_and_columns = np.moveaxis(points, -1, 0)[::-1]
    picture = map_coordinates(knee.pixels, rows_and_columns, order=1, mode="nearest")
    lines = ((np.interp(places[0], *line.T) - corner[1]) / step for line in (femur, tibia))
    return picture, *lines, (tibia[[0, -1]] - corner) / step


def train_outlines(
    network: OutlineNetwork,
    maps: Sequence[KneeMaps],
    config: OutlineConfig,
    report: Callable[[int, Tensor], None] = lambda step, loss: None,
) -> OutlineNetwork:
    """Train with AdamW and a cosine schedule; return the network in evaluation mode.

    A step takes a batch from each of the maps, which are on the network's device; `report` is
    called after it with its number, from 0, and its loss, a scalar tensor.
    """
    generator = torch.Generator(maps[0].pixels.device).manual_seed(config.seed)
    optimiser = torch.optim.AdamW(network.parameters(), weight_decay=0.02)
    network.train().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for step in range(config.steps):
        done = step / config.steps
        if done >= config.frozen_from:
            freeze_batchnorm(network)
        for group in optimiser.param_groups:
            group["lr"] = config.rate * _rate(done)
        batches = [_sample_batch(each, config.batch, generator) for each in maps]
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
    at_ends = (_line_loss(each, batch.margins[..., k]) for k, each in enumerate(ends))
    around = _line_loss(sides, batch.sides) + torch.stack(list(at_ends)).sum()
    return _line_loss(borders, batch.borders) + SIDE_WEIGHT * around


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
