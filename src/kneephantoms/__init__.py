"""Synthetic knee radiographs (phantoms) with exactly known knees.

>>> from kneephantoms import phantom
>>> film = phantom(seed=7, framing="knee")
>>> film.pixels.shape, [knee.laterality for knee in film.knees]
((1024, 1024), ['R', 'L'])
"""

from kneephantoms.config import SynthConfig
from kneephantoms.dataset import SynthResult, synthesize
from kneephantoms.files import write_dicom, write_png16
from kneephantoms.film_plan import FilmPlan, plan_film
from kneephantoms.rendering import Knee, Phantom, phantom, render, true_knees

__all__ = [
    "FilmPlan",
    "Knee",
    "Phantom",
    "SynthConfig",
    "SynthResult",
    "phantom",
    "plan_film",
    "render",
    "synthesize",
    "true_knees",
    "write_dicom",
    "write_png16",
]
