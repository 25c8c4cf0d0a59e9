"""Tune the outline network on joint spaces that people drew, mixed with phantoms."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from scipy.ndimage import map_coordinates
from torch import Tensor

from kneematch.devices import resolve_device
from kneematch.io.files import check_suffix, refuse_existing
from kneematch.measures.augmentation import Views, draw_views
from kneematch.measures.drawn_knees import DrawnKnee, read_corrected, read_masks
from kneematch.measures.learning import LearningConfig, choose, train_outlines
from kneematch.measures.network import JOINT_FRAME, OutlineNetwork
from kneematch.measures.outline_file import load_network, save_network
from kneematch.measures.phantom_crops import JOINT, LEG, KneeMaps, draw_maps
from kneematch.progress import Progress, no_progress
from kneematch.training.config import MODEL_SUFFIX

FIRST_SEED: Final = 30_000_000  # of the phantoms, which differ from those of the built-in network


@dataclass(frozen=True, slots=True)
class TuneConfig:
    """How the outline network is tuned."""

    steps: int = 600
    batch: int = 8  # real crops of a step, and phantoms
    rate: float = 1e-3  # peak learning rate
    phantoms: int = 200  # knees that are mixed in
    device: str = "auto"
    seed: int = 0


def tune_outlines(
    out: str | os.PathLike[str],
    config: TuneConfig | None = None,
    *,
    run: str | os.PathLike[str] | None = None,
    masks: str | os.PathLike[str] | None = None,
    start: str | os.PathLike[str] | None = None,
    force: bool = False,
    progress: Progress = no_progress,
) -> int:
    """Tune the outline network on what people drew and write it; return the number of knees.

    Args:
        out: the network's file, NAME.safetensors.
        config: settings.
        run: folder of a run whose outlines.json has corrected outlines.
        masks: folder of crops NAME.png with masks NAME-mask.png.
        start: network to start from; default: the built-in one.
        force: replace a file of that name.
        progress: shows the steps.

    Raises:
        SettingsError: `out` exists, nothing was drawn, or the network cannot be used.
    """
    check_suffix(Path(out), MODEL_SUFFIX, "a model")
    if os.path.lexists(out) and not force:
        refuse_existing(Path(out))
    knees: list[DrawnKnee] = []
    if run is not None:
        knees += read_corrected(Path(run))
    if masks is not None:
        knees += read_masks(Path(masks))
    network = tune_network(knees, config or TuneConfig(), start=start, progress=progress)
    save_network(out, network, {"trained_on": f"phantoms and {len(knees)} drawn knees"})
    return len(knees)


def tune_network(
    knees: Sequence[DrawnKnee],
    config: TuneConfig,
    *,
    start: str | os.PathLike[str] | None = None,
    progress: Progress = no_progress,
) -> OutlineNetwork:
    """Return a network tuned on knees; see `tune_outlines`."""
    device = resolve_device(config.device)
    network = load_network(start).to(device)
    seeds = range(FIRST_SEED, FIRST_SEED + config.phantoms)
    phantoms = [draw_maps(seeds, extent).to(device) for extent in (JOINT, LEG)]
    real = maps_of_knees(knees).to(device)

    def real_views(generator: torch.Generator) -> Views:
        rows = choose(real, config.batch, generator)
        return draw_views(real, rows, JOINT_FRAME, generator, real=True)

    settings = LearningConfig(config.steps, config.batch, config.rate, config.seed, frozen_from=0.0)
    with progress("tuning", config.steps) as advance:
        return train_outlines(
            network,
            phantoms,
            settings,
            report=lambda step, loss: advance(f"loss {loss:.2f}"),
            more=real_views,
        )


def maps_of_knees(knees: Sequence[DrawnKnee]) -> KneeMaps:
    """Return knees as maps in which every plateau is centred and of the same width."""
    parts = [_map(knee) for knee in knees]
    pictures, femur, tibia, margins = (torch.stack(part) for part in zip(*parts, strict=True))
    sides = torch.full((len(knees), 2, JOINT.size), torch.nan)
    return KneeMaps(JOINT, pictures.half(), femur, tibia, sides, margins)


def _map(knee: DrawnKnee) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    outlines = knee.outlines
    step = outlines.width_px / JOINT.px
    corner = outlines.tibia[[0, -1]].mean(0) - step * JOINT.size / 2
    places = corner[:, None] + step * (np.arange(JOINT.size) + 0.5)  # (2, S) x, then y
    rows, columns = np.meshgrid(places[1] - 0.5, places[0] - 0.5, indexing="ij")
    picture = map_coordinates(knee.pixels, [rows, columns], order=1, mode="nearest")
    lines = (
        (np.interp(places[0], *line.T) - corner[1]) / step
        for line in (outlines.femur, outlines.tibia)
    )
    margins = (outlines.tibia[[0, -1]] - corner) / step
    femur, tibia, ends = (torch.from_numpy(each).float() for each in (*lines, margins))
    return torch.from_numpy(picture).float(), femur, tibia, ends
