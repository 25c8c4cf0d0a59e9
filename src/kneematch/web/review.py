"""The review page: HTTP API to look through the knees of a run and decide about them."""

from dataclasses import asdict
from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import Depends, FastAPI, Path, Query
from starlette.responses import JSONResponse, Response

from kneematch.errors import FilmError, SettingsError
from kneematch.knee.decision import Area
from kneematch.knee.detection import REJECTED, Detection
from kneematch.run.apply import apply_review
from kneematch.web.bone_outlines import Borders, borders_of
from kneematch.web.films import film_jpeg
from kneematch.web.knee_rows import Row, RowQuery, count_reasons, count_states, row_order
from kneematch.web.review_session import DecisionRequest, ReviewSession, Side, finite
from kneematch.web.server import page_app

MAX_ROWS: Final = 400  # in one response
Keys = Annotated[str, Query(pattern=r"^-?\d{1,9}(,-?\d{1,9})*$")]
FilmNumber = Annotated[int, Path(ge=0, lt=10**9)]


def review_app(session: ReviewSession) -> FastAPI:
    """Return the app of the review page."""
    app = page_app("review.html")
    _add_reading_routes(app, session)
    _add_writing_routes(app, session)
    return app


def _add_reading_routes(app: FastAPI, session: ReviewSession) -> None:
    OneRow = Annotated[Row, Depends(session.row)]

    @app.get("/api/start")
    def start() -> dict[str, Any]:
        with session.run() as run:
            counts, reasons, last = count_states(run), count_reasons(run), run.newest_decision()
        return {
            "run": session.out.resolve().name,
            "reasons": reasons,
            "last": last and last[1],
            "counts": counts,
            "no_loss": session.no_loss_reason,
            "measured": session.outliner is not None,
            "warning": session.warning,
        }

    @app.get("/api/order")
    def order(query: Annotated[RowQuery, Depends(RowQuery)]) -> Response:
        with session.run() as run:
            keys = row_order(run, query)
        return JSONResponse({"rows": keys})  # quicker than FastAPI's encoder

    @app.get("/api/rows")
    def rows(numbers: Keys) -> list[Any]:
        wanted = [int(number) for number in numbers.split(",")]
        if len(wanted) > MAX_ROWS:
            raise SettingsError(f"At most {MAX_ROWS} rows can be requested at once.")
        return [_card(session, row) for row in session.rows(wanted)]

    @app.get("/api/areas/{row}")
    def areas(row: OneRow) -> dict[str, Any]:
        height, width = session.film(row).size
        others = session.same_film(row)
        kept = [other.knee for other in others if other.state != REJECTED]
        return {
            "size": [width, height],
            "knee": _shape(row.knee) if row.has_area else None,
            "found": _shape(row.start) if row.has_area else None,
            "others": [each.knee.corners.tolist() for each in others if each.key != row.key],
            "lateralities": {knee.side: knee.laterality for knee in kept},
            "free": session.free_sides(row),
        }

    @app.get("/api/draft/{row}/{side}")
    def draft(row: OneRow, side: Side) -> dict[str, Any]:
        return _shape(session.draft(row, side))

    @app.get("/api/outlines/{row}")
    def outlines(row: OneRow) -> dict[str, Any]:
        measures = session.outlined(row)
        table = session.check_outliner().table(measures)
        return {"borders": borders_of(measures), "measures": table}

    @app.get("/thumbnail/{film}")
    def thumbnail(film: FilmNumber) -> Response:
        with session.run() as run:
            picture = run.thumbnail(film)
        return Response(picture or b"", 200 if picture else 404, media_type="image/webp")

    @app.get("/film/{row}")
    def film(row: OneRow) -> Response:
        return Response(film_jpeg(session.film(row)), media_type="image/jpeg")

    @app.exception_handler(FilmError)
    async def unreadable(request: object, error: FilmError) -> Response:
        return JSONResponse({"problem": str(error)}, HTTPStatus.NOT_FOUND)


def _add_writing_routes(app: FastAPI, session: ReviewSession) -> None:
    OneRow = Annotated[Row, Depends(session.row)]

    def counts() -> dict[str, int]:
        with session.run() as run:
            return count_states(run)

    @app.post("/api/loss/{row}")
    def loss(row: OneRow, area: Area, side: Side | None = None) -> dict[str, float | None]:
        return {"loss": session.loss(row, area, side)}

    @app.post("/api/measures/{row}")
    def measures(row: OneRow, drawn: Borders) -> dict[str, Any]:
        return {"measures": session.check_outliner().table(session.redrawn(row, drawn))}

    @app.post("/api/decide")
    def decide(request: DecisionRequest) -> dict[str, Any]:
        row = session.row(session.decide(request))
        return {"row": _card(session, row), "counts": counts()}

    @app.post("/api/undo")
    def undo() -> dict[str, Any]:
        row = session.undo()
        return {
            "undone": row and {"film": _printable(row.path), "side": row.side},
            "row": _card(session, row) if row and row.has_area else None,
            "counts": counts(),
        }

    @app.post("/api/apply")
    def apply() -> dict[str, Any]:
        result = apply_review(session.out, root=session.root)
        return {"out": str(session.out), "message": result.message, "problems": result.problems}


def _card(session: ReviewSession, row: Row) -> dict[str, Any]:
    """Return what the gallery shows of a row."""
    height, width = row.size
    shown: dict[str, Any] = {
        "row": row.key,
        "picture": row.film,
        "size": [width, height],
        "film": _printable(row.path),
        "name": _printable(row.path.removeprefix(session.folder)),
        "side": row.side,
        "state": row.state,
    }
    if not row.has_area:
        return shown | {"reasons": ["no knee found"], "laterality": ""}
    knee, found = row.knee, row.found
    return shown | {
        "corners": knee.corners.round(2).tolist(),
        "laterality": knee.laterality,
        "loss": finite(knee.loss),
        "found_loss": None if found is None else finite(found.loss),
        "review": knee.needs_review,
        "reasons": ["added in the review"] if found is None else found.review_reasons,
    }


def _printable(path: str) -> str:
    return path.encode("utf-8", "replace").decode()


def _shape(knee: Detection) -> dict[str, Any]:
    """Return area, height, landmarks, laterality and drawn outlines of a knee."""
    drawn = knee.measures is not None and knee.measures.outlines.corrected
    return {
        **asdict(Area.from_detection(knee)),
        "height_px": knee.height_px,
        "landmarks": {name: list(point) for name, point in knee.landmarks.items()},
        "laterality": knee.laterality,
        "side": knee.side,
        "outlines": borders_of(knee.measures) if knee.measures and drawn else None,
    }
