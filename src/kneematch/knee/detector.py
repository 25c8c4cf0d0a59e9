"""Detector: from a radiograph to the knee joint areas, in the film's own pixels.

Every film takes the same way, in Python and on the command line: read, `prepare` (an image around
each knee that is located, or the paper's two halves), solve (networks or a search),
`measure_quality`, `Detection`.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Union, overload

import numpy as np
import torch
from numpy.typing import NDArray

from kneematch.devices import full_precision, map_batches, resolve_device
from kneematch.errors import FilmError, NoFrontalKnee, SettingsError
from kneematch.films.annotation import Annotation
from kneematch.films.radiograph import Radiograph
from kneematch.films.read import (
    is_dataset,
    radiograph_from_array,
    radiograph_from_dataset,
    read_isolated,
    to_film_error,
)
from kneematch.knee.detection import Detection
from kneematch.knee.knee_images import Preparation, PreparedFilm, prepare
from kneematch.knee.methods import choose_solver, needs_model
from kneematch.knee.quality import Quality, cut_by_edge, measure_quality, sides_differ
from kneematch.models.model_file import builtin_model, load_model
from kneematch.models.two_stage import ConsistencyCheck
from kneematch.paper.energy import MakeProblem, Solver
from kneematch.paper.pose import pose_matrix
from kneematch.paper.split import LEFT, RIGHT, SIDES
from kneematch.paper.template import Template
from kneematch.sampling import compose
from kneematch.search.robust_energy import robust_problem
from kneematch.search.settings import AUTO, DEFAULT_SETTINGS, LOCATOR, NEURAL, PaperSettings

if TYPE_CHECKING:
    from pydicom import Dataset

Film = Union[Radiograph, str, os.PathLike[str], NDArray[Any], "Dataset"]

GPU_BATCH: Final = 16  # films
FEWEST_ON_GPU: Final = 4  # films; the CPU prepares fewer in less time than a GPU needs to begin


@dataclass(frozen=True, slots=True, eq=False)
class Detector:
    """A template and a solver that finds it."""

    template: Template = field(repr=False)
    solver: Solver = field(repr=False)
    method: str  # its name in the results
    make_problem: MakeProblem = robust_problem  # says which energy is minimised
    device: str = "cpu"
    batch_size: int = 1  # films that are prepared and searched together; 1 on a CPU
    check: ConsistencyCheck | None = field(default=None, repr=False)  # with the networks
    preparation: Preparation = field(default_factory=Preparation)
    _too_large: list[int] = field(default_factory=list, repr=False)  # batches that did not fit

    @classmethod
    def load(
        cls,
        model: str | os.PathLike[str] | None = None,
        *,
        template: str | os.PathLike[str] | Annotation | None = None,
        method: str = AUTO,
        paper: bool = False,
        device: str | torch.device = AUTO,
        batch_size: int | None = None,
        check: bool = True,
        knees: int | None = None,
        left_is: str | None = None,
        paper_settings: PaperSettings = DEFAULT_SETTINGS,
    ) -> "Detector":
        """Load a detector; without arguments, the one that is built in.

        Args:
            model: file written by `kneematch train`. Default: the built-in model.
            template: annotation, or path of a template.json, whose fine box is found instead of
                the model's own template.
            method: auto, locator, neural+sharpen, neural, search, grid or sliding. "auto" is
                locator (neural+sharpen with the paper's energy). For a template without the middle
                of the plateau in its fine box it is neural+sharpen, or search if the networks see
                no knee there; the detector's `method` says which.
            paper: minimise the paper's energy instead of the robust one.
            device: auto, cpu, cuda or cuda:N, or a torch.device.
            batch_size: films that are searched together. Default: 16. On a CPU it is 1.
            check: compare what another method found with the networks, to flag doubtful areas.
            knees: 1 or 2, how many frontal knees each film shows; None finds out. Methods other
                than locator always split a film in two, unless its header names one knee.
            left_is: "R" or "L", the patient's side at the left of all pictures; it overrides
                headers and markers.
            paper_settings: steps and rate of Adam, scales and stride of the grid search.

        Raises:
            SettingsError: an argument, or the model, cannot be used.
            TemplateError: the annotation cannot serve as a template.
        """
        if batch_size is not None and batch_size < 1:
            raise SettingsError(f"A batch has at least 1 film, not {batch_size}.")
        device = resolve_device(device)
        loaded = None
        if needs_model(template is not None, method, paper=paper, check=check):
            loaded = load_model(model or builtin_model())
        chosen = choose_solver(
            method, template, loaded, paper=paper, device=device, settings=paper_settings
        )
        locate, precise = chosen.method == LOCATOR, device != "cpu"
        where = device if locate else "cpu"
        how = Preparation(locate, knees, chosen.side_margin, left_is, where, precise)
        cut, films = chosen.template.to(torch.empty(0, device=device)), batch_size or GPU_BATCH
        parts = cut, chosen.solver, chosen.method, chosen.make_problem, device
        return cls(*parts, 1 if device == "cpu" else films, chosen.check, how)

    @overload  # a str is an iterable of str, too; it is one film
    def detect(  # type: ignore[overload-overlap]
        self, films: Film, *, mm_per_px: float | None = None, laterality: str | None = None
    ) -> tuple[Detection, ...]: ...

    @overload
    def detect(self, films: Iterable[Film]) -> list[tuple[Detection, ...]]: ...

    def detect(
        self,
        films: Film | Iterable[Film],
        *,
        mm_per_px: float | None = None,
        laterality: str | None = None,
    ) -> tuple[Detection, ...] | list[tuple[Detection, ...]]:
        """Find the knees of one film, the picture's left one first, or of many: a tuple each.

        Args:
            films: a path, a NumPy array (height, width) with bones bright, a pydicom Dataset, a
                Radiograph, or several of these.
            mm_per_px: pixel spacing of an array.
            laterality: "R" or "L" if an array shows one knee of a known side.

        Raises:
            FilmError: a film cannot be used or shows no frontal knee (NoFrontalKnee);
                `detect_each` goes on instead.
            SettingsError: something else than films was given.
        """
        if isinstance(films, np.ndarray):
            film = radiograph_from_array(films, mm_per_px=mm_per_px, laterality=laterality)
            return self.detect([film])[0]
        if mm_per_px is not None or laterality is not None:
            raise SettingsError(
                "mm_per_px and laterality are only for arrays; other films state their own."
            )
        if isinstance(films, Radiograph | str | os.PathLike) or is_dataset(films):
            return self.detect([films])[0]
        found = []
        for result in self.detect_each(films):
            if isinstance(result, FilmError):
                raise result
            found.append(result)
        return found

    def detect_each(self, films: Iterable[Film]) -> Iterator[tuple[Detection, ...] | FilmError]:
        """Yield the knees of every film, in order, or why there are none.

        An error is a NoFrontalKnee where the film can be used but shows no frontal knee.
        """
        try:
            source = iter(films)
        except TypeError:
            raise _not_a_film(films) from None
        while batch := list(islice(source, self.batch_size)):
            read = [_read(film) for film in batch]
            results = iter(self.detect_radiographs([r for r in read if isinstance(r, Radiograph)]))
            for film, pixels in zip(batch, read, strict=True):
                result = next(results) if isinstance(pixels, Radiograph) else pixels
                yield _film_error(film, result) if isinstance(result, Exception) else result

    def detect_radiographs(
        self, films: Sequence[Radiograph]
    ) -> list[tuple[Detection, ...] | Exception]:
        """Return the knees of a few films; an error of a film takes the place of its knees."""
        how = self.preparation
        if len(films) < FEWEST_ON_GPU:
            how = replace(how, device="cpu")
        prepared = _prepare_or_fail(films, how) if films else []
        knees = iter(self._find_all([each for each in prepared if isinstance(each, PreparedFilm)]))
        return [
            (next(knees) or NoFrontalKnee()) if isinstance(each, PreparedFilm) else each
            for each in prepared
        ]

    def _find_all(self, films: Sequence[PreparedFilm]) -> list[tuple[Detection, ...]]:
        """Find the knees of films that were prepared.

        On a CPU every film is searched alone: it is hardly slower, and its rows do not depend on
        the other films of the batch. On a GPU, films with as many sides are searched together, as
        many as fit into its memory.
        """
        if self.device == "cpu":
            return [self._find([film])[0] for film in films]
        found: list[tuple[Detection, ...]] = [()] * len(films)
        for sides in (1, len(SIDES)):
            alike = [k for k, film in enumerate(films) if len(film.knees) == sides]
            batch = [films[k] for k in alike]
            knees = map_batches(self._find, batch, self.device, self._too_large)
            for k, each in zip(alike, knees, strict=True):
                found[k] = each
        return found

    def _find(self, films: list[PreparedFilm]) -> list[tuple[Detection, ...]]:
        """Find the knees of films that have as many sides each."""
        images = torch.stack([film.images.pixels.to(self.device) for film in films])  # (N, S, H, W)
        with full_precision():
            problem = self.make_problem(images, self.template)
            theta = self.solver(problem).double()  # (N, S, 4)
            neural, located = self.method in NEURAL, self.preparation.locate
            quality = measure_quality(problem, theta, self.check, neural=neural, located=located)
        matrices = pose_matrix(theta, self.template.aspect, problem.image_aspect).cpu()
        to_film = compose(torch.stack([film.images.to_film for film in films]), matrices).numpy()
        cut = cut_by_edge(to_film, np.array([film.field for film in films]))
        differ = sides_differ(to_film)
        return [
            self._detections(film, to_film[n], quality.of_film(n), cut[n], bool(differ[n]))
            for n, film in enumerate(films)
        ]

    def _detections(
        self,
        film: PreparedFilm,
        to_film: NDArray[np.float64],
        quality: Quality,
        cut: NDArray[np.bool_],
        differ: bool,
    ) -> tuple[Detection, ...]:
        """Return the knees of a film from maps (S, 3, 3) of the template to film pixels."""
        knees = dict(enumerate(film.knees))
        if not self.preparation.knees:
            knees = {s: knee for s, knee in knees.items() if quality.is_knee(s, knee.score)}
        sound = {s for s, knee in knees.items() if not quality.doubts(s, knee.score)}
        found = []
        for s, knee in knees.items():
            uneven = differ and bool(sound - {s})  # differs from a knee beyond doubt
            review = quality.review(s, knee, film, is_cut=bool(cut[s]), uneven=uneven)
            detection = Detection.from_matrix(
                to_film[s],
                self.template.landmarks,
                side=SIDES[LEFT if knee.mirrored else RIGHT],
                method=self.method,
                laterality=knee.laterality.side,
                laterality_source=knee.laterality.source,
                energy=float(quality.energy),
                loss=float(quality.loss[s]),
                polarity="negative" if quality.negative[s] else "positive",
                mm_per_px=film.mm_per_px,
                needs_review=review[0],
                reasons=review[1],
            )
            error_px = detection.width_px * quality.expected_error(s)
            found.append(replace(detection, expected_error_px=error_px))
        return tuple(found)


def _read(film: Film) -> Radiograph | Exception:
    """Return a film, whatever it is given as, or why it cannot be read."""
    try:
        if isinstance(film, str | os.PathLike):
            return read_isolated(film)
        if isinstance(film, np.ndarray):
            return radiograph_from_array(film)
        if is_dataset(film):
            return radiograph_from_dataset(film)
        return film if isinstance(film, Radiograph) else _not_a_film(film)
    except Exception as error:  # noqa: BLE001 - a broken file can raise anything
        return error


def _prepare_or_fail(
    films: Sequence[Radiograph], how: Preparation
) -> Sequence[PreparedFilm | Exception]:
    """Prepare films together or, if one of them fails, one by one."""
    try:
        return prepare(films, how)
    except Exception as error:  # one among 500,000 films must not stop the others
        if how.device != "cpu" and isinstance(error, RuntimeError):
            raise  # perhaps the GPU's error, and not the film's
        if len(films) == 1:
            return [error]
        return [each for film in films for each in _prepare_or_fail([film], how)]


def _film_error(film: Film, error: Exception) -> FilmError:
    """Return why a film cannot be used, with its path if it is a file.

    Raises:
        Exception: the given one, if it is no FilmError and the film is no file but an object that
            the caller made.
    """
    text = str(error)
    if isinstance(film, str | os.PathLike):
        path = os.fspath(film)
        error = to_film_error(path, error)
        text = str(error) if str(error).startswith(path) else f"{path}: {error}"
    elif not isinstance(error, FilmError):
        raise error
    return type(error)(text)  # a new one, since the traceback of the other holds the pixels


def _not_a_film(found: object) -> SettingsError:
    """Return the error of something that no film can be read from."""
    kinds = "a path, a NumPy array, a pydicom Dataset or a Radiograph"
    return SettingsError(f"A film is {kinds}, not a {type(found).__name__}.")
