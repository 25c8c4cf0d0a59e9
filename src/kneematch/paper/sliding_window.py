"""The baseline: scikit-image's match_template at five scales (paper, Sect. 6)."""

from collections.abc import Callable
from typing import Any, Final

import torch
from numpy.typing import NDArray
from torch import Tensor

from kneematch.paper.energy import Problem
from kneematch.paper.pose import admissible_pose
from kneematch.sampling import resize

# Width of the patch over that of the image. The paper gives only the number of scales; joint areas
# on films take 0.3 to 0.75 of the half, which five scales cover in steps of 1.26.
SCALES: Final = (0.30, 0.38, 0.48, 0.60, 0.75)


def sliding_window(problem: Problem, *, scales: tuple[float, ...] = SCALES) -> Tensor:
    """Return each side's best position at the scale of the lowest left + right loss: (N, S, 4).

    There is no regularisation and no rotation. The best position is that of the highest or, on an
    image negative, the lowest correlation with the whole template, by their losses.
    """
    theta = torch.stack([_best_positions(problem, scale) for scale in scales])  # (K, 2, N, S, 4)
    theta = admissible_pose(theta, problem.height_ratio).to(problem.images)
    loss = torch.stack([problem.losses(one) for one in theta.flatten(0, 1)])
    loss, polarity = loss.reshape(theta.shape[:-1]).min(1)
    theta = theta.gather(1, polarity[:, None, ..., None].expand(-1, -1, -1, -1, 4))[:, 0]
    best = loss.sum(-1).argmin(0)  # (N,)
    return theta[best, torch.arange(len(best), device=best.device)]


def _best_positions(problem: Problem, scale: float) -> Tensor:
    """Return the poses of highest and of lowest correlation at one scale, (2, N, S, 4)."""
    from skimage.feature import match_template  # slow to import

    match: Callable[..., NDArray[Any]] = match_template
    image = problem.template.image.double().cpu()
    height, width = image.shape
    columns = max(round(width / scale), width)
    rows = max(round(columns * problem.image_aspect), height)
    images = resize(problem.images.cpu(), (rows, columns)).double()  # (N, S, rows, columns)
    poses = []
    for each in images.flatten(0, 1):
        response = match(each.numpy(), image.numpy())
        for index in (response.argmax(), response.argmin()):
            y, x = divmod(int(index), response.shape[1])
            centre = (2 * x + width) / columns - 1, (2 * y + height) / rows - 1
            poses.append([width / columns, *centre, 0.0])
    n, sides = problem.images.shape[:2]
    return torch.tensor(poses, dtype=torch.float64).reshape(n, sides, 2, 4).permute(2, 0, 1, 3)
