"""Tune the outline network on joint spaces that people drew.

People draw masks on crops of single knees, or correct the outlines of a run.
"""

import json
import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.random import Generator, default_rng
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter
from torch import Tensor

from kneematch.devices import resolve_device
from kneematch.errors import SettingsError
from kneematch.films.files import BROKEN, check_suffix, read_text, refuse_existing
from kneematch.films.radiograph import Radiograph
from kneematch.films.read import read_isolated
from kneematch.films.run_folder import find_root
from kneematch.knee.crop import CropPlace, cut
from kneematch.knee.measure import Array, Outlines
from kneematch.knee.measuring import crop_place
from kneematch.models.outlines import (
    JOINT_FRAME,
    CropFrame,
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
from kneematch.training.recipes import freeze_batchnorm

Floats = NDArray[np.float32]

SUFFIX: Final = "-mask"  # NAME.png has its mask in NAME-mask.png
FEWEST_COLUMNS: Final = 16
STEPS: Final = 600
BATCH: Final = 8  # crops per step
RATE: Final = 1e-3  # peak learning rate
WARM_UP: Final = 0.1  # share of the steps during which the learning rate rises
SHORTEST_CYCLE: Final = 11  # steps; PyTorch divides by zero where the rate rises for one
TARGET_SD: Final = 1.0  # standard deviation of the distribution that is learnt, in pixels
MARGIN_WEIGHT: Final = 0.3  # weight in the loss of each coordinate of the margins
DISTANCE_WEIGHT: Final = 0.2  # weight in the loss of the mean's error in pixels
SURROUNDINGS: Final = CropFrame((384, 384), 240.0)  # 1.6 x 1.6 plateau widths, to cut crops from
MAX_ROTATION_DEG: Final = 8.0
MAX_SHIFT: Final = 0.09  # in plateau widths
MAX_ZOOM: Final = 0.16  # natural logarithm


@dataclass(frozen=True, slots=True, eq=False)
class DrawnKnee:
    """A film or a crop, and the joint space that was drawn on it."""

    path: Path
    pixels: Floats  # (H, W) in [0, 1], bones bright
    outlines: Outlines


def read_corrected(run: Path, root: Path | None = None) -> Iterator[DrawnKnee]:
    """Yield the knees in a run's outlines.json that are marked `"corrected": true`.

    Films with relative paths lie in `root`, or else where `find_root` finds them.

    Raises:
        SettingsError: there is none, or the file or a film cannot be read.
    """
    path = run / OUTLINES
    try:
        knees = json.loads(read_text(path))["knees"]
        corrected = [(str(knee["film"]), knee) for knee in knees if knee.get("corrected")]
    except FileNotFoundError as error:
        raise SettingsError(f"There is no {path}. Make the run with --measure.") from error
    except (OSError, *BROKEN) as error:
        raise SettingsError(f"{path} cannot be read ({error}). Make the run again.") from error
    if not corrected:
        raise SettingsError(
            f'{path} has no outlines with "corrected": true. Correct some with `kneematch review`, '
            "or give masks with --masks."
        )
    with Run(run, exclusive=False) as database:
        named = database.setting("out")
    folder = find_root(run, named, [film for film, _ in corrected], root)
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


def tune_outlines(
    knees: Iterable[DrawnKnee],
    out: str | os.PathLike[str],
    *,
    start: str | os.PathLike[str] | None = None,
    steps: int = STEPS,
    device: str = "auto",
    seed: int = 0,
    force: bool = False,
    progress: Progress = no_progress,
) -> int:
    """Tune the outline network on what people drew and write it; return the number of knees.

    `start` is the file of the network to tune, by default the built-in one. With AdamW and one
    cycle of the learning rate; batch normalisation keeps its statistics.

    Raises:
        SettingsError: `out` exists and `force` is not given, or the network cannot be used.
    """
    check_suffix(Path(out), MODEL_SUFFIX, "a model")
    if os.path.lexists(out) and not force:
        refuse_existing(Path(out))
    where, drawn, random = resolve_device(device), [*map(_upright, knees)], default_rng(seed)
    network = load_network(start).to(where).train()
    freeze_batchnorm(network)
    optimiser = torch.optim.AdamW(network.parameters(), weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, RATE, max(steps, SHORTEST_CYCLE), pct_start=WARM_UP, cycle_momentum=False
    )
    # After 150 steps on 34 of the real crops of lab/measure.py, widths on 9 others are off by 0.41
    # % of the plateau (built-in: 0.65; with phantoms mixed in: 0.51); after 150 steps on 8 crops,
    # on 35 others, by 0.78 (0.94; 0.82). One split and one seed each.
    with progress("tuning", steps) as advance:
        for _ in range(steps):
            chosen = random.integers(len(drawn), size=BATCH)
            crops = zip(*(sample_crop(drawn[k], random) for k in chosen), strict=True)
            loss = outline_loss(network, *(torch.from_numpy(np.stack(c)).to(where) for c in crops))
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimiser.step()
            schedule.step()
            advance(f"loss {loss.item():.2f}")
    save_network(out, network, {"trained_on": f"phantoms and {len(drawn)} drawn knees"})
    return len(drawn)


def sample_crop(knee: DrawnKnee, random: Generator) -> tuple[Floats, Floats, Floats]:
    """Return a random crop (H, W) of a knee, turned, shifted, enlarged and of another contrast.

    With it, in its pixels, y (2, W) of both borders in each column, NaN beyond the plateau, and
    (x, y) of the plateau's left and right end, (2, 2).
    """
    ends, width_px = knee.outlines.tibia[[0, -1]], knee.outlines.width_px
    angle = math.radians(random.uniform(-MAX_ROTATION_DEG, MAX_ROTATION_DEG))
    turn = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
    across = math.exp(random.uniform(-MAX_ZOOM, MAX_ZOOM)) * (ends[1] - ends[0]) @ turn
    centre = ends.mean(0) + width_px * random.uniform(-MAX_SHIFT, MAX_SHIFT, 2)
    crop, femur, tibia = _cut(knee, crop_place(centre, across, JOINT_FRAME))
    columns = np.arange(crop.shape[1]) + 0.5
    if random.random() < 0.5:
        crop = crop[:, ::-1]
        femur, tibia = ((line * (-1, 1) + (crop.shape[1], 0))[::-1] for line in (femur, tibia))
    borders = np.stack([np.interp(columns, *_by_x(line).T) for line in (femur, tibia)])
    borders[:, (columns < tibia[0, 0]) | (columns > tibia[-1, 0])] = np.nan
    varied = _vary_contrast(crop, random)
    return varied, borders.astype(np.float32), tibia[[0, -1]].astype(np.float32)


def _upright(knee: DrawnKnee) -> DrawnKnee:
    """Return a knee alone, upright and of a standard size, from which crops are cut quickly."""
    ends = knee.outlines.tibia[[0, -1]]
    place = crop_place(ends.mean(0), ends[1] - ends[0], SURROUNDINGS)
    pixels, femur, tibia = _cut(knee, place)
    return DrawnKnee(knee.path, pixels, Outlines(femur, tibia, knee.outlines.medial))


def _cut(knee: DrawnKnee, place: CropPlace) -> tuple[Floats, Array, Array]:
    """Return a crop (H, W) of a knee, and the femur's and the tibia's border in its pixels."""
    axes, origin = place.pixel_map[:, :2], place.pixel_map[:, 2]
    lines = knee.outlines.femur, knee.outlines.tibia
    femur, tibia = ((line - origin) @ np.linalg.inv(axes).T for line in lines)
    return cut(Radiograph(knee.pixels), place), femur, tibia


def _by_x(line: Array) -> Array:
    return np.asarray(line[np.argsort(line[:, 0], kind="stable")])


def _vary_contrast(crop: Floats, random: Generator) -> Floats:
    """Change sharpness, noise, brightness and gamma of a crop (H, W) in [0, 1]."""
    y, x = np.meshgrid(*(np.linspace(-1, 1, length) for length in crop.shape), indexing="ij")
    grey = crop + random.uniform(-0.8, 0.8) * (gaussian_filter(crop, 1.2) - crop)
    grey = grey + 10 ** random.uniform(-3.0, -1.5) * random.standard_normal(crop.shape)
    grey = grey * random.uniform(0.8, 1.15) + random.normal(0.0, 0.05)
    grey = grey + random.normal(0.0, 0.05) * x + random.normal(0.0, 0.05) * y
    varied = grey.clip(1e-3, 1) ** math.exp(random.uniform(-0.5, 0.5))
    return np.asarray(varied, np.float32)


def outline_loss(network: OutlineNetwork, crops: Tensor, borders: Tensor, ends: Tensor) -> Tensor:
    """Return the mean loss on crops (N, H, W), given borders (N, 2, W) and margins (N, 2, 2)."""
    device = crops.device.type
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        logits = network(standardize(crops))
    found, _, margins = split_logits(logits.float())
    at_ends = line_loss(margins.logsumexp(-2), ends[..., 0])
    at_ends = at_ends + line_loss(margins.logsumexp(-1), ends[..., 1])
    return line_loss(found, borders) + MARGIN_WEIGHT * at_ends


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
