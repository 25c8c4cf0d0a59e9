"""Synthetic knee radiographs (phantoms) with exactly known knees.

    >>> from kneephantoms import phantom
    >>> film = phantom(seed=7, framing="knee")
    >>> film.pixels.shape, [knee.laterality for knee in film.knees]
    ((1024, 1024), ['R', 'L'])

Names are imported when they are first asked for, so that `import kneephantoms` takes no time.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_HOME = {
    "SynthConfig": "config",
    **dict.fromkeys(("SynthResult", "synthesize"), "dataset"),
    **dict.fromkeys(("FilmPlan", "plan_film"), "film_plan"),
    **dict.fromkeys(("write_dicom", "write_png16"), "files"),
    **dict.fromkeys(("Knee", "Phantom", "phantom", "render", "true_knees"), "rendering"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'kneephantoms' has no attribute {name!r}")
    return getattr(import_module(f"kneephantoms.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
