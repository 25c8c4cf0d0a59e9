"""The paper's baseline: scikit-image's match_template at five scales (paper, Sect. 6)."""

from collections.abc import Callable
from typing import Any, Final

import torch
from numpy.typing import NDArray
from torch import Tensor

from kneematch.paper.energy import losses
from kneematch.paper.pose import pose_from_vector, vector_from_pose
from kneematch.paper.problem import Problem
from kneematch.sampling import resize

# Width of the patch over that of the half. The paper gives only the number of scales. Five scales
# over the whole range of D, 0.15 to 0.95, would be a factor 1.6 apart and miss most knees; joint
# areas on films take 0.3 to 0.75 of the half, which five scales cover in steps of 1.26.
SCALES: Final = (0.30, 0.38, 0.48, 0.60, 0.75)


def sliding_window(problem: Problem, *, scales: tuple[float, ...] = SCALES) -> Tensor:
    """Return each side's best position at the scale of the lowest left + right loss, v (N, S, 4).

    As in the paper, there is no regularisation and no rotation. The best position is that of the
    highest or, on an image negative, the lowest correlation with the whole template, whichever has
    the lower loss. It runs on the CPU, whatever the device of the halves.
    """
    theta = torch.stack([_best_positions(problem, scale) for scale in scales])  # (K, 2, N, S, 4)
    v = vector_from_pose(theta, problem.height_ratio).to(problem.halves)
    each = pose_from_vector(v, problem.height_ratio).flatten(0, 1)
    loss = torch.stack([losses(problem.terms, one) for one in each]).reshape(v.shape[:-1])
    loss, polarity = loss.min(1)
    v = v.gather(1, polarity[:, None, ..., None].expand(-1, -1, -1, -1, 4))[:, 0]
    best = loss.sum(-1).argmin(0)  # (N,)
    return v[best, torch.arange(len(best), device=best.device)]


def _best_positions(problem: Problem, scale: float) -> Tensor:
    """Return the poses of highest and of lowest correlation at one scale, (2, N, S, 4)."""
    from skimage.feature import match_template  # slow to import

    match: Callable[..., NDArray[Any]] = match_template
    image = problem.template.image.double().cpu()
    height, width = image.shape
    columns = max(round(width / scale), width)
    rows = max(round(columns * problem.image_aspect), height)
    halves = resize(problem.halves.cpu(), (rows, columns)).double()  # (N, S, rows, columns)
    poses = []
    for half in halves.flatten(0, 1):
        response = match(half.numpy(), image.numpy())
        for index in (response.argmax(), response.argmin()):
            y, x = divmod(int(index), response.shape[1])
            centre = (2 * x + width) / columns - 1, (2 * y + height) / rows - 1
            poses.append([width / columns, *centre, 0.0])
    n, sides = problem.halves.shape[:2]
    return torch.tensor(poses, dtype=torch.float64).reshape(n, sides, 2, 4).permute(2, 0, 1, 3)
