"""Find landmarks to the point: patches from coarse to fine, and a Gaussian model of their places.

Each landmark of a template is looked for by normalised cross-correlation of the local contrast
around it, at three resolutions and several scales and rotations. Where the other landmarks lie
says where one is to be expected, by a Gaussian process as in the morphable models of Luethi et al.
(2018); this corrects those that matched elsewhere. How far a patch of the film leads back to
another place of the template tells how uncertain its landmark is.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from kneematch.sampling import axes_to_film, resize, sample
from kneematch.search.robust_energy import local_contrast

AREA_PX: Final = 448  # root of the area's height times width in its frame
MARGIN_PX: Final = 160  # how far the frame reaches beyond the area
FADE: Final = 0.15  # patches whose deviation is below this share of the usual one fade out
PATCH: Final = 40  # pixels a side, at every level
AROUND: Final = 16  # pixels that are kept around a patch, in which others are found
STEPS: Final = (4, 2, 1)  # frame pixels per pixel of a level
UPRIGHT: Final = ((1.0, 0.0),)  # scale and rotation
VARIANTS: Final = tuple((s, math.radians(a)) for s in (1.0, 0.92, 1.09) for a in (0, -8, 8))
# At each level: pixels that are searched to either side, and the cost of lying SPREAD_PX frame
# pixels from where a landmark is expected.
FIRST_PASS: Final = ((16, 0.1), (8, 0.3), (8, 0.3))
SECOND_PASS: Final = ((6, 1.0),) * 3
SPREAD_PX: Final = 64.0
# Displacements of landmarks before training: deviation of a common shift, of stretching and
# shearing, of a displacement that neighbours within REACH_PX share, and of each by itself.
SHIFT_PX, STRETCH, LOCAL_PX, REACH_PX, OWN_PX = 20.0, 0.1, 8.0, 140.0, 2.0
MATCH_PX: Final = 3.0  # deviation of a match that leads back to its landmark
BACK_PX: Final = 5.0  # the variance of one that leads back this far away is doubled
OUTLIER_PX: Final = 20.0  # the same for one this far from where the others expect it
UNKNOWN: Final = 1e6  # variance of a landmark that is left out
TINY: Final = 1e-6

Levels = tuple[Tensor, ...]  # images at the resolutions of STEPS


@dataclass(frozen=True, eq=False)
class LandmarkModel:
    """What K landmarks of an area look like, and where in its frame they lie."""

    patches: Levels  # (K, PATCH + 2 * AROUND, PATCH + 2 * AROUND) each, local contrast
    mean: Tensor  # (K, 2), frame pixels (x, y) from the middle
    covariance: Tensor  # (2 * K, 2 * K) of x and y of the first landmark, of the second, ...

    @cached_property
    def variants(self) -> Levels:
        """The patches at all scales and rotations, (K, V, PATCH, PATCH) each."""
        return tuple(
            _patches(level[:, None], torch.zeros_like(self.mean)) for level in self.patches
        )


@dataclass(frozen=True, slots=True, eq=False)
class Landmarks:
    """Where K landmarks lie in the frame of an area."""

    points: Tensor  # (K, 2), pixels from the middle
    variance: Tensor  # (K,), squared pixels, by matching back and by where the others expect them


def area_frame(pixels: Tensor, to_film: Tensor) -> tuple[Levels, Tensor]:
    """Return the local contrast of an area and its surroundings, and the map of its frame.

    Args:
        pixels: (H, W), the film.
        to_film: (3, 3), from the area's [-1, 1]^2 to film pixels.

    Returns:
        Images (h, w), by level; the map (3, 3) from frame pixels, from the middle, to the film's.
    """
    half = to_film[:2, :2].norm(dim=0)  # half the width and half the height
    unit = 2 * float(half.prod().sqrt()) / AREA_PX  # film pixels per frame pixel
    across, down = (unit * to_film[:2, :2] / half).T.tolist()
    frame = axes_to_film(across, down, to_film[:2, 2].tolist())
    reach = torch.ceil((half / unit + MARGIN_PX) / STEPS[0]) * STEPS[0]
    columns, rows = (round(2 * value) for value in reach.tolist())
    size = torch.tensor([pixels.shape[1], pixels.shape[0]], dtype=torch.float64)
    if unit > 1:  # with anti-aliasing
        width, height = (max(round(side / unit), 1) for side in size.tolist())
        pixels = resize(pixels, (height, width))
    matrix = 2 * frame[:2] / size[:, None]
    matrix[:, :2] *= reach
    matrix[:, 2] -= 1
    image = local_contrast(sample(pixels, matrix.to(pixels), (rows, columns)))
    return tuple(F.avg_pool2d(image[None], step)[0] for step in STEPS), frame


def landmark_model(levels: Levels, points: Tensor) -> LandmarkModel:
    """Return the model of landmarks at points (K, 2) of a single frame, the template's."""
    shared = torch.exp(-(torch.cdist(points, points) ** 2) / (2 * REACH_PX**2))
    kernel = SHIFT_PX**2 + STRETCH**2 * points @ points.mT + LOCAL_PX**2 * shared
    kernel += OWN_PX**2 * torch.eye(len(points))
    return LandmarkModel(cut_patches(levels, points), points, torch.kron(kernel, torch.eye(2)))


def cut_patches(levels: Levels, points: Tensor) -> Levels:
    """Return what lies around points (K, 2) of a frame, as a `LandmarkModel` keeps it."""
    pairs = zip(levels, STEPS, strict=True)
    size = PATCH + 2 * AROUND
    return tuple(_patches(image, points / step, size, UPRIGHT)[:, 0] for image, step in pairs)


@torch.no_grad()
def find_landmarks(levels: Levels, model: LandmarkModel) -> Landmarks:
    """Find the landmarks of a model in the frame of an area."""
    first = _search(levels, model, model.mean, FIRST_PASS)
    expected, _ = _expect(levels, model, first)
    points = _search(levels, model, expected, SECOND_PASS)
    return Landmarks(points, _expect(levels, model, points)[1])


def _search(
    levels: Levels, model: LandmarkModel, expected: Tensor, searches: tuple[tuple[int, float], ...]
) -> Tensor:
    """Return the points (K, 2) of best match, from coarse to fine around the expected ones."""
    points = expected
    for image, patches, step, (reach, cost) in zip(
        levels, model.variants, STEPS, searches, strict=True
    ):
        windows = _patches(image, points / step, PATCH + 2 * reach, UPRIGHT)[:, 0]
        offset = step * torch.arange(-reach, reach + 1)
        x, y = (points - expected).mT[..., None] + offset  # (K, 2 * reach + 1) each
        apart = x[:, None, :].square() + y[:, :, None].square()
        scores = _correlate(windows, patches) - cost * apart / SPREAD_PX**2
        points = points + step * _peak(scores)
    return points


def _expect(levels: Levels, model: LandmarkModel, points: Tensor) -> tuple[Tensor, Tensor]:
    """Return where landmarks found at points (K, 2) are to be expected by all others, (K, 2).

    Also returns the variance (K,) of the points, by matching back and by these expectations.
    """
    back = torch.zeros(len(points))
    for image, known, step in zip(levels, model.patches, STEPS, strict=True):
        moved = step * _peak(_correlate(known, _patches(image, points / step)))
        back += moved.square().sum(-1) / len(STEPS)
    matched = MATCH_PX**2 * (1 + back / BACK_PX**2)
    surprise = (points - _conditional(model, points, matched)).square().sum(-1)
    variance = matched * (1 + surprise / OUTLIER_PX**2)
    return _conditional(model, points, variance), variance


def _conditional(model: LandmarkModel, points: Tensor, variance: Tensor) -> Tensor:
    """Return the expectation (K, 2) of each landmark, given all others with a variance (K,)."""
    count = len(points)
    noise = variance.expand(count, count).clone().fill_diagonal_(UNKNOWN).repeat_interleave(2, 1)
    away = (points - model.mean).flatten().expand(count, -1)
    weights = torch.linalg.solve(model.covariance + torch.diag_embed(noise), away)  # (K, 2 K)
    own = model.covariance.reshape(count, 2, 2 * count)
    expected: Tensor = model.mean + (own @ weights[..., None])[..., 0]
    return expected


def _patches(
    image: Tensor,
    points: Tensor,
    size: int = PATCH,
    variants: tuple[tuple[float, float], ...] = VARIANTS,
) -> Tensor:
    """Cut patches (K, V, size, size) around points (K, 2), in pixels from the image's middle.

    The image (H, W) is the same for all, or each landmark has its own, (K, 1, H, W).
    """
    turns = [
        [[s * math.cos(a), -s * math.sin(a)], [s * math.sin(a), s * math.cos(a)]]
        for s, a in variants
    ]
    linear = size * torch.tensor(turns).expand(len(points), -1, 2, 2)
    centres = 2 * points[:, None, :, None].expand(-1, len(variants), 2, 1)
    side = torch.tensor([[image.shape[-1]], [image.shape[-2]]])
    return sample(image, torch.cat([linear, centres], dim=-1) / side, (size, size))


def _correlate(windows: Tensor, patches: Tensor) -> Tensor:
    """Return the best NCC (K, h, w) of variants of patches (K, V, s, s) in windows (K, H, W)."""
    count, variants, size, _ = patches.shape
    patches = patches - patches.mean((-2, -1), keepdim=True)
    patches = patches / patches.norm(dim=(-2, -1), keepdim=True).clamp(min=FADE)
    kernels = patches.reshape(count * variants, 1, size, size)
    products = F.conv2d(windows[None], kernels, groups=count)[0]
    mean, square = (
        F.avg_pool2d(F.avg_pool2d(each, (size, 1), stride=1), (1, size), stride=1)
        for each in (windows, windows.square())
    )
    spread = (square - mean.square()).clamp(min=0) + FADE**2 * windows.var()
    best = products.reshape(count, variants, *spread.shape[1:]).amax(1)
    return best / (size * spread.sqrt()).clamp(min=TINY)  # windows of a single grey match nothing


def _peak(scores: Tensor) -> Tensor:
    """Return the places (K, 2) of the maxima of scores (K, n, n), in pixels from the middle.

    They are those of the parabolas through the neighbouring scores.
    """
    count = scores.shape[-1]
    place = scores.flatten(1).argmax(1)
    x, y = place % count, place // count
    every = torch.arange(len(scores))
    found = []
    for at, line in ((x, scores[every, y]), (y, scores[every, :, x])):
        inner = at.clamp(1, count - 2)
        before, peak, after = (line[every, inner + shift] for shift in (-1, 0, 1))
        bend = (2 * peak - before - after).clamp(min=TINY)
        found.append(at + ((after - before) / (2 * bend)).clamp(-0.5, 0.5) - count // 2)
    return torch.stack(found, dim=-1)
