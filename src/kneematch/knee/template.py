"""Templates: cut out of the film that they were drawn on."""

import math
import os
from collections.abc import Iterable
from dataclasses import replace
from typing import Final, NamedTuple

import torch
from torch import Tensor

from kneematch.errors import TemplateError
from kneematch.films.annotation import KNEES, Annotation, annotation_problems, load_annotation
from kneematch.films.radiograph import Radiograph
from kneematch.films.read import read_isolated
from kneematch.knee.body_part import BodyPart, body_part, whole_view
from kneematch.knee.knee_images import film_tensor, knee_images
from kneematch.models.locator import KneeLocation, builtin_locator, locate_knees
from kneematch.paper.pose import MAX_ROTATION, SCALE_MIN, SCALE_RANGE
from kneematch.paper.split import HALF_ASPECT, SIDES, split
from kneematch.paper.template import Box, Template, box_pose, cut
from kneematch.sampling import View, compose, transform
from kneematch.search.robust_energy import with_local_contrast

SMALLEST_WINDOW: Final = 4  # pixels of the image; smaller windows correlate with anything
SMALLEST_CONTRAST: Final = 1e-4  # share of the film's range; below it there is only rounding
EDGE_SLACK: Final = 0.01  # how far, in [-1, 1], a box may lie past the edge of the image

TemplateFile = str | os.PathLike[str] | Annotation


class DrawnTemplate(NamedTuple):
    """A template and where it was drawn."""

    template: Template
    image: Tensor  # (H, W), the image of the knee
    theta: Tensor  # (4,), the template's pose in it
    part: BodyPart | None = None  # what is looked for on whole films, instead of knees


def read_template(template: TemplateFile) -> DrawnTemplate:
    """Cut the fine box of an annotation, or of a template.json, out of its film.

    It is cut out of the view around the located knee, or of the whole film for other parts.

    Raises:
        TemplateError: the box cannot serve as a template, or has no located knee in it.
    """
    drawn = annotation_of(template)
    for _, problem in annotation_problems(drawn):
        raise TemplateError(f"{drawn.film}: {problem}")
    film = read_isolated(drawn.film)
    if drawn.find != KNEES:
        view = whole_view(film, drawn)
        cut, theta = cut_from_view(view, drawn)
        return DrawnTemplate(cut, view.pixels, theta, body_part(film, drawn, float(theta[0])))
    pixels = film_tensor(film)
    knee = knee_in_box(locate_knees([pixels], builtin_locator())[0], drawn.fine)
    if knee is None or knee.mirrored != drawn.mirrored:
        raise TemplateError(
            f"{drawn.film}: The network sees no tibial plateau whose middle lies in the fine box. "
            "Draw the box around it, or look for it as another part of the body."
        )
    view = view_of_knee(pixels, knee)
    cut, theta = cut_from_view(view, drawn)
    return DrawnTemplate(cut, view.pixels, theta)


def annotation_of(template: TemplateFile) -> Annotation:
    """Return an annotation, or the one of a template.json."""
    return template if isinstance(template, Annotation) else load_annotation(os.fspath(template))


def knee_in_box(knees: Iterable[KneeLocation], box: Box) -> KneeLocation | None:
    """Return the first knee whose plateau has its middle in a box; None without one."""
    x0, y0, x1, y1 = box
    return next((knee for knee in knees if x0 < knee.x < x1 and y0 < knee.y < y1), None)


def view_of_knee(pixels: Tensor, knee: KneeLocation) -> View:
    """Return the view (400, 250) of one knee of a film (H, W); see `knee_images`."""
    views = knee_images(pixels, [knee])
    return View(views.pixels[0], views.to_film[0])


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
    for name, part in ((box, ...), ("red", template.red), ("green", template.green)):
        shown = template.image[part]
        if min(shown.shape) < SMALLEST_WINDOW:
            raise TemplateError(f"{annotation.film}: The {name} box is too small. Enlarge it.")
        if shown.max() - shown.min() < SMALLEST_CONTRAST:  # nothing correlates with clipped air
            raise TemplateError(
                f"{annotation.film}: The {name} box shows a single grey. Move it onto the joint, "
                "or annotate another film."
            )
    from_film = torch.linalg.inv(compose(view.to_film, matrix))
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
            if annotation.find == KNEES
            else f"The {name} box leaves the film. Move the box."
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
            f"{math.degrees(MAX_ROTATION):.0f} are possible. Annotate another film."
        )
    if problem:
        raise TemplateError(f"{annotation.film}: {problem}")
