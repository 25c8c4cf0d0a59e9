"""Find a part of the body other than knees on whole films, and its landmarks to the point."""

import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from kneematch.errors import SettingsError
from kneematch.films.annotation import ANY, ONE, PAIR, Annotation
from kneematch.films.files import write_file
from kneematch.films.radiograph import Radiograph
from kneematch.knee.detection import MOST_AREAS, Detection, area_side
from kneematch.knee.knee_images import WholeFilm, film_tensor, whole_images
from kneematch.knee.quality import MAX_MATCH_BACK
from kneematch.models.weights import read_safetensors
from kneematch.paper.energy import Problem
from kneematch.paper.pose import MAX_ROTATION
from kneematch.sampling import View, rectangle_to_film, transform
from kneematch.search.exhaustive_search import all_minima, exhaustive_search
from kneematch.search.landmark_matching import (
    AREA_PX,
    LandmarkModel,
    area_frame,
    find_landmarks,
    landmark_model,
)

# Unnamed landmarks in [-1, 1]^2, which tell whether the area is right.
GRID: Final = (-0.6, 0.0, 0.6)
FORMAT: Final = "kneematch-landmarks/1"  # file of landmarks that `train` has learnt
MAX_ANY_LOSS: Final = 0.55  # areas of `find: any` that match better are reported
SAME_AREA: Final = 0.5  # areas are one if their centres are closer than this share of the width
LEAST_AWAY: Final = 0.75  # shares of width or height by which the areas of a film lie apart


@dataclass(frozen=True, slots=True, eq=False)
class BodyPart:
    """A part of the body, drawn once."""

    find: str  # ONE, PAIR or ANY
    whole: WholeFilm
    scales: tuple[float, float]
    names: tuple[str, ...]  # names of the model's first landmarks
    landmarks: LandmarkModel


def whole_film(drawn: Annotation) -> WholeFilm:
    """Return how films are searched for what was drawn."""
    mirrored = (drawn.mirrored,) if drawn.find == ONE else (True, False)
    x0, y0, x1, y1 = drawn.fine
    most = math.radians(drawn.turn_deg)
    steps = max(math.ceil(most / MAX_ROTATION / 2 - 0.5), 0)  # MAX_ROTATION around each turn
    turns = [2 * MAX_ROTATION * step for step in range(-steps, steps + 1)]
    return WholeFilm(mirrored, (y1 - y0) / (x1 - x0), tuple(turns))


def whole_view(film: Radiograph, drawn: Annotation) -> View:
    """Return the image (H, W) of a film that a part was drawn on."""
    how = replace(whole_film(drawn), mirrored=(drawn.mirrored,), turns=(0.0,))
    images = whole_images(film_tensor(film), how)
    return View(images.pixels[0], images.to_film[0])


def body_part(film: Radiograph, drawn: Annotation, scale: float) -> BodyPart:
    """Return the part that was drawn on a film, where its box has the given scale."""
    to_film = rectangle_to_film(*drawn.fine, mirrored=drawn.mirrored)
    levels, frame = area_frame(film_tensor(film), to_film)
    named = torch.tensor([*drawn.landmarks.values()], dtype=torch.float64).reshape(-1, 2)
    grid = torch.cartesian_prod(*[torch.tensor(GRID, dtype=torch.float64)] * 2)
    points = transform(torch.linalg.inv(frame), torch.cat([named, transform(to_film, grid)]))
    return BodyPart(
        drawn.find,
        whole_film(drawn),
        (scale / drawn.scale_range, scale * drawn.scale_range),
        tuple(drawn.landmarks),
        landmark_model(levels, points.float()),
    )


def find_areas(problem: Problem, part: BodyPart) -> Iterator[tuple[int, list[int], Tensor]]:
    """Yield the areas of a film with images (T, S, H, W): its turn, sides (s,) and poses (s, 4).

    Areas that belong together, as those of a pair, are yielded together.
    """
    if part.find != ANY:
        theta = exhaustive_search(problem, scales=part.scales, apart=part.find == PAIR)
        turn = int(problem.energy(theta).argmin())
        yield turn, list(range(theta.shape[1])), theta[turn]
        return
    theta, loss = all_minima(problem, scales=part.scales)
    kept: list[Tensor] = []
    for index in loss.flatten().argsort().tolist():
        turn, side, k = np.unravel_index(index, loss.shape)
        pose = theta[turn, side, k]
        # Upright on the film, in half widths of the image, so that places of all turns compare.
        x = -pose[1] if part.whole.mirrored[side] else pose[1]
        y, angle = problem.image_aspect * pose[2], part.whole.turns[turn]
        cos, sin = math.cos(angle), math.sin(angle)
        middle = torch.stack([cos * x - sin * y, sin * x + cos * y])
        if loss[turn, side, k] > MAX_ANY_LOSS or len(kept) == MOST_AREAS:
            break
        if all((middle - other).norm() > 2 * SAME_AREA * pose[0] for other in kept):
            kept.append(middle)
            yield int(turn), [int(side)], pose[None]


def place_landmarks(film: Radiograph, found: Detection, part: BodyPart) -> Detection:
    """Return an area with its landmarks to the point, and how well it matches back."""
    levels, frame = area_frame(film_tensor(film), torch.from_numpy(found.to_film))
    landmarks = find_landmarks(levels, part.landmarks)
    deviation = landmarks.variance.sqrt()
    points = transform(frame, landmarks.points).tolist()
    pixels = (deviation * float(frame[:2, 0].norm())).tolist()
    named = range(len(part.names))
    return replace(
        found,
        landmarks={part.names[k]: (points[k][0], points[k][1]) for k in named},
        landmark_sd_px={part.names[k]: pixels[k] for k in named},
        match_back=float(deviation.median()) / AREA_PX,
    )


def matching_areas(found: Sequence[Detection]) -> list[Detection]:
    """Return the areas whose parts match back; if there are none, the one that matches best.

    They are given by their match, the best first; one that overlaps a better one is left out.
    """
    kept: list[Detection] = []
    matching = [area for area in found if _match_back(area) < MAX_MATCH_BACK]
    for area in matching or sorted(found, key=_match_back)[:1]:
        apart = np.array([other.centre for other in kept]).reshape(-1, 2) - area.centre
        away = np.abs(np.linalg.solve(area.to_film[:2, :2], apart.T)).max(0) / 2
        if (away > LEAST_AWAY).all():
            kept.append(area)
    return kept


def _match_back(area: Detection) -> float:
    return math.inf if area.match_back is None else area.match_back


def number_areas(found: Iterable[Detection]) -> tuple[Detection, ...]:
    """Return the areas of a film so numbered that no two have the same side, at most MOST_AREAS."""
    seen: Counter[str] = Counter()
    numbered = []
    for area in found:
        seen[area.half] += 1
        if seen[area.half] <= MOST_AREAS:
            numbered.append(replace(area, side=area_side(area.half, seen[area.half])))
    return tuple(numbered)


def save_landmarks(path: str | os.PathLike[str], model: LandmarkModel) -> None:
    """Write landmarks that were learnt as a safetensors file."""
    tensors = {f"patches{k}": level.contiguous() for k, level in enumerate(model.patches)}
    tensors |= {"mean": model.mean, "covariance": model.covariance}
    write_file(path, save(tensors, {"format": FORMAT}))


def load_landmarks(path: str | os.PathLike[str], drawn: LandmarkModel) -> LandmarkModel:
    """Read landmarks that were learnt from those that were drawn."""
    tensors, _ = read_safetensors(path, FORMAT)
    patches = tuple(tensors.get(f"patches{k}", drawn.mean) for k in range(len(drawn.patches)))
    learnt = LandmarkModel(
        patches, tensors.get("mean", drawn.mean[:0]), tensors.get("covariance", drawn.mean)
    )
    if any(a.shape != b.shape for a, b in zip(_tensors(learnt), _tensors(drawn), strict=True)):
        raise SettingsError(f"{path} was trained for another template.")
    return learnt


def _tensors(model: LandmarkModel) -> tuple[Tensor, ...]:
    return (*model.patches, model.mean, model.covariance)
