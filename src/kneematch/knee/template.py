"""Templates: cut out of the film that they were drawn on, or made of another program's drawing."""

import math
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import torch
from torch import Tensor

from kneematch.errors import SettingsError, TemplateError
from kneematch.films.annotation import (
    BOXES,
    FINDS,
    KNEES,
    NEEDED_BOXES,
    ONE,
    SUFFIX,
    Annotation,
    annotate,
    annotate_part,
    annotation_problems,
    enlarged,
    load_annotation,
    save_annotation,
)
from kneematch.films.files import check_suffix, refuse_existing
from kneematch.films.radiograph import Point, Radiograph
from kneematch.films.read import read_isolated
from kneematch.films.shapes import Shape, read_shapes
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
PLATEAU: Final = "plateau_"  # beginning of the names of the tibial plateau's two margins
SHAPES: Final = f"boxes called {', '.join(NEEDED_BOXES)}, or two points called {PLATEAU}*"

TemplateFile = str | os.PathLike[str] | Annotation


class DrawnTemplate(NamedTuple):
    """A template and where it was drawn."""

    template: Template
    image: Tensor  # (H, W), the image of the knee
    theta: Tensor  # (4,), the template's pose in it
    part: BodyPart | None = None  # what is looked for on whole films, instead of knees


def read_template(template: TemplateFile, *, located: bool) -> DrawnTemplate:
    """Cut the fine box of an annotation, or of a template.json, out of its film.

    `located` cuts it out of the view around the located knee instead of the film's half.

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
    if located:
        pixels = film_tensor(film)
        knee = knee_in_box(locate_knees([pixels], builtin_locator())[0], drawn.fine)
        if knee is None or knee.mirrored != drawn.mirrored:
            raise TemplateError(
                f"{drawn.film}: The network sees no tibial plateau whose middle lies in the fine "
                "box. Draw the box around it, or use detect --method search."
            )
        view = view_of_knee(pixels, knee)
    else:
        view = annotated_half(film, drawn)
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
            f"{math.degrees(MAX_ROTATION):.0f} are possible. Annotate another film, or use "
            "detect --method search."
        )
    if problem:
        raise TemplateError(f"{annotation.film}: {problem}")


def import_template(
    path: str | os.PathLike[str],
    film: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    side: str | None = None,
    names: Sequence[str] = (),
    find: str | None = None,
    force: bool = False,
) -> Annotation:
    """Write the template.json of boxes or landmarks drawn on a film with another program.

    Boxes are called fine, red, green and, if drawn, coarse; all points become landmarks. Without
    boxes, two points whose names begin with `plateau_`, the margins of the tibial plateau, place
    them. Of other parts than knees one box is enough, called fine or anything else.

    Args:
        path: COCO (.json), 3D Slicer (.mrk.json) or .pts.
        film: the film that was drawn on.
        out: template file to write.
        side: half of the picture that the knee is in; shapes in the other one are left out.
        names: names of the points of a .pts file.
        find: knees, or on whole films one, pair (and its mirror image) or any number. Default:
            knees for all boxes of a knee; else pair if the film shows two, or one.
        force: replace a template that exists.

    Raises:
        TemplateError: the shapes cannot serve as a template.
        SettingsError: `out` exists, or its name is not that of a template.
        FilmError: the film cannot be read.
    """
    path, film, out = Path(path), Path(film), Path(out)
    check_suffix(out, SUFFIX, "a template")
    if side not in (None, *SIDES):
        raise SettingsError("--side must be one of left, right.")
    if find not in (None, *FINDS):
        raise SettingsError(f"--find must be one of {', '.join(FINDS)}.")
    if out.exists() and not force:
        refuse_existing(out)
    if path.exists() and out.exists() and out.samefile(path):
        raise SettingsError(f"{out} is the drawing itself. Choose another name for the template.")
    pixels = read_isolated(film)
    shapes = read_shapes(path, film.name, mm_per_px=pixels.mm_per_px, point_names=names)
    try:
        annotation = _annotation(shapes, film, pixels.size[1] / 2, side, find)
    except TemplateError as error:
        raise TemplateError(f"{path}: {error.message}") from error
    if annotation.find != KNEES:
        cut_from_view(whole_view(pixels, annotation), annotation)
        if find is None:
            from kneematch.knee.detector import choose_find  # which imports this module

            annotation = replace(annotation, find=choose_find(annotation))
        save_annotation(annotation, out)
        return annotation
    (knees,) = locate_knees([film_tensor(pixels)], builtin_locator())
    if side is None and len(knees) == 1 and knee_in_box(knees, annotation.fine):
        # A film of one knee, which may lie in either half, or across both.
        annotation = replace(annotation, side=SIDES[not knees[0].mirrored])
        cut_from_view(view_of_knee(film_tensor(pixels), knees[0]), annotation)
    else:
        cut_template(pixels, annotation)  # which checks that the boxes lie in their half
    save_annotation(annotation, out)
    return annotation


def _annotation(
    shapes: list[Shape], film: Path, middle: float, side: str | None, find: str | None
) -> Annotation:
    """Return the annotation of shapes on a film, which has its middle at x = `middle`."""
    if side is not None:
        shapes = [shape for shape in shapes if SIDES[shape.centre_x >= middle] == side]
    twice = [name for name, count in Counter(shape.name for shape in shapes).items() if count > 1]
    if twice:
        raise TemplateError(f"{twice[0]} was drawn more than once. Choose one knee with --side.")
    boxes: dict[str, Box] = {s.name: s.values for s in shapes if s.is_box and s.name in BOXES}  # type: ignore[misc]
    points: dict[str, Point] = {s.name: s.values for s in shapes if not s.is_box}  # type: ignore[misc]
    areas = [shape.values for shape in shapes if shape.is_box]
    if find not in (None, KNEES) or (find is None and len(areas) == 1):
        if len(areas) != 1 and "fine" not in boxes:
            raise TemplateError(f"A template needs one box, but there are {len(areas)}.")
        fine: Box = boxes.get("fine", areas[0])  # type: ignore[arg-type]
        return annotate_part(film, find or ONE, fine, points, middle)
    used = boxes.keys() | points.keys()  # a set, for drawings of many thousand points
    drawn = [shape for shape in shapes if shape.name in used]
    if not drawn:
        names = ", ".join(sorted({shape.name for shape in shapes})) or "nothing"
        raise TemplateError(f"A template needs {SHAPES}, but there is {names}.")
    centre = boxes.get("fine", drawn[0].values)
    chosen = side or SIDES[(centre[0] + centre[-2]) / 2 >= middle]
    annotation = _boxes(boxes, points, film, chosen)
    for _, problem in annotation_problems(annotation):
        raise TemplateError(problem)
    return annotation


def _boxes(boxes: dict[str, Box], points: dict[str, Point], film: Path, side: str) -> Annotation:
    """Return the annotation of the boxes or, without any, of the plateau's two margins."""
    margins = sorted(point for name, point in points.items() if name.startswith(PLATEAU))
    if not boxes and len(margins) == 2:
        return replace(annotate(film, side, *margins), landmarks=points)
    missing = [name for name in NEEDED_BOXES if name not in boxes]
    if missing:
        raise TemplateError(
            f"There is no {missing[0]} box, and a template needs {SHAPES}. The points of a .pts "
            "file are named with --names."
        )
    coarse = boxes.get("coarse") or enlarged(boxes["fine"])
    return Annotation(film, side, boxes["fine"], coarse, boxes["red"], boxes["green"], points)
