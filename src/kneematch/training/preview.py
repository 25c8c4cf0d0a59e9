"""A picture of the first training films with the poses that a network predicts."""

from dataclasses import replace
from typing import Final

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from kneematch.geometry.pose import pose_matrix
from kneematch.geometry.view import transform
from kneematch.io.display import LEFT_COLOUR, RIGHT_COLOUR, to_grey8
from kneematch.networks.model_file import PHASES
from kneematch.training.dataset import FilmsInMemory
from kneematch.training.distributed import Group
from kneematch.training.initial_weights import Networks
from kneematch.training.phase import predict_poses
from kneematch.training.two_phases import Task, coarse_phase, fine_phase

FILMS: Final = 4
GAP_PX: Final = 6
HEIGHT_PX: Final = 400  # of a half
OUTLINE: Final = ((-1.0, -1.0), (1.0, -1.0), (1.0, 1.0), (-1.0, 1.0), (-1.0, -1.0))


def draw_preview(task: Task, networks: Networks, phase: str) -> Image.Image:
    """Draw the poses that the network of a phase predicts on the first films."""
    halves = task.films.halves(torch.arange(min(FILMS, len(task.films))))
    labels = None if task.pseudo_labels is None else task.pseudo_labels[: len(halves)]
    few, alone = replace(task, films=FilmsInMemory(halves), pseudo_labels=labels), Group()
    number = PHASES.index(phase)
    data, _ = coarse_phase(few) if number == 0 else fine_phase(few, networks[0], alone)
    theta = predict_poses(networks[number], data, alone)
    return draw_poses(halves, theta, data.template.aspect)


def draw_poses(halves: Tensor, theta: Tensor, aspect: float) -> Image.Image:
    """Draw halves side by side with the outline of a template on each.

    Args:
        halves: (K, 2, H, W).
        theta: (K, 2, 4), poses of the template.
        aspect: height over width of the template.
    """
    colours = (LEFT_COLOUR, RIGHT_COLOUR) * len(halves)
    images = [
        _draw_pose(half, pose, aspect, colour)
        for half, pose, colour in zip(
            halves.flatten(0, 1), theta.flatten(0, 1), colours, strict=True
        )
    ]
    width = images[0].width
    sheet = Image.new("RGB", (len(images) * (width + GAP_PX) - GAP_PX, HEIGHT_PX))
    for number, image in enumerate(images):
        sheet.paste(image, (number * (width + GAP_PX), 0))
    return sheet


def _draw_pose(
    pixels: Tensor, theta: Tensor, aspect: float, colour: tuple[int, int, int]
) -> Image.Image:
    height, width = pixels.shape
    matrix = pose_matrix(theta.cpu().double(), aspect, height / width)
    size = round(HEIGHT_PX * width / height), HEIGHT_PX
    corners = (transform(matrix, torch.tensor(OUTLINE)) + 1) / 2 * torch.tensor(size)
    picture = Image.fromarray(to_grey8(pixels.cpu().numpy())).resize(size).convert("RGB")
    points = [(float(x), float(y)) for x, y in corners]
    ImageDraw.Draw(picture).line(points, fill=colour, width=2)
    return picture
