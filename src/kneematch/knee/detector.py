"""Detector: from a radiograph to the knee joint areas, in the film's own pixels.

Every film takes the same way, in Python and on the command line: read, `prepare` (an image around
each knee that is located, or the whole film for other parts), solve (networks or a search),
`measure_quality`, `Detection`.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, TypeVar, overload

import numpy as np
import torch
from numpy.typing import NDArray

from kneematch.devices import full_precision, map_batches, resolve_device
from kneematch.errors import FilmError, SettingsError, TemplateError
from kneematch.films.annotation import ANY, FINE, KNEES, Annotation
from kneematch.films.radiograph import Radiograph
from kneematch.films.read import Film, as_radiograph, is_film, not_a_film, to_film_error
from kneematch.knee.body_part import (
    BodyPart,
    find_areas,
    load_landmarks,
    matching_areas,
    number_areas,
    place_landmarks,
)
from kneematch.knee.detection import Detection, map_landmarks
from kneematch.knee.knee_images import Preparation, PreparedFilm, prepare
from kneematch.knee.quality import (
    NO_PARTNER,
    Quality,
    cut_by_edge,
    judge_match,
    measure_quality,
    sides_differ,
)
from kneematch.knee.template import TemplateFile, annotation_of, read_template
from kneematch.models.locator import SURE, VIEW_SIZE, VIEW_WIDTH
from kneematch.models.model_file import Model, builtin_model, load_model
from kneematch.models.two_stage import (
    ConsistencyCheck,
    check_consistency,
    network_solver,
    transfer_template,
)
from kneematch.paper.energy import Solver
from kneematch.paper.pose import pose_matrix
from kneematch.paper.split import HALF_SIZE, LEFT, RIGHT, SIDES
from kneematch.paper.template import Template
from kneematch.sampling import compose
from kneematch.search.exhaustive_search import exhaustive_search
from kneematch.search.gauss_newton import QUICK_LEVELS, refine_anchored
from kneematch.search.robust_energy import resize_template, robust_problem
from kneematch.settings import AUTO, LOCATOR, METHODS, SEARCH, check_type

Areas = tuple[Detection, ...]
Found = TypeVar("Found")

SCALES: Final = 1.4  # ratio of the largest size of a knee that is searched for to the usual one
LARGEST_CROP: Final = 512  # pixels a side of what may be a crop
GPU_BATCH: Final = 16  # films
MOST_WHOLE: Final = 4  # films that are searched together after their copies
LEAST_PX: Final = 120  # width of an area in a smaller copy of its film, which the networks see
FEWEST_ON_GPU: Final = 4  # films; the CPU prepares fewer in less time than a GPU needs to begin
REDUCTION: Final = VIEW_SIZE[0] / HALF_SIZE[0]  # size of a template in views over that in halves
NO_AREA: Final = "no area like the template found"


def _use_one_thread() -> None:
    torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    # A forked process has none of torch's threads, but would wait for them for ever.
    os.register_at_fork(after_in_child=_use_one_thread)


@dataclass(frozen=True, slots=True, eq=False)
class Detector:
    """A template and a solver that finds it."""

    template: Template = field(repr=False)
    solver: Solver = field(repr=False)
    method: str  # its name in the results
    device: str = "cpu"
    batch_size: int = 1  # films that are prepared and searched together; 1 on a CPU
    check: ConsistencyCheck | None = field(default=None, repr=False)  # with the networks
    preparation: Preparation = field(default_factory=Preparation)
    part: BodyPart | None = field(default=None, repr=False)  # found on whole films; None: knees
    _too_large: list[int] = field(default_factory=list, repr=False)  # batches that did not fit
    _arguments: dict[str, Any] | None = field(default=None, repr=False)  # those of `load`

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments of `load`: another process loads the same files again."""
        if self._arguments is None:
            raise TypeError("Only a detector that Detector.load has made can be pickled.")
        return partial(Detector.load, **self._arguments), ()

    @classmethod
    def load(
        cls,
        model: str | os.PathLike[str] | None = None,
        *,
        template: TemplateFile | None = None,
        method: str = AUTO,
        device: str | torch.device = AUTO,
        batch_size: int | None = None,
        left_is: str | None = None,
        cropped: bool = False,
    ) -> "Detector":
        """Load a detector; without arguments, the one that is built in.

        Args:
            model: file written by `kneematch train`. Default: the built-in model.
            template: annotation, or path of a template.json, whose fine box is found instead of
                the model's own template.
            method: auto or search. Both look around the knees that the locator finds: "auto" by
                networks, "search" exhaustively. Other parts of the body are searched for on the
                whole film.
            device: auto, cpu, cuda or cuda:N, or a torch.device.
            batch_size: films that are searched together. Default: 16. On a CPU it is 1.
            left_is: "R" or "L", the patient's side at the left of all pictures; it overrides
                headers and markers.
            cropped: all pictures were cut out around the joint.

        Raises:
            SettingsError: an argument, or the model, cannot be used.
            TemplateError: the annotation cannot serve as a template.
        """
        given = {"method": method, "device": str(device), "batch_size": batch_size}
        given |= {"left_is": left_is, "cropped": cropped}
        given |= {"model": _absolute(model), "template": _absolute(template)}
        path = str | os.PathLike[str] | None
        check_type("model", model, path)
        check_type("template", template, path | Annotation)
        check_type("batch_size", batch_size, int | None)
        if batch_size is not None and batch_size < 1:
            raise SettingsError(f"A batch has at least 1 film, not {batch_size}.")
        if method not in METHODS:
            raise SettingsError(f"There is no method {method!r}. Choose {' or '.join(METHODS)}.")
        device = resolve_device(device)
        part: BodyPart | None = None
        solver: Solver = exhaustive_search
        check: ConsistencyCheck | None = None
        if template is not None and annotation_of(template).find != KNEES:
            wanted, _, _, part = read_template(template)
            if model is not None and part is not None:
                part = replace(part, landmarks=load_landmarks(model, part.landmarks))
        else:
            loaded = load_model(model or builtin_model())
            wanted, solver, check = _choose_method(method, template, loaded, device)
        return cls(
            wanted.to(torch.empty(0, device=device)),
            solver,
            LOCATOR if method == AUTO and part is None else SEARCH,
            device=device,
            batch_size=1 if device == "cpu" else batch_size or GPU_BATCH,
            check=check,
            preparation=Preparation(
                left_is=left_is,
                cropped=cropped,
                device=device if part is None else "cpu",
                precise=device != "cpu",
                whole=None if part is None else part.whole,
            ),
            part=part,
            _arguments=given,
        )

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

        The tuple of a film without a frontal knee is empty.

        Args:
            films: a path, an open file, a pydicom Dataset, a Radiograph, a PIL image or a NumPy
                array (height, width) or (height, width, 3) with bones bright; or several of these.
            mm_per_px: pixel spacing of an array or a PIL image.
            laterality: "R" or "L" if an array or a PIL image shows one knee of a known side.

        Raises:
            FilmError: a film cannot be used; `detect_each` goes on instead.
            SettingsError: something else than films was given.
        """
        if mm_per_px is not None or laterality is not None:
            films = as_radiograph(films, mm_per_px=mm_per_px, laterality=laterality)
        if is_film(films):
            return self.detect([films])[0]
        found = []
        for result in self.detect_each(films):
            if isinstance(result, FilmError):
                raise result
            found.append(result)
        return found

    def detect_each(self, films: Iterable[Film]) -> Iterator[tuple[Detection, ...] | FilmError]:
        """Yield the knees of every film, in order, or why it cannot be used.

        The tuple of a film without a frontal knee is empty.
        """
        try:
            source = iter(films)
        except TypeError:
            raise not_a_film(films) from None
        while batch := list(islice(source, self.batch_size)):
            read = [_read(film) for film in batch]
            results = iter(self.detect_radiographs([r for r in read if isinstance(r, Radiograph)]))
            for film, pixels in zip(batch, read, strict=True):
                result = next(results) if isinstance(pixels, Radiograph) else pixels
                yield _film_error(film, result) if isinstance(result, Exception) else result

    def detect_radiographs(self, films: Sequence[Radiograph]) -> list[Areas | Exception]:
        """Return the knees of a few films; an error of a film takes the place of its knees."""
        return search_copies(self.search, films) if self.part is None else self.search(films)

    def search(
        self, films: Sequence[Radiograph], *, fewest_on_gpu: int = FEWEST_ON_GPU
    ) -> list[Areas | Exception]:
        """Return what films show in the pixels that are given; an error takes its place.

        Fewer films than `fewest_on_gpu` are prepared on the CPU.
        """
        how = self.preparation
        if len(films) < fewest_on_gpu:
            how = replace(how, device="cpu")
        prepared = _prepare_or_fail(films, how) if films else []
        knees = iter(self._find_all([each for each in prepared if isinstance(each, PreparedFilm)]))
        found = (next(knees) if isinstance(each, PreparedFilm) else each or () for each in prepared)
        return [_result(self._place, film, each) for film, each in zip(films, found, strict=True)]

    def nothing_found(self, size: tuple[int, int]) -> str:
        """Return what to say of a film (height, width) on which nothing was found."""
        return NO_AREA if self.part else no_knee_found(size, cropped=self.preparation.cropped)

    def _place(self, film: Radiograph, found: Areas | Exception) -> Areas | Exception:
        """Return areas of another part with their landmarks and reasons for review; knees as is."""
        if self.part is None or isinstance(found, Exception):
            return found
        placed = [place_landmarks(film, area, self.part) for area in found]
        if self.part.find == ANY:
            placed = matching_areas(placed)
        placed.sort(key=lambda area: area.centre)
        return number_areas(map(judge_match, placed))

    def _find_all(self, films: Sequence[PreparedFilm]) -> list[Areas | Exception]:
        """Return the knees of films that were prepared, or why they cannot be found.

        On a CPU every film is searched alone: it is hardly slower, and its rows do not depend on
        the other films of the batch. On a GPU, films with as many sides are searched together, as
        many as fit into its memory.
        """
        if self.part is not None:
            return [_result(self._find_part, film, self.part) for film in films]
        if self.device == "cpu":
            return [_result(lambda film: self._find([film])[0], film) for film in films]
        found: list[Areas | Exception] = [()] * len(films)
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
            problem = robust_problem(images, self.template)
            theta = self.solver(problem).double()  # (N, S, 4)
            quality = measure_quality(problem, theta, self.check, neural=self.method == LOCATOR)
        matrices = pose_matrix(theta, self.template.aspect, problem.image_aspect).cpu()
        to_film = compose(torch.stack([film.images.to_film for film in films]), matrices).numpy()
        return [*map(self._detections, films, to_film, quality)]

    def _find_part(self, film: PreparedFilm, part: BodyPart) -> tuple[Detection, ...]:
        """Find another part than knees on a whole film, which was prepared at T angles."""
        turns = len(part.whole.turns)
        images = film.images.pixels.reshape(turns, -1, *film.images.size)  # (T, S, H, W)
        to_film = film.images.to_film.reshape(turns, -1, 3, 3)
        problem = robust_problem(images, self.template.to(images))
        found: list[Detection] = []
        for turn, sides, theta in find_areas(problem, part):
            chosen = slice(turn, turn + 1), sides
            there = problem.rearrange(itemgetter(chosen))
            quality = measure_quality(there, theta[None].double(), None, neural=False)[0]
            matrices = pose_matrix(theta.double(), self.template.aspect, problem.image_aspect)
            areas = replace(film, knees=tuple(film.knees[side] for side in sides))
            found += self._detections(
                areas, compose(to_film[turn, sides], matrices).numpy(), quality
            )
        return tuple(found)

    def _detections(
        self, film: PreparedFilm, to_film: NDArray[np.float64], qualities: Sequence[Quality]
    ) -> tuple[Detection, ...]:
        """Return the knees of a film from maps (S, 3, 3) of the template to film pixels."""
        knees = dict(enumerate(film.knees))
        if not self.preparation.single:
            knees = {s: knee for s, knee in knees.items() if qualities[s].is_knee(knee)}
        dropped = [knee for s, knee in enumerate(film.knees) if s not in knees]
        sound = {s for s, knee in knees.items() if not qualities[s].doubts(knee)}
        cut, differ = cut_by_edge(to_film, film.field), sides_differ(to_film)
        found = []
        for s, knee in knees.items():
            quality = qualities[s]
            uneven = differ and bool(sound - {s})  # differs from a knee beyond doubt
            needs_review, reasons = quality.review(knee, film, is_cut=bool(cut[s]), uneven=uneven)
            if any(other.location and other.location.score >= SURE for other in dropped):
                needs_review, reasons = True, (*reasons, NO_PARTNER)
            detection = Detection(
                to_film[s],
                SIDES[LEFT if knee.mirrored else RIGHT],
                self.method,
                map_landmarks(to_film[s], self.template.landmarks),
                side_known=knee.side_known,
                alone=len(knees) == 1,
                laterality=knee.laterality.side,
                laterality_source=knee.laterality.source,
                energy=quality.energy,
                loss=quality.loss,
                polarity="negative" if quality.negative else "positive",
                mm_per_px=film.mm_per_px,
                needs_review=needs_review,
                reasons=reasons,
            )
            error_px = None if self.part else detection.width_px * quality.expected_error()
            found.append(replace(detection, expected_error_px=error_px))
        return tuple(found)


def search_copies(
    search: Callable[[Sequence[Radiograph]], list[Areas | Exception]], films: Sequence[Radiograph]
) -> list[Areas | Exception]:
    """Return the knees that a search finds in smaller copies of large films.

    A film itself is searched where its copy shows none, or one so small that detail was lost.
    """
    copies = [film.reduced() for film in films]
    found = [*map(_on_film, copies, search(copies))]
    closer = [k for k, copy in enumerate(copies) if not _shows_enough(copy, found[k])]
    for start in range(0, len(closer), MOST_WHOLE):  # for their memory
        some = closer[start : start + MOST_WHOLE]
        whole = [_result(read) for k in some if (read := copies[k].read_whole)]
        again = iter(search([film for film in whole if isinstance(film, Radiograph)]))
        for k, film in zip(some, whole, strict=True):
            found[k] = next(again) if isinstance(film, Radiograph) else film
    return found


def _on_film(copy: Radiograph, found: Areas | Exception) -> Areas | Exception:
    """Return what was found in a film, or in a smaller copy of it, in the film's pixels."""
    if copy.copy_of is None or isinstance(found, Exception):
        return found
    return tuple(each.on_film(copy) for each in found)


def _shows_enough(copy: Radiograph, found: Areas | Exception) -> bool:
    """Return whether what was found in a copy of a film need not be looked for in the film."""
    if copy.read_whole is None:
        return True
    if isinstance(found, Exception) or not found:
        return False
    return min(area.width_px for area in found) > LEAST_PX * copy.reduction


def no_knee_found(size: tuple[int, int], *, cropped: bool) -> str:
    """Return what to say of a film (height, width) without a knee."""
    height, width = size
    may_be_crop = max(size) <= LARGEST_CROP and 0.8 < height / width < 1.25
    hint = "; if it is a crop of a joint, try --cropped"
    return f"no frontal knee found{hint if may_be_crop and not cropped else ''}"


def _absolute(file: Any) -> Any:
    """Return the absolute path of a file, for a process with another working folder."""
    return Path(file).absolute() if isinstance(file, str | os.PathLike) else file


def _read(film: Film) -> Radiograph | Exception:
    """Return a film, whatever it is given as, or why it cannot be read."""
    try:
        return as_radiograph(film)
    except Exception as error:  # noqa: BLE001 - a broken file can raise anything
        return error


def _result(function: Callable[..., Found | Exception], *arguments: object) -> Found | Exception:
    """Return what a function returns for a film, or raises, unless memory ran out, which passes."""
    try:
        return function(*arguments)
    except MemoryError:
        raise
    except Exception as error:  # one among 500,000 films must not stop the others
        if "DefaultCPUAllocator" in str(error):  # PyTorch's way to say so
            raise
        return error


def _prepare_or_fail(
    films: Sequence[Radiograph], how: Preparation
) -> Sequence[PreparedFilm | Exception | None]:
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
    if isinstance(film, str | os.PathLike):
        error = to_film_error(os.fspath(film), error)
    elif not isinstance(error, FilmError):
        raise error
    return type(error)(error.message)  # the traceback of the other holds the pixels


def _choose_method(
    name: str, template: TemplateFile | None, model: Model, device: str
) -> tuple[Template, Solver, ConsistencyCheck | None]:
    """Return a template of knees, by default the model's own, what finds and what checks it."""
    networks = model.networks(device, located=True)
    # The networks' own template is not refined: with earlier networks, the mean IoU was 0.967
    # on the labelled films and 0.982 on 40 phantoms, refined or not.
    wanted, refine = template_for_views(model.fine_template), None
    scale = (FINE[2] - FINE[0]) / VIEW_WIDTH
    drawn = None if template is None else read_template(template)
    if drawn is not None:
        wanted, refine = drawn.template, partial(refine_anchored, levels=QUICK_LEVELS)
        scale = float(drawn.theta[0])
    # The view of a knee shows it in about the size in which the template was drawn.
    search = partial(exhaustive_search, scales=(scale / SCALES, scale * SCALES))
    if drawn is not None:
        try:
            networks = transfer_template(networks, drawn.image.to(device), drawn.theta)
        except TemplateError:
            if name == AUTO:
                raise
            return wanted, search, None
    solver = network_solver(networks, refine) if name == AUTO else search
    return wanted, solver, partial(check_consistency, networks, model.width_ratio)


def template_for_views(template: Template) -> Template:
    """Return a template of halves at the resolution of views, which is lower."""
    rows, columns = (max(round(REDUCTION * side), 1) for side in template.size)
    return resize_template(template, (rows, columns))
