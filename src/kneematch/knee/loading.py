"""Load films: read them, whatever they are given as, onto the device that prepares them."""

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Union

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kneematch.devices import copy_to
from kneematch.errors import FilmError, SettingsError
from kneematch.films.radiograph import Radiograph
from kneematch.films.read import (
    is_dataset,
    radiograph_from_array,
    radiograph_from_dataset,
    read_isolated,
    to_film_error,
)
from kneematch.knee.knee_images import film_tensor
from kneematch.knee.quality import exposed_field

if TYPE_CHECKING:
    from pydicom import Dataset

Film = Union[Radiograph, str, os.PathLike[str], NDArray[Any], "Dataset"]


@dataclass(frozen=True, slots=True, eq=False)
class LoadedFilm:
    """A film on the device that prepares it."""

    radiograph: Radiograph  # without its pixels, if they are on a GPU
    pixels: Tensor  # (H, W)
    field: tuple[int, int, int, int]  # its exposed part (x0, y0, x1, y1)


def load_film(film: Film, device: str) -> LoadedFilm | Exception:
    """Read a film and copy it to a device; errors are returned, but those of a GPU are raised."""
    try:
        radiograph = _read(film)
    except Exception as error:  # noqa: BLE001 - a broken file can raise anything
        return error
    try:
        return load(radiograph, device)
    except Exception as error:
        if may_be_of_gpu(error, device):
            raise
        return error


def _read(film: Film) -> Radiograph:
    if isinstance(film, str | os.PathLike):
        return read_isolated(film)
    if isinstance(film, np.ndarray):
        return radiograph_from_array(film)
    if is_dataset(film):
        return radiograph_from_dataset(film)
    if isinstance(film, Radiograph):
        return film
    raise not_a_film(film)


def load(film: Radiograph, device: str) -> LoadedFilm:
    """Copy a film to a device, unless that is full.

    Raises:
        NotARadiograph: the film is too small.
    """
    pixels, field = film_tensor(film), exposed_field(film.pixels)
    if device != "cpu":
        with suppress(torch.OutOfMemoryError):
            there = copy_to(pixels, device)
            return LoadedFilm(replace(film, pixels=np.empty((0, 0), np.float32)), there, field)
    return LoadedFilm(film, pixels, field)


def may_be_of_gpu(error: Exception, device: str) -> bool:
    """Return whether an error may be that of a GPU, not of the film that it was busy with."""
    return device != "cpu" and isinstance(error, RuntimeError)


def film_error(film: Film, error: Exception) -> FilmError:
    """Return why a film cannot be used, with its path if it is a file.

    Raises:
        Exception: the given one, if it is no FilmError and the film is no file but an object that
            the caller made.
    """
    if isinstance(film, str | os.PathLike):
        path = os.fspath(film)
        error = to_film_error(path, error)
        named = str(error) if str(error).startswith(path) else f"{path}: {error}"
        return type(error)(named)  # a new one, since the traceback of the other holds the pixels
    if not isinstance(error, FilmError):
        raise error
    return type(error)(str(error))


def not_a_film(found: object) -> SettingsError:
    """Return the error of something that no film can be read from."""
    return SettingsError(
        f"films of type {type(found).__name__}; expected a path, a NumPy array, a pydicom Dataset, "
        "a Radiograph, or several of these; pass one of them"
    )
