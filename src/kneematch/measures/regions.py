"""Regions of interest in the subchondral bone under the tibial plateau, for texture analysis."""

from typing import Final

import numpy as np

from kneematch.measures.joint_space import LATERAL, MEDIAL
from kneematch.measures.outlines import Array, Outlines

EXTENT: Final = {MEDIAL: (0.15, 0.35), LATERAL: (0.65, 0.85)}  # x, from the medial margin
GAP: Final = 0.02  # under the lowest point of the plateau there, in plateau widths
HEIGHT: Final = 0.12


def texture_regions(outlines: Outlines) -> dict[str, Array]:
    """Return the corners (4, 2) of a box under each side of the plateau, in film pixels.

    Parallel to the plateau's line: the upper medial corner, the upper lateral one, and on around.
    """
    line = outlines.in_plateau_widths(outlines.tibia)
    line = line[np.argsort(line[:, 0], kind="stable")]
    regions = {}
    for name, (x0, x1) in EXTENT.items():
        top = np.interp(np.linspace(x0, x1, 41), *line.T).max() + GAP
        box = [(x0, top), (x1, top), (x1, top + HEIGHT), (x0, top + HEIGHT)]
        regions[name] = outlines.to_film(np.array(box))
    return regions
