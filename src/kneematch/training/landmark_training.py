"""Learn the landmarks of a part of the body from films without labels.

The landmarks of the drawing are found on all films. What they look like is averaged, and where they
lie is fitted with a Gaussian by expectation maximisation, both weighted by matching back. This
takes about a second of one core for each film.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from kneematch.errors import FilmError, SettingsError
from kneematch.films.files import writing
from kneematch.films.read import read_isolated
from kneematch.knee.body_part import save_landmarks
from kneematch.knee.detector import Detector
from kneematch.knee.knee_images import film_tensor
from kneematch.progress import Progress
from kneematch.search.landmark_matching import (
    LandmarkModel,
    Levels,
    area_frame,
    cut_patches,
    find_landmarks,
)

PRIOR_FILMS: Final = 10  # weight of the covariance before learning
ROUNDS: Final = 2
FITS: Final = 4  # steps of expectation maximisation in each round
FEWEST_FILMS: Final = 5
MOST_FILMS: Final = 500  # each takes 3 MB of memory, and more teach hardly anything


def train_landmarks(
    films: Sequence[str], template: Path, out: Path, progress: Progress
) -> tuple[int, list[tuple[str, str]]]:
    """Learn the landmarks of a template on films without labels, and write them to a file.

    Of more than MOST_FILMS films, every second, third or so on is taken.

    Returns:
        The number of films that were used, and (path, reason) of those that could not be.
    """
    detector = Detector.load(template=template, device="cpu")
    if detector.part is None:
        raise SettingsError("Landmarks are learnt for parts other than knees.")
    frames: list[Levels] = []
    failures: list[tuple[str, str]] = []
    paths = films[:: max(1, -(-len(films) // MOST_FILMS))]
    with progress("finding the area", len(paths)) as advance:
        for path in paths:
            try:
                frames += _frames(detector, path)
            except FilmError as error:
                failures.append((path, str(error)))
            advance("")
    if len(frames) < FEWEST_FILMS:
        raise SettingsError(
            f"{len(frames)} areas were found beyond doubt; {FEWEST_FILMS} are needed."
        )
    with writing(out):
        save_landmarks(out, learn(detector.part.landmarks, frames))
    return len(paths) - len(failures), failures


def _frames(detector: Detector, path: str) -> list[Levels]:
    """Return the frames of the areas of a film that need no review."""
    film = read_isolated(path)
    areas = [area.to_film for area in detector.detect(film) if not area.needs_review]
    return [area_frame(film_tensor(film), torch.from_numpy(area))[0] for area in areas]


def learn(model: LandmarkModel, frames: Sequence[Levels]) -> LandmarkModel:
    """Return a model that was learnt from N frames, given the one of the drawing."""
    for _ in range(ROUNDS):
        found = [find_landmarks(levels, model) for levels in frames]
        points = torch.stack([each.points for each in found])  # (N, K, 2)
        weights = 1 / torch.stack([each.variance for each in found])  # (N, K)
        patches = [cut_patches(*each) for each in zip(frames, points, strict=True)]
        means = [_mean_patch(torch.stack(level), weights) for level in zip(*patches, strict=True)]
        model = LandmarkModel(tuple(means), *_fit_shape(points, 1 / weights, model))
    return model


def _mean_patch(patches: Tensor, weights: Tensor) -> Tensor:
    """Return the mean (K, s, s) of patches (N, K, s, s) with weights (N, K), normalised before."""
    away = patches - patches.mean((-2, -1), keepdim=True)
    away = away / away.std((-2, -1), keepdim=True).clamp(min=1e-6)
    return ((weights / weights.sum(0))[..., None, None] * away).sum(0)


def _fit_shape(points: Tensor, variance: Tensor, model: LandmarkModel) -> tuple[Tensor, Tensor]:
    """Return mean (K, 2) and covariance (2 K, 2 K) of points (N, K, 2) of a variance (N, K)."""
    seen, noise = points.flatten(1), torch.diag_embed(variance.repeat_interleave(2, 1))
    mean, covariance = model.mean.flatten(), model.covariance
    for _ in range(FITS):
        gain = torch.linalg.solve(covariance + noise, covariance.expand_as(noise)).mT
        true = mean + (gain @ (seen - mean)[..., None])[..., 0]
        mean = true.mean(0)
        spread = (true - mean).mT @ (true - mean) + (covariance - gain @ covariance).sum(0)
        covariance = (spread + PRIOR_FILMS * model.covariance) / (len(points) + PRIOR_FILMS)
    return mean.reshape(-1, 2), covariance
