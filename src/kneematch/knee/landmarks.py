"""Landmarks along the outlines, and regions of interest for texture analysis under the plateau.

The sixteen landmarks, nine on the tibia and seven on the femur, are at the places that KNEEL uses
(Tiulpin et al., "KNEEL: Knee anatomical landmark localization using hourglass networks", ICCV
Workshops 2019).
"""

from typing import Final

import numpy as np

from kneematch.films.radiograph import Point
from kneematch.knee.measure import LATERAL, MEDIAL
from kneematch.knee.outlines import Array, Outlines

# x from the medial margin (0) to the lateral one (1)
TIBIA: Final = {
    "tibia_medial_margin": 0.0,
    "tibia_medial_plateau_outer": 0.15,
    "tibia_medial_plateau_inner": 0.30,
    "tibia_lateral_plateau_inner": 0.70,
    "tibia_lateral_plateau_outer": 0.85,
    "tibia_lateral_margin": 1.0,
}
FEMUR: Final = {
    "femur_medial_condyle_outer": 0.08,
    "femur_medial_condyle_middle": 0.20,
    "femur_medial_condyle_inner": 0.33,
    "femur_lateral_condyle_inner": 0.67,
    "femur_lateral_condyle_middle": 0.80,
    "femur_lateral_condyle_outer": 0.92,
}
SPINES: Final = {"tibia_medial_spine": (0.32, 0.5), "tibia_lateral_spine": (0.5, 0.68)}
EMINENCE: Final = "tibia_eminence"  # the lowest place between the spines
NOTCH: Final = "femur_notch"  # the highest place between the condyles
NOTCH_X: Final = (0.35, 0.65)
REGIONS: Final = {MEDIAL: (0.15, 0.35), LATERAL: (0.65, 0.85)}  # x of both ends
REGION_GAP: Final = 0.02  # under the lowest point of the plateau there, in plateau widths
REGION_HEIGHT: Final = 0.12


def landmarks(outlines: Outlines) -> dict[str, Point]:
    """Return the landmarks in film pixels, by name."""
    tibia, femur = map(outlines.border_in_plateau_widths, (outlines.tibia, outlines.femur))
    found: dict[str, Point] = {name: (x, np.interp(x, *tibia.T)) for name, x in TIBIA.items()}
    found |= {name: _highest(tibia, *ends) for name, ends in SPINES.items()}
    x, y = _highest(tibia * [1, -1], *(found[name][0] for name in SPINES))
    found[EMINENCE] = (x, -y)
    found |= {name: (x, np.interp(x, *femur.T)) for name, x in FEMUR.items()}
    found[NOTCH] = _highest(femur, *NOTCH_X)
    film = outlines.to_film(np.array(list(found.values()))).tolist()
    return {name: (x, y) for name, (x, y) in zip(found, film, strict=True)}


def texture_regions(outlines: Outlines) -> dict[str, Array]:
    """Return the corners (4, 2) of a box under each side of the plateau, in film pixels.

    Parallel to the plateau's line: the upper medial corner, the upper lateral one, and on around.
    """
    line = outlines.border_in_plateau_widths(outlines.tibia)
    regions = {}
    for name, (x0, x1) in REGIONS.items():
        top = np.interp(np.linspace(x0, x1, 41), *line.T).max() + REGION_GAP
        box = [(x0, top), (x1, top), (x1, top + REGION_HEIGHT), (x0, top + REGION_HEIGHT)]
        regions[name] = outlines.to_film(np.array(box))
    return regions


def _highest(line: Array, start: float, end: float) -> Point:
    """Return the highest point between two x of a border (K, 2) in plateau widths."""
    x = np.linspace(start, end, 101)
    y = np.interp(x, *line.T)
    return float(x[y.argmin()]), float(y.min())
