"""The annotation page: draw a template on a film, see its problems, and preview it on others."""

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import torch
from fastapi import Depends, FastAPI
from PIL import Image, ImageDraw
from pydantic import Field
from starlette.responses import JSONResponse, Response, StreamingResponse

from kneematch.errors import FilmError, KneematchError, TemplateError
from kneematch.films.annotation import (
    COARSE_MARGIN,
    KNEES,
    MAX_SCALE_RANGE,
    MAX_TURN_DEG,
    ONE,
    SUFFIX,
    USUAL_SCALE_RANGE,
    USUAL_TURN_DEG,
    Annotation,
    annotate,
    annotate_part,
    annotation_problems,
    find_plateau_margins,
    load_annotation,
    save_annotation,
)
from kneematch.films.files import check_suffix
from kneematch.films.pictures import data_url, encode, to_grey8
from kneematch.films.radiograph import Point, Radiograph
from kneematch.knee.body_part import whole_view
from kneematch.knee.detector import Detector
from kneematch.knee.knee_images import film_tensor
from kneematch.knee.overlay import draw_detections
from kneematch.knee.template import cut_from_view, knee_in_box, view_of_knee
from kneematch.models.locator import KneeLocation, builtin_locator, locate_knees
from kneematch.paper.pose import SCALE_MIN, SCALE_RANGE
from kneematch.paper.split import SIDES, split, symmetry_axis
from kneematch.paper.template import Box
from kneematch.sampling import View, transform
from kneematch.web.server import Window, film_jpeg, page_app, read_film

PREVIEW_FILMS: Final = 12
PREVIEW_PX: Final = 320
RED: Final = (255, 92, 92)
GREEN: Final = (92, 220, 130)
ENLARGEMENT: Final = 2  # pixels of the template's picture per pixel of the half image
SAME_GREY: Final = 0.02  # difference of greys in [0, 1]
MOSTLY: Final = 0.4  # share of a box in one grey; up to 0.2 of a phantom's joint is
PLATEAU_WIDTH: Final = 0.45  # share of the half's width, where no knee was detected

Coordinate = Annotated[float, Field(gt=-1e6, lt=1e6, allow_inf_nan=False)]
BoxField = tuple[Coordinate, Coordinate, Coordinate, Coordinate]
Name = Annotated[str, Field(min_length=1, max_length=40, pattern=r"^[A-Za-z0-9_-]+$")]


@dataclass(frozen=True, slots=True)
class Drawing:
    """Body of a request: boxes [x0, y0, x1, y1] and landmarks [x, y] in film pixels."""

    fine: BoxField
    red: BoxField | None = None  # red and green are drawn on knees only
    green: BoxField | None = None
    coarse: BoxField | None = None
    find: Literal["knees", "one", "pair", "any"] = "knees"
    landmarks: Annotated[dict[Name, tuple[Coordinate, Coordinate]], Field(max_length=50)] = field(
        default_factory=dict
    )
    # Those of the file, which the page does not change.
    scale_range: Annotated[float, Field(ge=1, le=MAX_SCALE_RANGE)] = USUAL_SCALE_RANGE
    turn_deg: Annotated[float, Field(ge=0, le=MAX_TURN_DEG)] = USUAL_TURN_DEG


@dataclass(frozen=True, slots=True, eq=False)
class SplitFilm:
    """The film that is drawn on, its two halves, and what a template is cut from."""

    path: Path
    film: Radiograph
    halves: View  # pixels (2, 800, 500)
    axis_px: float  # x of the line between the halves

    @classmethod
    def from_film(cls, path: Path, film: Radiograph) -> "SplitFilm":
        """Split a film."""
        axis = symmetry_axis(film_tensor(film))
        return cls(path, film, split(film_tensor(film), axis=axis), axis)

    def half(self, side: str) -> View:
        """Return one half image (800, 500)."""
        k = SIDES.index(side)
        return View(self.halves.pixels[k], self.halves.to_film[k])

    def only_knee(self, annotation: Annotation) -> KneeLocation | None:
        """Return the only knee of the film, if the fine box was drawn on it."""
        knees = located_knees(self)
        return knee_in_box(knees, annotation.fine) if len(knees) == 1 else None

    def view(self, annotation: Annotation) -> View:
        """Return the image that a template is cut from: of the only knee, a half, or the film."""
        if annotation.find != KNEES:
            return whole_view(self.film, annotation)
        knee = self.only_knee(annotation)
        if knee is None:
            return self.half(annotation.side)
        return view_of_knee(film_tensor(self.film), knee)

    def frame(self, side: str) -> Box:
        """Return where boxes may lie, in film pixels: in a half, or on the film of one knee."""
        if len(located_knees(self)) == 1:
            height, width = self.film.size
            return 0.0, 0.0, float(width), float(height)
        ends = transform(self.half(side).to_film, torch.tensor([[-1.0, -1.0], [1.0, 1.0]]))
        (xa, y0), (xb, y1) = ends.tolist()
        return min(xa, xb), y0, max(xa, xb), y1


@lru_cache(1)
def located_knees(film: SplitFilm) -> tuple[KneeLocation, ...]:
    """Return where the locator sees knees on a film."""
    return tuple(locate_knees([film_tensor(film.film)], builtin_locator())[0])


def to_annotation(drawing: Drawing, film: SplitFilm) -> Annotation:
    """Return the annotation of a drawing; its side is that of the knee in the fine box.

    Without a knee in the box, it is the half that the box's centre lies in.
    """
    if drawing.find != KNEES:
        middle = film.film.size[1] / 2
        part = annotate_part(film.path, drawing.find, drawing.fine, drawing.landmarks, middle)
        return replace(part, scale_range=drawing.scale_range, turn_deg=drawing.turn_deg)
    fine, knee = drawing.fine, knee_in_box(located_knees(film), drawing.fine)
    right = (fine[0] + fine[2]) / 2 >= film.axis_px if knee is None else not knee.mirrored
    side = SIDES[right]
    empty = min(fine[2] - fine[0], fine[3] - fine[1]) <= 0
    coarse = drawing.coarse or (fine if empty else default_coarse(fine, film.frame(side)))
    red, green = drawing.red or fine, drawing.green or fine
    return Annotation(film.path, side, fine, coarse, red, green, drawing.landmarks)


def to_drawing(annotation: Annotation, film: SplitFilm) -> Drawing:
    """Return the drawing of an annotation, without a coarse box where that is the usual one."""
    is_usual = annotation.coarse == default_coarse(annotation.fine, film.frame(annotation.side))
    values = asdict(annotation) | ({"coarse": None} if is_usual else {})
    return Drawing(**{each.name: values[each.name] for each in fields(Drawing)})


def find_problems(annotation: Annotation, film: SplitFilm) -> list[dict[str, str]]:
    """Return everything that prevents templates from being cut, with the box to correct."""
    found = [{"box": box, "text": text} for box, text in annotation_problems(annotation)]
    if found:
        return found
    one_box = annotation.find != KNEES or film.only_knee(annotation) is not None
    boxes = ("fine",) if one_box else ("fine", "coarse")
    return _cutting_problems(annotation, film.view(annotation), boxes)


def _cutting_problems(
    annotation: Annotation, view: View, boxes: Sequence[str]
) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    for box in boxes:
        try:
            cut_from_view(view, annotation, box)
        except TemplateError as error:
            text = str(error).removeprefix(f"{annotation.film}: ")
            named = re.search(r"[Tt]he (fine|coarse|red|green) box", text)
            problem = {"box": named[1] if named else box, "text": text}
            found += [] if problem in found else [problem]
    return found


def find_warnings(annotation: Annotation, film: SplitFilm, *, valid: bool = True) -> list[str]:
    """Return what to reconsider about landmarks, and about the boxes if they are valid."""
    warnings = [
        f"Landmark {name} lies on the other side in the other half of a film. A name with medial "
        "or lateral holds in both."
        for name in annotation.landmarks
        if re.search("left|right", name, re.IGNORECASE)
    ]
    if not valid:
        return warnings
    template, _ = cut_from_view(film.view(annotation), annotation)
    same = (template.image - template.image.median()).abs() < SAME_GREY
    if same.float().mean() >= MOSTLY:
        warnings += ["The fine box is mostly a single grey, unlike a knee joint. Move the boxes."]
    if annotation.find != KNEES:
        return warnings
    if _cutting_problems(annotation, film.half(annotation.side), ("fine", "coarse")):
        warnings += [
            "The boxes do not lie in one half of the film. detect finds them; train and the "
            "paper's methods need boxes in one half, as on films of both knees."
        ]
    knee = knee_in_box(located_knees(film), annotation.fine)
    if knee is None or knee.mirrored != annotation.mirrored:
        warnings += [
            "The fine box does not hold the middle of a tibial plateau that the network sees, so "
            "that detect refuses it. Draw it around the whole joint, or look for another part."
        ]
    return warnings


def default_coarse(fine: Box, frame: Box) -> Box:
    """Return the fine box enlarged by the usual margin, shifted and shrunk to fit a half."""
    size = [fine[k + 2] - fine[k] for k in (0, 1)]
    space = [frame[k + 2] - frame[k] for k in (0, 1)]
    largest = min((SCALE_MIN + SCALE_RANGE) * space[0] / size[0], space[1] / size[1])
    factor = max(min(COARSE_MARGIN, largest), 1.0)
    start = [(fine[k] + fine[k + 2] - factor * size[k]) / 2 for k in (0, 1)]
    x, y = (min(max(start[k], frame[k]), frame[k + 2] - factor * size[k]) for k in (0, 1))
    # A fine box that leaves the half is reported as such, not as a problem of the coarse box.
    x0, y0 = min(x, fine[0]), min(y, fine[1])
    x1, y1 = max(x + factor * size[0], fine[2]), max(y + factor * size[1], fine[3])
    return round(x0, 1), round(y0, 1), round(x1, 1), round(y1, 1)


def initial_annotation(film: SplitFilm, template: Path) -> tuple[Annotation, str]:
    """Return an annotation to start with, so that most users only adjust it, and its source.

    The source is "file" (the template, if it is there and was drawn on this film), "model" or
    "middle" (boxes in the middle of a half).
    """
    try:
        drawn = load_annotation(template)
        if drawn.film.samefile(film.path):
            return drawn, "file"
    except (KneematchError, OSError):
        pass
    if detected := detected_annotation(film):
        return detected, "model"
    height, width = film.film.size
    x, y = (film.axis_px + width) / 2, height / 2
    reach = PLATEAU_WIDTH * (width - film.axis_px) / 2
    middle = _around_plateau(film, "right", (x - reach, y), (x + reach, y))
    return replace(middle, landmarks={}, find=ONE), "middle"  # no knee is seen


@lru_cache(1)
def detected_annotation(film: SplitFilm) -> Annotation | None:
    """Return boxes around the knee with the lowest loss, valid ones if possible, or None."""
    try:
        found = Detector.load(device="cpu").detect(film.film)
    except KneematchError:  # no built-in model, or a film that it cannot use
        return None
    drawn = []
    for knee in sorted(found, key=lambda knee: knee.loss):
        if margins := find_plateau_margins(knee.landmarks):
            left, right = ((round(x, 1), round(y, 1)) for x, y in sorted(margins))
            drawn.append(_around_plateau(film, knee.side, left, right))
    valid = (each for each in drawn if not find_problems(each, film))
    return next(valid, drawn[0] if drawn else None)


def _around_plateau(film: SplitFilm, side: str, left: Point, right: Point) -> Annotation:
    drawn = annotate(film.path, side, left, right)
    return replace(drawn, coarse=default_coarse(drawn.fine, film.frame(side)))


def template_pictures(annotation: Annotation, film: SplitFilm) -> dict[str, Any]:
    """Return the fine template as it is matched in the left and in the right half of films.

    It is enlarged, with its red and green window and its landmarks.
    """
    template, _ = cut_from_view(film.view(annotation), annotation)
    height, width = template.size
    size = ENLARGEMENT * width, ENLARGEMENT * height
    image = Image.fromarray(to_grey8(template.image.numpy())).resize(size).convert("RGB")
    draw = ImageDraw.Draw(image)
    for (_, rows, columns), colour in ((template.red, RED), (template.green, GREEN)):
        corners = (columns.start, rows.start, columns.stop, rows.stop)
        x0, y0, x1, y1 = (ENLARGEMENT * value for value in corners)
        draw.rectangle((x0, y0, x1 - 1, y1 - 1), outline=colour, width=2 * ENLARGEMENT)
    for x, y in template.landmarks.values():
        px, py, arm = (x + 1) / 2 * size[0], (y + 1) / 2 * size[1], 3 * ENLARGEMENT
        draw.line((px - arm, py, px + arm, py), fill="white")
        draw.line((px, py - arm, px, py + arm), fill="white")
    left = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    x0, y0, x1, y1 = annotation.fine
    return {
        "left": data_url(encode(left, "png", compress_level=1), "png"),
        "right": data_url(encode(image, "png", compress_level=1), "png"),
        "film_size": [round(x1 - x0), round(y1 - y0)],
    }


def annotate_app(path: Path, template: Path, preview_films: Sequence[str | Path]) -> FastAPI:
    """Return the app of the page to draw on the film at `path`; Save writes the file `template`.

    It is previewed on a dozen of `preview_films`, evenly spaced.
    """
    check_suffix(template, SUFFIX, "a template")
    app = page_app("annotate.html")
    film = SplitFilm.from_film(path, read_film(path))
    count = min(PREVIEW_FILMS, len(preview_films))
    previewed = [Path(preview_films[k * len(preview_films) // count]) for k in range(count)]

    @app.get("/api/start")
    def start() -> dict[str, Any]:
        height, width = film.film.size
        return {
            "film": path.name,
            "size": [width, height],
            "axis": film.axis_px,
            "template": str(template),
            "preview_films": count,
        }

    @app.get("/film.jpg")
    def film_picture(window: Annotated[Window, Depends(Window)]) -> Response:
        return Response(film_jpeg(film.film, window), media_type="image/jpeg")

    @app.get("/api/initial")
    def initial() -> dict[str, Any]:
        drawn, source = initial_annotation(film, template)
        return {"drawing": to_drawing(drawn, film), "source": source}

    @app.post("/api/check")
    def check(drawing: Drawing) -> dict[str, Any]:
        annotation = to_annotation(drawing, film)
        problems = find_problems(annotation, film)
        return {
            "side": annotation.side,
            "coarse": annotation.coarse,
            "problems": problems,
            "warnings": find_warnings(annotation, film, valid=not problems),
            "template": None if problems else template_pictures(annotation, film),
        }

    @app.post("/api/preview")
    def run_preview(drawing: Drawing) -> Response:
        detector = Detector.load(template=_valid_annotation(drawing, film), device="cpu")
        lines = (json.dumps(_detect(detector, path)) + "\n" for path in previewed)
        return StreamingResponse(lines, media_type="application/x-ndjson")

    @app.post("/api/save")
    def save(drawing: Drawing, overwrite: bool = False) -> Response:
        annotation = _valid_annotation(drawing, film)
        if template.exists() and not overwrite:
            return JSONResponse({"problem": f"{template} exists already."}, HTTPStatus.CONFLICT)
        save_annotation(annotation, template)
        command = f"kneematch detect FILMS --template {shlex.quote(str(template))} -o found"
        return JSONResponse({"saved": str(template), "next": command})

    return app


def _valid_annotation(drawing: Drawing, film: SplitFilm) -> Annotation:
    annotation = to_annotation(drawing, film)
    for problem in find_problems(annotation, film):
        raise TemplateError(problem["text"])
    return annotation


def _detect(detector: Detector, path: Path) -> dict[str, Any]:
    """Return the name, a picture and the losses of a film, or the problem with it."""
    try:
        film = read_film(path)
        knees = detector.detect(film)
    except FilmError as error:
        return {"film": path.name, "problem": str(error).removeprefix(f"{path}: ")}
    if not knees:
        return {"film": path.name, "problem": detector.nothing_found(film.size)}
    picture = draw_detections(film, knees, longest_px=PREVIEW_PX, thumbnail=True, caption=False)
    losses = [{"side": knee.side, "loss": knee.loss} for knee in knees]
    image = data_url(encode(picture, "png", compress_level=1), "png")
    return {"film": path.name, "picture": image, "knees": losses}
