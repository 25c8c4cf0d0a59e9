"""Joint spaces that people drew: masks on crops of single knees, and corrected outlines of runs."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kneematch.errors import SettingsError
from kneematch.films.read import read_isolated
from kneematch.films.run_folder import find_root
from kneematch.knee.outlines import Outlines
from kneematch.run.database import Run

OUTLINES: Final = "outlines.json"  # in a run's folder
SUFFIX: Final = "-mask"  # NAME.png has its mask in NAME-mask.png
FEWEST_COLUMNS: Final = 16


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
