"""The review page: HTTP API to look through the knees of a run and decide about them."""

from dataclasses import asdict
from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import Depends, FastAPI, Query
from starlette.responses import FileResponse, JSONResponse, Response

from kneematch.errors import FilmError, SettingsError
from kneematch.knee.detection import Detection
from kneematch.run.apply import apply_review
from kneematch.run.correction import area_of
from kneematch.run.decisions import REJECTED, Area
from kneematch.web.bone_outlines import Borders, borders_of
from kneematch.web.detections_table import RowQuery
from kneematch.web.films import film_jpeg, thumbnail_key
from kneematch.web.review_session import DecisionRequest, ReviewSession, Side, finite
from kneematch.web.server import page_app

MAX_ROWS: Final = 400  # in one response


def review_app(session: ReviewSession) -> FastAPI:
    """Return the app of the review page."""
    app = page_app("review.html")
    _add_reading_routes(app, session)
    _add_writing_routes(app, session)
    return app


def _add_reading_routes(app: FastAPI, session: ReviewSession) -> None:
    Row = Annotated[int, Depends(session.check_row)]

    @app.get("/api/start")
    def start() -> dict[str, Any]:
        return {
            "run": session.out.resolve().name,
            "rows": len(session.table),
            "reasons": session.table.reason_counts,
            "last": session.last_row(),
            "counts": session.counts(),
            "no_loss": session.no_loss_reason,
            "measured": session.outliner is not None,
            "warning": session.warning,
        }

    @app.get("/api/order")
    def order(query: Annotated[RowQuery, Depends(RowQuery)]) -> dict[str, Any]:
        return {"rows": session.order(query)}

    @app.get("/api/rows")
    def rows(numbers: Annotated[str, Query(pattern=r"^\d{1,9}(,\d{1,9})*$")]) -> list[Any]:
        wanted = [int(number) for number in numbers.split(",")]
        if len(wanted) > MAX_ROWS:
            raise SettingsError(f"{len(wanted)} rows at once; expected at most {MAX_ROWS}")
        return [_card(session, session.check_row(row)) for row in wanted]

    @app.get("/api/areas/{row}")
    def areas(row: Row) -> dict[str, Any]:
        height, width = session.film(row).size
        knees = {other: session.knee(other) for other in session.same_film(row)}
        kept = [knee for other, knee in knees.items() if session.state(other) != REJECTED]
        has_knee = bool(session.knees[row][1])
        return {
            "size": [width, height],
            "knee": _shape(session.knee(row)) if has_knee else None,
            "found": _shape(session.found(row)) if has_knee else None,
            "others": [knee.corners.tolist() for other, knee in knees.items() if other != row],
            "lateralities": {knee.side: knee.laterality for knee in kept},
            "free": session.free_sides(row),
        }

    @app.get("/api/draft/{row}/{side}")
    def draft(row: Row, side: Side) -> dict[str, Any]:
        return _shape(session.draft(row, side))

    @app.get("/api/outlines/{row}")
    def outlines(row: Row) -> dict[str, Any]:
        knee = session.outlined(row)
        measures = session.check_outliner().measures_table(knee)
        return {"borders": borders_of(knee), "measures": measures}

    @app.get("/thumbnail/{row}/{key}")  # the key makes the address change with the picture
    def thumbnail(row: Row, key: str) -> Response:
        return FileResponse(session.thumbnail(row), media_type="image/jpeg")

    @app.get("/film/{row}")
    def film(row: Row) -> Response:
        return Response(film_jpeg(session.film(row)), media_type="image/jpeg")

    @app.exception_handler(FilmError)
    async def unreadable(request: object, error: FilmError) -> Response:
        return JSONResponse({"problem": str(error)}, HTTPStatus.NOT_FOUND)


def _add_writing_routes(app: FastAPI, session: ReviewSession) -> None:
    Row = Annotated[int, Depends(session.check_row)]

    @app.post("/api/loss/{row}")
    def loss(row: Row, area: Area, side: Side | None = None) -> dict[str, float | None]:
        return {"loss": session.loss(row, area, side)}

    @app.post("/api/measures/{row}")
    def measures(row: Row, drawn: Borders) -> dict[str, Any]:
        knee = session.redrawn(row, drawn)
        return {"measures": session.check_outliner().measures_table(knee)}

    @app.post("/api/decide")
    def decide(request: DecisionRequest) -> dict[str, Any]:
        return {"row": _card(session, session.decide(request)), "counts": session.counts()}

    @app.post("/api/undo")
    def undo() -> dict[str, Any]:
        undone, row = session.undo()
        gone = row is None or (session.state(row) == "undecided" and row >= len(session.table))
        return {
            "undone": undone and {"film": undone.film, "side": undone.side},
            "row": None if gone or row is None else _card(session, row),
            "counts": session.counts(),
        }

    @app.post("/api/apply")
    def apply() -> dict[str, Any]:
        result = apply_review(session.out, root=session.root)
        return {"out": str(session.out), "message": result.message, "problems": result.problems}


def _card(session: ReviewSession, row: int) -> dict[str, Any]:
    """Return what the gallery shows of a row."""
    film, side = session.knees[row]
    path = film.encode("utf-8", "replace").decode()
    name = film.removeprefix(session.folder).encode("utf-8", "replace").decode()
    shown = {"row": row, "film": path, "name": name, "side": side}
    if not side:
        reasons, key = ["no knee found"], thumbnail_key(film, None)
        return shown | {"state": "no_knee", "reasons": reasons, "key": key, "laterality": ""}
    knee = session.knee(row)
    in_table = row < len(session.table)
    return shown | {
        "laterality": knee.laterality,
        "loss": finite(knee.loss),
        "found_loss": finite(session.table.numbers["loss"][row]) if in_table else None,
        "reasons": session.table.reasons[row] if in_table else ["added in the review"],
        "state": session.state(row),
        "key": thumbnail_key(film, knee),
    }


def _shape(knee: Detection) -> dict[str, Any]:
    """Return area, height, landmarks, laterality and drawn outlines of a knee."""
    return {
        **asdict(area_of(knee)),
        "height_px": knee.height_px,
        "landmarks": {name: list(point) for name, point in knee.landmarks.items()},
        "laterality": knee.laterality,
        "side": knee.side,
        "outlines": borders_of(knee),
    }
