"""import_template: a template.json from boxes or landmarks that were drawn with other programs."""

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Final

from kneematch.errors import SettingsError, TemplateError
from kneematch.films.annotation import (
    BOXES,
    SUFFIX,
    Annotation,
    Box,
    annotate,
    annotation_problems,
    enlarged,
    save_annotation,
)
from kneematch.films.files import check_suffix, refuse_existing
from kneematch.films.radiograph import Point, Radiograph
from kneematch.films.read import read_isolated
from kneematch.films.shapes import Shape, read_shapes
from kneematch.knee.import_config import ImportConfig
from kneematch.knee.knee_images import film_tensor
from kneematch.knee.methods import knee_in_box, view_of_knee
from kneematch.knee.template import cut_from_view, cut_template
from kneematch.models.locator import builtin_locator, locate_knees
from kneematch.paper.split import LEFT, RIGHT, SIDES

PLATEAU: Final = "plateau_"  # beginning of the names of the tibial plateau's two margins
NEEDED: Final = ("fine", "red", "green")
SHAPES: Final = f"boxes called {', '.join(NEEDED)}, or two points called {PLATEAU}*"


def import_template(
    path: str | os.PathLike[str],
    film: str | os.PathLike[str],
    out: str | os.PathLike[str],
    config: ImportConfig | None = None,
) -> Annotation:
    """Write the template.json of boxes or landmarks drawn on a film with another program.

    Boxes are called fine, red, green and, if drawn, coarse; all points become landmarks. Without
    boxes, two points whose names begin with `plateau_`, the margins of the tibial plateau, place
    them.

    Args:
        path: COCO or VIA (.json), 3D Slicer (.mrk.json) or .pts.
        film: the film that was drawn on.
        out: template file to write.
        config: settings.

    Returns:
        The annotation that was written.

    Raises:
        TemplateError: the shapes cannot serve as a template.
        SettingsError: `out` exists, or its name is not that of a template.
        FilmError: the film cannot be read.
    """
    config, path, out = config or ImportConfig(), Path(path), Path(out)
    check_suffix(out, SUFFIX, "a template")
    if out.exists() and not config.force:
        refuse_existing(out)
    if path.exists() and out.exists() and out.samefile(path):
        raise SettingsError(f"{out} is the drawing itself. Choose another name for the template.")
    pixels = read_isolated(Path(film))
    shapes = read_shapes(
        path,
        Path(film).name,
        mm_per_px=pixels.mm_per_px,
        point_names=config.names,
        points_in_mm=config.mm,
    )
    try:
        annotation = _annotation(shapes, Path(film), pixels, config.side)
    except TemplateError as error:
        raise TemplateError(f"{path}: {error}") from error
    (knees,) = locate_knees([film_tensor(pixels)], builtin_locator())
    if config.side is None and len(knees) == 1 and knee_in_box(knees, annotation.fine):
        # A film of one knee, which may lie in either half, or across both.
        annotation = replace(annotation, side=SIDES[LEFT if knees[0].mirrored else RIGHT])
        cut_from_view(view_of_knee(film_tensor(pixels), knees[0]), annotation)
    else:
        cut_template(pixels, annotation)  # which checks that the boxes lie in their half
    save_annotation(annotation, out)
    return annotation


def _annotation(
    shapes: list[Shape], film: Path, pixels: Radiograph, side: str | None
) -> Annotation:
    middle = pixels.size[1] / 2
    if side is not None:
        shapes = [shape for shape in shapes if SIDES[shape.centre_x >= middle] == side]
    twice = [name for name, count in Counter(shape.name for shape in shapes).items() if count > 1]
    if twice:
        raise TemplateError(f"{twice[0]} was drawn more than once. Choose one knee with --side.")
    boxes: dict[str, Box] = {s.name: s.values for s in shapes if s.is_box and s.name in BOXES}  # type: ignore[misc]
    points: dict[str, Point] = {s.name: s.values for s in shapes if not s.is_box}  # type: ignore[misc]
    drawn = [shape for shape in shapes if shape.name in (*boxes, *points)]
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
    missing = [name for name in NEEDED if name not in boxes]
    if missing:
        raise TemplateError(
            f"There is no {missing[0]} box, and a template needs {SHAPES}. The points of a .pts "
            "file are named with --names."
        )
    coarse = boxes.get("coarse") or enlarged(boxes["fine"])
    return Annotation(film, side, boxes["fine"], coarse, boxes["red"], boxes["green"], points)
