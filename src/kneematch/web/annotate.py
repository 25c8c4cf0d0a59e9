"""The annotation page: HTTP API to draw a template on a film and to preview it on others."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from fastapi import FastAPI
from starlette.responses import JSONResponse, Response, StreamingResponse

from kneematch.detection.detector import Detector
from kneematch.detection.overlay import draw_detections
from kneematch.errors import FilmError, TemplateError
from kneematch.matching.annotation import Annotation, save_annotation
from kneematch.matching.template import Template, cut_from_half
from kneematch.solvers.exhaustive_search import exhaustive_search
from kneematch.web.auth import AuthMiddleware, Credentials
from kneematch.web.drawing import (
    Drawing,
    SplitFilm,
    default_coarse,
    find_problems,
    template_pictures,
    to_annotation,
)
from kneematch.web.films import data_url, film_jpeg, locked_cache, read_film
from kneematch.web.initial_annotation import detected_annotation, initial_annotation
from kneematch.web.server import page_app

CONFLICT: Final = 409
PREVIEW_FILMS: Final = 12
PREVIEW_PX: Final = 320

GetFilm = Callable[[], SplitFilm]


def annotate_app(
    film: Path, template: Path, preview_films: Sequence[str | Path], credentials: Credentials
) -> AuthMiddleware:
    """Return the app of the annotation page.

    Args:
        film: The film to draw on.
        template: The file that Save writes.
        preview_films: Films to preview the template on; a dozen are used, evenly spaced.
        credentials: Port and token of the page.
    """
    app = page_app("annotate.html")
    radiograph = read_film(film)
    split_once = locked_cache(lambda _: SplitFilm.from_film(film, radiograph), 1)
    jpeg_once = locked_cache(lambda _: film_jpeg(radiograph), 1)
    detect_once = locked_cache(lambda _: detected_annotation(split_once(0)), 1)
    preview = Preview(_evenly_spaced(preview_films, PREVIEW_FILMS))
    # Started now, so that the picture is ready when the browser asks for it.
    threading.Thread(target=jpeg_once, args=(0,), daemon=True).start()

    @app.get("/api/start")
    def start() -> dict[str, Any]:
        height, width = radiograph.size
        return {
            "film": film.name,
            "size": [width, height],
            "template": str(template),
            "preview_films": len(preview.films),
        }

    @app.get("/film.jpg")
    def film_picture() -> Response:
        return Response(jpeg_once(0), media_type="image/jpeg")

    @app.get("/api/initial")
    def initial() -> dict[str, Any]:
        split_film = split_once(0)
        drawn, source = initial_annotation(split_film, template, lambda: detect_once(0))
        return {"drawing": _to_drawing(drawn, split_film), "source": source}

    _add_routes(app, lambda: split_once(0), template, preview)
    return AuthMiddleware(app, credentials)


def _add_routes(app: FastAPI, get_film: GetFilm, template: Path, preview: "Preview") -> None:
    """Add the routes that receive a drawing."""

    @app.post("/api/check")
    def check(drawing: Drawing) -> dict[str, Any]:
        film = get_film()
        annotation = to_annotation(drawing, film)
        problems = find_problems(annotation, film)
        return {
            "side": annotation.side,
            "coarse": annotation.coarse,
            "problems": problems,
            "template": None if problems else template_pictures(annotation, film),
        }

    @app.post("/api/preview")
    def run_preview(drawing: Drawing) -> Response:
        annotation = _valid_annotation(drawing, get_film())
        cut, _ = cut_from_half(get_film().half(annotation.side), annotation)
        lines = (json.dumps(result) + "\n" for result in preview.run(cut))
        return StreamingResponse(lines, media_type="application/x-ndjson")

    @app.post("/api/save")
    def save(drawing: Drawing, overwrite: bool = False) -> Response:
        annotation = _valid_annotation(drawing, get_film())
        if template.exists() and not overwrite:
            return JSONResponse({"problem": f"{template} exists already"}, CONFLICT)
        save_annotation(annotation, template)
        return JSONResponse({"saved": str(template)})


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


def _evenly_spaced(films: Sequence[str | Path], most: int) -> list[Path]:
    count = min(most, len(films))
    return [Path(films[k * len(films) // count]) for k in range(count)]


class Preview:
    """Runs a template on a few films; a new run stops the one before."""

    def __init__(self, films: Sequence[Path]) -> None:
        self.films = films
        self._latest = 0
        # Held while a film is searched, never while a result is sent: the page may be closed.
        self._searching = threading.Lock()

    def run(self, template: Template) -> Iterator[dict[str, Any]]:
        """Yield the result of each film; stop early when a later run begins."""
        self._latest += 1
        own_number = self._latest
        # `Detector.load` would take seconds to load the networks of the consistency check.
        detector = Detector(template, exhaustive_search, "search")
        for number, path in enumerate(self.films):
            with self._searching:
                if own_number != self._latest:
                    return
                result = _detect(detector, path)
            yield {"number": number, "film": path.name, **result}


def _detect(detector: Detector, path: Path) -> dict[str, Any]:
    """Return a picture and the losses of a film, or the problem with it."""
    try:
        film = read_film(path)
        knees = detector.detect(film)
    except FilmError as error:
        return {"problem": str(error).removeprefix(f"{path}: ")}
    picture = draw_detections(film, knees, longest_px=PREVIEW_PX, thumbnail=True)
    losses = [{"side": knee.side, "loss": knee.loss} for knee in knees]
    return {"picture": data_url(picture), "knees": losses}
