"""Radiograph to Detections: the knee joint areas of a film, in the film's own pixels."""

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, overload

import torch
from torch import Tensor

from kneematch.detection.detection import CORNERS, Detection
from kneematch.detection.prepare import LATERALITY, Film, Prepared, load
from kneematch.detection.quality import Measures, is_cut, measure
from kneematch.detection.registry import (
    AUTO,
    NEURAL,
    check_method,
    choose,
    drawn_template,
    own_template,
)
from kneematch.devices import resolve_device
from kneematch.errors import FilmError, SettingsError
from kneematch.geometry.pose import pose_from_vector, pose_matrix
from kneematch.geometry.split import LEFT, ROOM, SIDES
from kneematch.geometry.view import compose, transform
from kneematch.io.radiograph import Radiograph
from kneematch.matching.annotation import Annotation
from kneematch.matching.template import Template
from kneematch.networks.consistency_check import ConsistencyCheck
from kneematch.networks.cuda_graph import SolverGraph, solve_with_graph
from kneematch.networks.model_file import load_model, shipped_model
from kneematch.solvers.problem import Problem, Solution, Solver, make_problem

REPLAYED: Final = ("search", "neural", "neural+sharpen")  # those that a CUDA graph can hold
BATCH_SIZE: Final = 8


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What became of one film: its detections, or why there are none."""

    film: Radiograph | None
    detections: tuple[Detection, ...] = ()
    failure: FilmError | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Detector:
    """A template and a way to find it."""

    template: Template
    minimiser: Solver
    method: str  # its name in the results
    paper: bool = False  # lower the paper's energy, not the robust one
    device: str = "cpu"
    batch_size: int = BATCH_SIZE  # films that are searched at once
    look: ConsistencyCheck | None = None  # who is asked about what was found
    _recorded: dict[torch.Size, SolverGraph | None] = field(default_factory=dict, repr=False)

    @property
    def room(self) -> float:
        """How far, as a share of its width, a film is continued to either side."""
        return 0.0 if self.paper else ROOM

    @classmethod
    def load(
        cls,
        model: str | os.PathLike[str] | None = None,
        *,
        template: str | os.PathLike[str] | Annotation | None = None,
        method: str = AUTO,
        paper: bool = False,
        device: str = "auto",
        batch_size: int = BATCH_SIZE,
        look: bool = True,
    ) -> "Detector":
        """Ask a model, the one in the box unless another is named.

        Args:
            model: what `kneematch train` wrote.
            template: an annotation, or a template.json, whose fine box is to be found instead of
                the model's own: the networks carry it along with theirs.
            method: auto, neural+sharpen, neural, search, grid or sliding; auto is neural+sharpen,
                or search for a template on which the networks see no knee.
            paper: lower the paper's energy, not the robust one.
            device: auto, cpu, cuda, cuda:N or mps.
            batch_size: films that are searched at once.
            look: ask networks about what another method found, for `review`; without, none are
                loaded for it.
        """
        check_method(method)
        if batch_size < 1:
            raise SettingsError(f"a batch of {batch_size}; expected 1 film or more; raise it")
        device = resolve_device(device)
        sought = None if template is None else drawn_template(template)
        known = None
        # The paper's own search knows no network.
        if sought is None or (look and not paper) or method in (AUTO, *NEURAL):
            known = load_model(model or shipped_model())
            sought = sought or own_template(known)
        chosen = choose(method, sought, known, paper=paper, device=device)
        cut = sought.template.to(torch.empty(0, device=device))
        return cls(
            cut, chosen.minimiser, chosen.method, paper, device, batch_size, look=chosen.look
        )

    @classmethod
    def from_template(
        cls, template: str | os.PathLike[str] | Annotation, **options: Any
    ) -> "Detector":
        """Look for the fine box of an annotation, or of a template.json; options are `load`'s."""
        return cls.load(template=template, **options)

    @overload  # a str is an iterable of str, too; it is one film
    def detect(self, films: Film) -> tuple[Detection, ...]: ...  # type: ignore[overload-overlap]

    @overload
    def detect(self, films: Iterable[Film]) -> list[tuple[Detection, ...]]: ...

    def detect(
        self, films: Film | Iterable[Film]
    ) -> tuple[Detection, ...] | list[tuple[Detection, ...]]:
        """Find the knees of a film, the picture's left one first; of many, a tuple each.

        Raises:
            FilmError: a film cannot be used; `each` goes on instead.
        """
        if isinstance(films, Radiograph | str | os.PathLike):
            return self.detect([films])[0]
        found = []
        for outcome in self.each(films):
            if outcome.failure is not None:
                raise outcome.failure
            found.append(outcome.detections)
        return found

    def each(self, films: Iterable[Film]) -> Iterator[Outcome]:
        """What becomes of each film, in order; the next batch is read while one is searched."""
        source = iter(films)

        def ahead() -> list[tuple[Radiograph, Prepared] | FilmError]:
            return [load(film, self.room) for film in islice(source, self.batch_size)]

        # One reader: `read` silences warnings, which only one thread at a time may.
        with ThreadPoolExecutor(max_workers=1) as reader:
            reading = reader.submit(ahead)
            while batch := reading.result():
                reading = reader.submit(ahead)
                found = iter(self.find([item[1] for item in batch if isinstance(item, tuple)]))
                for item in batch:
                    if isinstance(item, FilmError):
                        yield Outcome(None, failure=item)
                    else:
                        yield Outcome(item[0], next(found))

    def find(self, films: Sequence[Prepared]) -> list[tuple[Detection, ...]]:
        """The knees of films that are prepared, all at once."""
        found: list[tuple[Detection, ...]] = [()] * len(films)
        for count in (1, len(SIDES)):  # films of one knee and of two do not share a tensor
            alike = [k for k, film in enumerate(films) if len(film.sides) == count]
            if alike:
                for k, knees in zip(alike, self._find([films[k] for k in alike]), strict=True):
                    found[k] = knees
        return found

    def _find(self, films: list[Prepared]) -> list[tuple[Detection, ...]]:
        """Films with as many sides each."""
        halves = torch.stack([film.halves.pixels for film in films]).to(self.device)
        asked = make_problem(halves, self.template, paper=self.paper)
        v = self._solve(asked).v
        theta = pose_from_vector(v.double(), asked.height_ratio)  # (N, S, 4)
        measured = measure(asked, theta, self.look, learnt=self.method in NEURAL)
        to_film = torch.stack([film.halves.to_film for film in films])
        matrices = pose_matrix(theta, self.template.aspect, asked.image_aspect)
        placed = compose(to_film, matrices.cpu())  # (N, S, 3, 3)
        return [
            tuple(
                self._detection(film, side, placed[n, s], measured, (n, s))
                for s, side in enumerate(film.sides)
            )
            for n, film in enumerate(films)
        ]

    def _solve(self, asked: Problem) -> Solution:
        def solve(halves: Tensor) -> Solution:
            return self.minimiser(make_problem(halves, self.template, paper=self.paper))

        if asked.halves.is_cuda and self.method in REPLAYED and not self.paper:
            return solve_with_graph(solve, asked.halves, self._recorded)
        return self.minimiser(asked)

    def _detection(
        self,
        film: Prepared,
        side: int,
        to_film: Tensor,
        measured: Measures,
        at: tuple[int, int],
    ) -> Detection:
        """What lies where a map (3, 3) takes the template's [-1, 1]^2."""
        corners = transform(to_film, torch.tensor(CORNERS)).numpy()
        # The top edge from the picture's left to its right, which mirrored is from corner 1 to 0.
        (x0, y0), (x1, y1) = corners[[1, 0] if side == LEFT else [0, 1]]
        points = list(self.template.landmarks.items())
        places = transform(to_film, torch.tensor([at for _, at in points]).reshape(-1, 2))
        cut = is_cut(to_film, film.size)
        review, reason = measured.verdict(*at, learnt=self.method in NEURAL, cut=cut)
        return Detection(
            side=SIDES[side],
            laterality=LATERALITY[side],
            energy=float(measured.energy[at[0]]),
            loss=float(measured.loss[at]),
            polarity="negative" if measured.negative[at] else "positive",
            method=self.method,
            corners=corners,
            centre=(float(to_film[0, 2]), float(to_film[1, 2])),
            width_px=math.dist(corners[0], corners[1]),
            height_px=math.dist(corners[0], corners[3]),
            rotation_deg=math.degrees(math.atan2(y1 - y0, x1 - x0)),
            mm_per_px=film.mm_per_px,
            landmarks={
                name: (x, y) for (name, _), (x, y) in zip(points, places.tolist(), strict=True)
            },
            review=review,
            reason=reason,
        )
