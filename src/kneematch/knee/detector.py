"""Detector: from a radiograph to the knee joint areas, in the film's own pixels.

Every film takes the same stages, in Python and on the command line: read, `prepare` (a view around
each knee that is located, or the paper's two half images), solve (networks or a search),
`measure_quality`, `Detection`.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final, overload

import numpy as np
import torch
from numpy.typing import NDArray

from kneematch.devices import full_precision, map_batches, resolve_device
from kneematch.errors import FilmError, NoFrontalKnee, SettingsError
from kneematch.films.annotation import Annotation
from kneematch.films.radiograph import Radiograph
from kneematch.films.read import is_dataset, radiograph_from_array
from kneematch.knee.detection import YES, Detection, join_reasons
from kneematch.knee.knee_images import SIDE_MARGIN
from kneematch.knee.loading import (
    Film,
    LoadedFilm,
    film_error,
    load_film,
    may_be_of_gpu,
    not_a_film,
)
from kneematch.knee.methods import check_method, choose_solver, needs_model
from kneematch.knee.preparation import Preparation, PreparedFilm, prepare
from kneematch.knee.quality import (
    WRONG_SPACING,
    Quality,
    cut_by_edge,
    is_spacing_plausible,
    measure_quality,
    sides_differ,
)
from kneematch.models.model_file import builtin_model, load_model
from kneematch.models.two_stage import ConsistencyCheck
from kneematch.paper.energy import Solver, paper_problem
from kneematch.paper.pose import pose_matrix
from kneematch.paper.split import LEFT, RIGHT, SIDES
from kneematch.paper.template import Template
from kneematch.sampling import compose
from kneematch.search.robust_energy import robust_problem
from kneematch.search.settings import AUTO, DEFAULT_SETTINGS, LOCATOR, NEURAL, PaperSettings

GPU_BATCH: Final = 16  # films
FEWEST_ON_GPU: Final = 4  # films; the CPU prepares fewer in less time than a GPU needs to begin


@dataclass(frozen=True, slots=True, eq=False)
class FilmResult:
    """The detections on one film, or why there are none."""

    size: tuple[int, int] | None = None  # (height, width) of the film
    detections: tuple[Detection, ...] = ()
    failure: FilmError | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Detector:
    """A template and a solver that finds it."""

    template: Template = field(repr=False)
    solver: Solver = field(repr=False)
    method: str  # its name in the results
    paper: bool = False  # minimise the paper's energy instead of the robust one
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
            check: compare what another method found with the networks, for `review`.
            knees: 1 or 2, how many frontal knees each film shows; None finds out. Methods other
                than locator always split a film in two, unless its header names one knee.
            left_is: "R" or "L", the patient's side at the left of all pictures; it counts before
                headers and markers.
            paper_settings: steps and rate of Adam, scales and stride of the grid search.

        Raises:
            SettingsError: an argument, or the model, cannot be used.
            TemplateError: the annotation cannot serve as a template.
        """
        check_method(method)
        if batch_size is not None and batch_size < 1:
            raise SettingsError(f"a batch of {batch_size}; expected 1 film or more; raise it")
        device = resolve_device(device)
        loaded = None
        if needs_model(template is not None, method, paper=paper, check=check):
            loaded = load_model(model or builtin_model())
        chosen = choose_solver(
            method, template, loaded, paper=paper, device=device, settings=paper_settings
        )
        cut = chosen.template.to(torch.empty(0, device=device))
        films = 1 if device == "cpu" else batch_size or GPU_BATCH
        how = Preparation(
            locate=chosen.method == LOCATOR,
            knees=knees,
            side_margin=0.0 if paper else SIDE_MARGIN,
            left_is=left_is,
            device=device if chosen.method == LOCATOR else "cpu",
            precise=device != "cpu",
        )
        return cls(cut, chosen.solver, chosen.method, paper, device, films, chosen.check, how)

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
                "mm_per_px or laterality beside what is not an array; expected them in the film "
                "itself; leave them out"
            )
        if isinstance(films, Radiograph | str | os.PathLike) or is_dataset(films):
            return self.detect([films])[0]
        found = []
        for result in self.detect_each(films):
            if result.failure is not None:
                raise result.failure
            found.append(result.detections)
        return found

    def detect_each(self, films: Iterable[Film]) -> Iterator[FilmResult]:
        """Yield the result of every film, in order.

        Where a film cannot be used or shows no frontal knee, the result has no detections, and its
        `failure` says why.
        """
        try:
            source = iter(films)
        except TypeError:
            raise not_a_film(films) from None
        while batch := list(islice(source, self.batch_size)):
            prepared = self.prepare(batch)
            found = iter(self.find([item for item in prepared if isinstance(item, PreparedFilm)]))
            for film, item in zip(batch, prepared, strict=True):
                if not isinstance(item, PreparedFilm):
                    yield FilmResult(failure=item)
                elif knees := next(found):
                    yield FilmResult(item.size, knees)
                else:
                    yield FilmResult(item.size, failure=film_error(film, NoFrontalKnee()))

    def prepare(self, films: Sequence[Film]) -> list[PreparedFilm | FilmError]:
        """Read films and cut out their knees, on the GPU if there is one and the films are many.

        What cannot be used is returned as an error.
        """
        how = self.preparation
        if len(films) < FEWEST_ON_GPU:
            how = replace(how, device="cpu")
        loaded = [load_film(film, how.device) for film in films]
        prepared = iter(_prepare([film for film in loaded if isinstance(film, LoadedFilm)], how))
        results = [next(prepared) if isinstance(film, LoadedFilm) else film for film in loaded]
        return [
            film_error(film, result) if isinstance(result, Exception) else result
            for film, result in zip(films, results, strict=True)
        ]

    def find(self, films: Sequence[PreparedFilm]) -> list[tuple[Detection, ...]]:
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
        views = torch.stack([film.views.pixels.to(self.device) for film in films])  # (N, S, H, W)
        with full_precision():
            make_problem = paper_problem if self.paper else robust_problem
            problem = make_problem(views, self.template)
            theta = self.solver(problem).double()
            quality = measure_quality(
                problem,
                theta,  # (N, S, 4)
                self.check,
                neural=self.method in NEURAL,
                located=self.preparation.locate,
            )
        matrices = pose_matrix(theta, self.template.aspect, problem.image_aspect).cpu()
        to_film = compose(torch.stack([film.views.to_film for film in films]), matrices)
        return self._detections(films, to_film.numpy(), quality)

    def _detections(
        self, films: list[PreparedFilm], to_film: NDArray[np.float64], quality: Quality
    ) -> list[tuple[Detection, ...]]:
        """Return detections from maps (N, S, 3, 3) of the template's [-1, 1]^2 to film pixels."""
        cut = cut_by_edge(to_film, np.array([film.field for film in films]))
        differ = sides_differ(to_film)
        found = []
        for n, film in enumerate(films):
            scores = dict(enumerate(knee.score for knee in film.knees))
            if not self.preparation.knees:
                scores = {s: score for s, score in scores.items() if quality.is_knee(n, s, score)}
            sound = {s for s, score in scores.items() if not quality.doubts(n, s, score)}
            knees = []
            for s in scores:
                uneven = differ[n] and bool(sound - {s})  # differs from a knee beyond doubt
                doubts = {"cut": cut[n, s], "uneven": uneven}
                knees.append(self._detection((n, s), film, to_film[n, s], quality, **doubts))
            found.append(tuple(knees))
        return found

    def _detection(
        self,
        at: tuple[int, int],
        film: PreparedFilm,
        to_film: NDArray[np.float64],
        quality: Quality,
        **doubts: bool,
    ) -> Detection:
        """Return the detection at (film, side) of a batch; see `Quality.review` for the doubts."""
        knee = film.knees[at[1]]
        review, reason = quality.review(
            *at, score=knee.score, metal=knee.metal, tagged=film.tagged, **doubts
        )
        if knee.place is not None and knee.place.quarter_turns:
            turned = f"film turned by {90 * knee.place.quarter_turns} degrees"
            reason = join_reasons(reason, turned)
        if knee.laterality.conflict:
            review, reason = YES, join_reasons(reason, knee.laterality.conflict)
        if knee.place is not None and not is_spacing_plausible(knee.place.width, film.mm_per_px):
            review, reason = YES, join_reasons(reason, WRONG_SPACING)
        found = Detection.from_matrix(
            to_film,
            self.template.landmarks,
            side=SIDES[LEFT if knee.mirrored else RIGHT],
            laterality=knee.laterality.side,
            laterality_source=knee.laterality.source,
            energy=float(quality.energy[at[0]]),
            loss=float(quality.loss[at]),
            polarity="negative" if quality.negative[at] else "positive",
            method=self.method,
            mm_per_px=film.mm_per_px,
            review=review,
            reason=reason,
        )
        return replace(found, expected_error_px=found.width_px * quality.expected_error(*at))


def _prepare(films: list[LoadedFilm], how: Preparation) -> Sequence[PreparedFilm | Exception]:
    """Prepare films together or, if one of them fails, one by one."""
    try:
        return prepare(films, how)
    except Exception as error:  # one among 500,000 films must not stop the others
        if may_be_of_gpu(error, how.device):
            raise
        if len(films) == 1:
            return [error]
        return [each for film in films for each in _prepare([film], how)]
