"""Cut the templates of an annotation out of its film."""

import math
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from kneematch.errors import TemplateError
from kneematch.films.annotation import Annotation
from kneematch.films.radiograph import Radiograph
from kneematch.knee.knee_images import film_tensor
from kneematch.paper.pose import MAX_ROTATION, SCALE_MIN, SCALE_RANGE
from kneematch.paper.split import HALF_ASPECT, SIDES, split
from kneematch.paper.template import Template, Window, box_pose, cut
from kneematch.sampling import View, compose, transform
from kneematch.search.robust_energy import with_local_contrast

SMALLEST_WINDOW: Final = 4  # pixels of the image; smaller windows correlate with anything
SMALLEST_CONTRAST: Final = 1e-4  # share of the film's range; below it there is only rounding
EDGE_SLACK: Final = 0.01  # how far, in [-1, 1], a box may lie past the edge of the image


def cut_template(
    film: Radiograph, annotation: Annotation, box: str = "fine"
) -> tuple[Template, Tensor]:
    """Cut the fine or coarse template out of its film; return it and its pose theta (4,) there."""
    return cut_from_view(annotated_half(film, annotation), annotation, box)


def annotated_half(film: Radiograph, annotation: Annotation) -> View:
    """Return the half image (H, W) of a film that an annotation was drawn on."""
    halves, side = split(film_tensor(film)), SIDES.index(annotation.side)
    return View(halves.pixels[side], halves.to_film[side])


def cut_from_view(view: View, annotation: Annotation, box: str = "fine") -> tuple[Template, Tensor]:
    """Cut a template, with landmarks and local contrast, out of an image (H, W) of a knee.

    Raises:
        TemplateError: the boxes cannot serve as a template.
    """
    _check_pose(view, annotation, box)
    template, theta, matrix = cut(view, getattr(annotation, box), annotation.red, annotation.green)
    from_film = torch.linalg.inv(compose(view.to_film, matrix))
    for name, window in (("red", template.red), ("green", template.green)):
        _check_size(annotation, name, window, from_film, template.size)
    for name, part in ((box, ...), ("red", template.red), ("green", template.green)):
        shown = template.image[part]
        if shown.max() - shown.min() < SMALLEST_CONTRAST:  # nothing correlates with clipped air
            raise TemplateError(
                f"{annotation.film}: The {name} box shows a single grey. Move it onto the joint, "
                "or annotate another film."
            )
    points = torch.tensor([*annotation.landmarks.values()], dtype=torch.float64).reshape(-1, 2)
    mapped = map(tuple, transform(from_film, points).tolist())
    template = replace(template, landmarks=dict(zip(annotation.landmarks, mapped, strict=True)))
    return with_local_contrast(template, view.pixels, matrix), theta


def _check_pose(view: View, annotation: Annotation, name: str) -> None:
    """Refuse a box that no pose in an image (H, W) can have."""
    theta, height_ratio = box_pose(view, getattr(annotation, name))
    scale, x, y, rotation = theta.tolist()
    width_px = 2 * float(view.to_film[:2, 0].norm())
    largest = SCALE_MIN + SCALE_RANGE
    problem = ""
    if not SCALE_MIN <= scale <= largest:
        problem = (
            f"The {name} box is {scale * width_px:.0f} film pixels wide, but on this film boxes "
            f"must be {SCALE_MIN * width_px:.0f} to {largest * width_px:.0f} wide. Draw another "
            "box or annotate another film."
        )
    elif max(abs(x) + scale, abs(y) + height_ratio * scale) > 1 + EDGE_SLACK:
        problem = (
            f"The {name} box leaves the {annotation.side} half of the film. Move the box, annotate "
            "a film of two knees, or correct 'side' in the template's file."
        )
    # The paper's f >= 1: in a taller shape than the image's, large patches would not fit inside.
    elif 2 * scale * (height_ratio - 1) > EDGE_SLACK:
        problem = (
            f"The {name} box is taller in shape than the half image. Its height must be at most "
            f"{HALF_ASPECT} times its width."
        )
    elif abs(rotation) > MAX_ROTATION:
        problem = (
            f"The knee is rotated by {math.degrees(abs(rotation)):.0f} degrees, but at most "
            f"{math.degrees(MAX_ROTATION):.0f} are possible. Annotate another film, or use "
            "detect --method search."
        )
    if problem:
        raise TemplateError(f"{annotation.film}: {problem}")


def _check_size(
    annotation: Annotation, name: str, window: Window, from_film: Tensor, size: tuple[int, int]
) -> None:
    """Refuse a window of too few pixels of a template of size (height, width)."""
    _, rows, columns = window
    if min(rows.stop - rows.start, columns.stop - columns.start) >= SMALLEST_WINDOW:
        return
    left, top, right, bottom = getattr(annotation, name)
    pixels = 2 / size[1] / abs(from_film[0, 0]), 2 / size[0] / abs(from_film[1, 1])
    least = [round((SMALLEST_WINDOW + 1) * float(pixel)) for pixel in pixels]
    raise TemplateError(
        f"{annotation.film}: The {name} box of {right - left:.0f} x {bottom - top:.0f} film pixels "
        f"is too small. It must have at least {least[0]} x {least[1]}."
    )
