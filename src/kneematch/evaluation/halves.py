"""The paper's methods, with its energy, on the two half images of films.

`kneematch.paper` has the methods themselves. What reads films, templates and models for them stands
here, since that package imports nothing of ours.
"""

import os
from dataclasses import dataclass, field
from typing import Final

import torch

from kneematch.devices import full_precision
from kneematch.films.radiograph import LATERALITIES, Radiograph
from kneematch.films.read import read_isolated
from kneematch.knee.detection import Detection, map_landmarks
from kneematch.knee.knee_images import film_tensor, usual_mirroring
from kneematch.knee.template import TemplateFile, annotated_half, annotation_of, cut_from_view
from kneematch.models.model_file import builtin_model, load_model
from kneematch.models.two_stage import network_solver, transfer_template
from kneematch.paper.algorithm2 import enlarged_size
from kneematch.paper.energy import Solver, paper_problem
from kneematch.paper.grid_search import grid_search
from kneematch.paper.pose import pose_matrix
from kneematch.paper.sharpening import sharpen
from kneematch.paper.sliding_window import sliding_window
from kneematch.paper.split import LEFT, RIGHT, SIDES, single, split
from kneematch.paper.template import Template
from kneematch.sampling import compose

SEARCHES: Final[dict[str, Solver]] = {"sliding": sliding_window, "grid": grid_search}


@dataclass(frozen=True, slots=True, eq=False)
class HalvesDetector:
    """One of the paper's methods, with its energy: a template and what finds it in half images."""

    template: Template = field(repr=False)
    solver: Solver = field(repr=False)
    method: str
    device: str = "cpu"

    @classmethod
    def load(
        cls,
        method: str,
        *,
        model: str | os.PathLike[str] | None = None,
        template: TemplateFile | None = None,
        device: str = "cpu",
    ) -> "HalvesDetector":
        """Load one of the paper's methods: sliding, grid, neural or neural+sharpen.

        Args:
            method: its name.
            model: file written by `kneematch train`. Default: the built-in model.
            template: annotation to find instead of the model's own template. The networks find
                it without training, at a fixed pose relative to their own.
            device: where to compute.

        Raises:
            TemplateError: the annotation cannot serve as a template, or the networks see no knee.
        """
        loaded = load_model(model or builtin_model())
        networks = loaded.networks(device, float32=True)
        wanted = loaded.fine_template
        if template is not None:
            drawn = annotation_of(template)
            half = annotated_half(read_isolated(drawn.film), drawn)
            wanted, theta = cut_from_view(half, drawn)
            if method not in SEARCHES:
                networks = transfer_template(networks, half.pixels.to(device), theta)
        refine = sharpen if method == "neural+sharpen" else None
        learnt = network_solver(networks, refine, enlarged_size(loaded.coarse_template))
        wanted = wanted.to(torch.empty(0, device=device))
        return cls(wanted, SEARCHES.get(method, learnt), method, device)

    @full_precision()
    def detect(self, film: Radiograph) -> tuple[Detection, ...]:
        """Return the area in each half of a film, or the one of a film of one knee."""
        pixels = film_tensor(film)
        if film.laterality in LATERALITIES:  # the header says that the film shows one knee
            view = single(pixels, mirrored=usual_mirroring(film))
        else:
            view = split(pixels)
        images = view.pixels[None].to(self.device)  # (1, S, 800, 500)
        problem = paper_problem(images, self.template)
        theta = self.solver(problem).double()  # (1, S, 4)
        match = problem.match(theta)
        matrices = pose_matrix(theta[0], self.template.aspect, problem.image_aspect).cpu()
        to_film = compose(view.to_film, matrices)
        return tuple(
            Detection(
                matrix.numpy(),
                SIDES[LEFT if torch.linalg.det(matrix) < 0 else RIGHT],
                self.method,
                map_landmarks(matrix.numpy(), self.template.landmarks),
                alone=len(to_film) == 1,
                energy=float(match.energy[0]),
                loss=float(loss),
                polarity="negative" if negative else "positive",
                mm_per_px=film.mm_per_px,
            )
            for matrix, loss, negative in zip(
                to_film, match.loss[0], match.negative[0], strict=True
            )
        )
