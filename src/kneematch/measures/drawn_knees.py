"""Joint spaces that people drew: masks on crops of single knees, and corrected outlines of runs."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kneematch.errors import SettingsError
from kneematch.io.read import read_isolated
from kneematch.measures.outlines import Array, Outlines

OUTLINES: Final = "outlines.json"  # of a run
SUFFIX: Final = "-mask"  # NAME.png has its mask in NAME-mask.png
FEWEST_COLUMNS: Final = 16


@dataclass(frozen=True, slots=True, eq=False)
class DrawnKnee:
    """A film or a crop, and the joint space that was drawn on it."""

    name: str
    pixels: NDArray[np.float32]  # (H, W) in [0, 1]
    outlines: Outlines


@dataclass(frozen=True, slots=True, eq=False)
class MaskedKnee(DrawnKnee):
    """A crop whose joint space was drawn as a mask."""

    mask: NDArray[np.bool_]  # (H, W)


def read_corrected(run: Path) -> Iterator[DrawnKnee]:
    """Yield the knees in a run's outlines.json that are marked `"corrected": true`.

    Raises:
        SettingsError: there is none, or the file or a film cannot be read.
    """
    path = run / OUTLINES
    try:
        knees = json.loads(path.read_text("utf-8"))["knees"]
        corrected = [(str(knee["film"]), knee) for knee in knees if knee.get("corrected")]
    except FileNotFoundError as error:
        raise SettingsError(
            f"{path}: no such file; expected a run made with --measure; name another folder"
        ) from error
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise SettingsError(
            f"{path}: cannot be read ({error}); expected outlines of a run; make it again"
        ) from error
    if not corrected:
        raise SettingsError(
            f'{path}: no corrected outlines; expected some with "corrected": true; correct them, '
            "or give masks with --masks"
        )
    for film, knee in corrected:
        yield DrawnKnee(film, read_isolated(film).pixels, Outlines.from_dict(knee))


def read_masks(folder: Path) -> Iterator[MaskedKnee]:
    """Yield the crops of a folder that have a mask, by name.

    Raises:
        SettingsError: there is none, or a mask has another size than its crop.
    """
    masks = sorted(folder.glob(f"*{SUFFIX}.*"))
    if not masks:
        raise SettingsError(
            f"{folder}: no masks; expected crops NAME.png with masks NAME{SUFFIX}.png; name "
            "another folder"
        )
    for path in masks:
        crop = path.with_name(path.name.replace(SUFFIX, ""))
        pixels, mask = (read_isolated(each).pixels for each in (crop, path))
        if pixels.shape != mask.shape:
            raise SettingsError(
                f"{path}: a mask of {mask.shape} on a crop of {pixels.shape} pixels; expected the "
                "same size; draw it again"
            )
        drawn = mask > mask.max() / 2
        yield MaskedKnee(crop.stem, pixels, outlines_of_mask(drawn), drawn)


def outlines_of_mask(mask: NDArray[np.bool_], medial: str = "left") -> Outlines:
    """Return the outlines of a joint space (H, W), column by column.

    The plateau reaches from the mask's first to its last column. A column without mask between
    them, where bone touches bone, is interpolated.

    Raises:
        SettingsError: the mask is all but empty.
    """
    columns = np.flatnonzero(mask.any(0))
    if len(columns) < FEWEST_COLUMNS:
        raise SettingsError(
            f"a mask of {len(columns)} columns; expected a joint space of at least "
            f"{FEWEST_COLUMNS}; draw it again"
        )
    drawn = mask[:, columns]
    top = drawn.argmax(0).astype(np.float64)
    bottom = len(mask) - drawn[::-1].argmax(0).astype(np.float64)
    x = np.concatenate([[columns[0]], columns + 0.5, [columns[-1] + 1.0]])
    femur, tibia = (_line(x, np.pad(y, 1, mode="edge")) for y in (top, bottom))
    return Outlines(femur, tibia, medial)


def _line(x: Array, y: Array) -> Array:
    return np.stack([x, y], axis=1)


def mask_of_outlines(outlines: Outlines, size: tuple[int, int]) -> NDArray[np.bool_]:
    """Return the pixels (height, width) between both borders and both margins."""
    height, width = size
    x, y = np.arange(width) + 0.5, np.arange(height)[:, None] + 0.5
    femur, tibia = (np.interp(x, *line.T) for line in (outlines.femur, outlines.tibia))
    left, right = outlines.tibia[0, 0], outlines.tibia[-1, 0]
    return np.asarray((y > femur) & (y < tibia) & (x > left) & (x < right))
