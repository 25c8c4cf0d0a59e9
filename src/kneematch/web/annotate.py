"""The page on which a template is drawn: what it asks for, and what it is told."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from fastapi import FastAPI
from starlette.responses import JSONResponse, Response, StreamingResponse

from kneematch.errors import TemplateError
from kneematch.matching.annotation import Annotation, save_annotation
from kneematch.matching.template import cut_from_half
from kneematch.web.auth import Door, Guard
from kneematch.web.drawing import (
    Drawing,
    Subject,
    annotation_of,
    coarse_around,
    problems_of,
    template_pictures,
)
from kneematch.web.films import picture, read_film, remembered
from kneematch.web.initial_annotation import first_guess, from_model
from kneematch.web.preview import Trials
from kneematch.web.serve import page_app

CONFLICT: Final = 409


def annotate_app(film: Path, template: Path, films: Sequence[Path], door: Door) -> Guard:
    """Draw on one film, try on others, and save to one file."""
    app = page_app("annotate.html")
    radiograph = read_film(film)
    split_once = remembered(lambda _: Subject.of(film, radiograph), 1)
    drawn_once = remembered(lambda _: picture(radiograph), 1)
    # Begun now, so that it is there when the browser is.
    threading.Thread(target=drawn_once, args=(0,), daemon=True).start()

    def subject() -> Subject:
        return split_once(0)

    asked_once = remembered(lambda _: from_model(subject()), 1)

    @app.get("/api/start")
    def start() -> dict[str, Any]:
        height, width = radiograph.size
        return {
            "film": film.name,
            "size": [width, height],
            "template": str(template),
            "trial_films": len(films),
        }

    @app.get("/film.jpg")
    def film_picture() -> Response:
        return Response(drawn_once(0), media_type="image/jpeg")

    @app.get("/api/guess")
    def guess() -> dict[str, Any]:
        guessed, source = first_guess(subject(), template, lambda: asked_once(0))
        return {"drawing": _shown(guessed, subject()), "source": source}

    _add_judging(app, subject)
    _add_trials(app, subject, Trials(films))
    _add_saving(app, subject, template)
    return Guard(app, door)


def _add_judging(app: FastAPI, subject: Callable[[], Subject]) -> None:
    @app.post("/api/check")
    def check(drawing: Drawing) -> dict[str, Any]:
        annotation = annotation_of(drawing, subject())
        problems = problems_of(annotation, subject())
        try:
            pictures = template_pictures(annotation, subject())
        except (TemplateError, ValueError, RuntimeError) as error:
            pictures = None
            if not problems:
                raise TemplateError(str(error)) from error
        return {
            "side": annotation.side,
            "coarse": annotation.coarse,
            "problems": problems,
            "template": pictures,
        }


def _add_trials(app: FastAPI, subject: Callable[[], Subject], trials: Trials) -> None:
    @app.post("/api/try")
    def try_it(drawing: Drawing) -> Response:
        annotation = _good(drawing, subject())
        template, _ = cut_from_half(subject().half(annotation.side), annotation)
        return StreamingResponse(_lines(trials.run(template)), media_type="application/x-ndjson")


def _add_saving(app: FastAPI, subject: Callable[[], Subject], template: Path) -> None:
    @app.post("/api/save")
    def save(drawing: Drawing, overwrite: bool = False) -> Response:
        annotation = _good(drawing, subject())
        if template.exists() and not overwrite:
            return JSONResponse({"problem": f"{template} is there already"}, CONFLICT)
        save_annotation(annotation, template)
        return JSONResponse({"saved": str(template)})


def _good(drawing: Drawing, subject: Subject) -> Annotation:
    """The annotation, if nothing is wrong with it."""
    annotation = annotation_of(drawing, subject)
    for problem in problems_of(annotation, subject):
        raise TemplateError(problem["text"])
    return annotation


def _shown(guess: Annotation, subject: Subject) -> dict[str, Any]:
    """As the page draws it: without the coarse box, where that is the usual one."""
    usual = guess.coarse == coarse_around(guess.fine, subject.frame(guess.side))
    plain = asdict(guess)
    shown = {name: plain[name] for name in ("fine", "red", "green", "landmarks")}
    return shown | {"coarse": None if usual else guess.coarse}


def _lines(told: Iterator[dict[str, Any]]) -> Iterator[str]:
    for item in told:
        yield json.dumps(item) + "\n"
