"""The annotation page: HTTP API to draw a template on a film and to preview it on others."""

import json
import shlex
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from fastapi import FastAPI
from starlette.responses import JSONResponse, Response, StreamingResponse

from kneematch.errors import FilmError, TemplateError
from kneematch.films.annotation import SUFFIX, Annotation, save_annotation
from kneematch.films.display import data_url
from kneematch.films.files import check_suffix
from kneematch.knee.detector import Detector
from kneematch.knee.overlay import draw_detections
from kneematch.web.annotation_session import (
    Drawing,
    SplitFilm,
    box_warnings,
    default_coarse,
    find_problems,
    initial_annotation,
    landmark_warnings,
    template_pictures,
    to_annotation,
)
from kneematch.web.films import film_jpeg, read_film
from kneematch.web.server import page_app

PREVIEW_FILMS: Final = 12
PREVIEW_PX: Final = 320


def annotate_app(path: Path, template: Path, preview_films: Sequence[str | Path]) -> FastAPI:
    """Return the app of the annotation page.

    Args:
        path: the film to draw on.
        template: the file that Save writes.
        preview_films: films to preview the template on; a dozen are used, evenly spaced.

    Raises:
        SettingsError: the file's name is not that of a template.
        FilmError: the film cannot be read.
    """
    check_suffix(template, SUFFIX, "a template")
    app = page_app("annotate.html")
    film = SplitFilm.from_film(path, read_film(path))
    count = min(PREVIEW_FILMS, len(preview_films))
    previewed = [Path(preview_films[k * len(preview_films) // count]) for k in range(count)]
    # Made while the browser starts.
    picture = ThreadPoolExecutor(1).submit(film_jpeg, film.film)

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
    def film_picture() -> Response:
        return Response(picture.result(), media_type="image/jpeg")

    @app.get("/api/initial")
    def initial() -> dict[str, Any]:
        drawn, source = initial_annotation(film, template)
        return {"drawing": _to_drawing(drawn, film), "source": source}

    _add_drawing_routes(app, film, template, _previewer(previewed))
    return app


def _add_drawing_routes(
    app: FastAPI,
    film: SplitFilm,
    template: Path,
    preview: Callable[[Annotation], Iterator[dict[str, Any]]],
) -> None:
    """Add the routes that receive a drawing."""

    @app.post("/api/check")
    def check(drawing: Drawing) -> dict[str, Any]:
        annotation = to_annotation(drawing, film)
        problems = find_problems(annotation, film)
        return {
            "side": annotation.side,
            "coarse": annotation.coarse,
            "problems": problems,
            "warnings": landmark_warnings(annotation)
            + ([] if problems else box_warnings(annotation, film)),
            "template": None if problems else template_pictures(annotation, film),
        }

    @app.post("/api/preview")
    def run_preview(drawing: Drawing) -> Response:
        annotation = _valid_annotation(drawing, film)
        lines = (json.dumps(result) + "\n" for result in preview(annotation))
        return StreamingResponse(lines, media_type="application/x-ndjson")

    @app.post("/api/save")
    def save(drawing: Drawing, overwrite: bool = False) -> Response:
        annotation = _valid_annotation(drawing, film)
        if template.exists() and not overwrite:
            return JSONResponse({"problem": f"{template} exists already."}, HTTPStatus.CONFLICT)
        save_annotation(annotation, template)
        files = "FILMS", "--template", str(template), "-o", "found"
        command = shlex.join(["kneematch", "detect", *files])
        return JSONResponse({"saved": str(template), "next": command})


def _valid_annotation(drawing: Drawing, film: SplitFilm) -> Annotation:
    annotation = to_annotation(drawing, film)
    for problem in find_problems(annotation, film):
        raise TemplateError(problem["text"])
    return annotation


def _to_drawing(annotation: Annotation, film: SplitFilm) -> dict[str, Any]:
    """Return an annotation in the form of `Drawing`; a default coarse box is left out."""
    is_default = annotation.coarse == default_coarse(annotation.fine, film.frame(annotation.side))
    values = asdict(annotation)
    drawing = {name: values[name] for name in ("fine", "red", "green", "landmarks")}
    return drawing | {"coarse": None if is_default else annotation.coarse}


def _previewer(films: Sequence[Path]) -> Callable[[Annotation], Iterator[dict[str, Any]]]:
    """Return a function that yields what a template finds on each film; a new call stops others."""
    latest: list[Annotation] = []
    # Held while a film is searched, never while a result is sent: the page may be closed.
    searching = threading.Lock()

    def run(drawn: Annotation) -> Iterator[dict[str, Any]]:
        latest[:] = [drawn]
        detector = Detector.load(template=drawn, device="cpu")
        for number, path in enumerate(films):
            with searching:
                if latest[0] is not drawn:
                    return
                result = _detect(detector, path)
            yield {"number": number, "film": path.name, **result}

    return run


def _detect(detector: Detector, path: Path) -> dict[str, Any]:
    """Return a picture and the losses of a film, or the problem with it."""
    try:
        film = read_film(path)
        knees = detector.detect(film)
    except FilmError as error:
        return {"problem": str(error).removeprefix(f"{path}: ")}
    picture = draw_detections(film, knees, longest_px=PREVIEW_PX, thumbnail=True, reasons=False)
    losses = [{"side": knee.side, "loss": knee.loss} for knee in knees]
    return {"picture": data_url(picture, "png", compress_level=1), "knees": losses}
