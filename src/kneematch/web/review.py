"""The page on which a run is reviewed: what it asks for, and what it is told."""

from pathlib import Path
from typing import Annotated, Any, Final

from fastapi import Depends, FastAPI
from fastapi import Query as Parameter
from starlette.responses import FileResponse, JSONResponse, Response

from kneematch.detection.detection import Detection
from kneematch.errors import FilmError, SettingsError
from kneematch.web.auth import Door, Guard
from kneematch.web.detections_table import Query
from kneematch.web.films import picture
from kneematch.web.review_log import Area
from kneematch.web.run_folder import RunFolder, Verdict
from kneematch.web.serve import page_app

MOST_ROWS: Final = 400  # told at once
NOT_FOUND: Final = 404
# A picture's address names its content, so a browser may keep it.
KEPT: Final = {"Cache-Control": "private, max-age=86400, immutable"}


def review_app(run: RunFolder, door: Door) -> Guard:
    """Look through a run, and decide."""
    app = page_app("review.html")
    _add_rows(app, run)
    _add_pictures(app, run)
    _add_decisions(app, run)
    return Guard(app, door)


def _add_rows(app: FastAPI, run: RunFolder) -> None:
    @app.get("/api/start")
    def start() -> dict[str, Any]:
        return {
            "run": run.out.resolve().name,
            "rows": len(run.rows),
            "reasons": run.rows.frequent_reasons,
            "last": run.decisions.last,
            "counts": run.decisions.counts(),
            "no_loss": run.why_no_loss,
        }

    @app.get("/api/order")
    def order(query: Annotated[Query, Depends(Query)]) -> dict[str, Any]:
        return {"rows": run.rows.ordered(query, run.decisions.states).tolist()}

    @app.get("/api/rows")
    def rows(wanted: Annotated[str, Parameter(pattern=r"^\d{1,9}(,\d{1,9})*$")]) -> list[Any]:
        numbers = [int(part) for part in wanted.split(",")]
        if len(numbers) > MOST_ROWS:
            raise SettingsError(f"{len(numbers)} rows at once; expected at most {MOST_ROWS}")
        for row in numbers:
            run.check(row)
        return [run.told(row) for row in numbers]

    @app.get("/api/areas/{row}")
    def areas(row: int) -> dict[str, Any]:
        run.check(row)
        height, width = run.film(row).size
        same_film = run.rows.by_film[run.rows.text(row, "film")]
        others = [run.found(other).corners.tolist() for other in same_film if other != row]
        told = {"size": [width, height], "area": _area(run.found(row)), "others": others}
        return told | {"found": _area(run.rows.detection(row))}


def _add_pictures(app: FastAPI, run: RunFolder) -> None:
    @app.get("/thumbnail/{row}/{key}")
    def thumbnail(row: int, key: str) -> Response:
        run.check(row)
        return FileResponse(run.thumbnail(row), media_type="image/jpeg", headers=KEPT)

    @app.get("/film/{row}")
    def film(row: int) -> Response:
        run.check(row)
        return Response(picture(run.film(row)), media_type="image/jpeg")

    @app.exception_handler(FilmError)
    async def unreadable(request: object, error: FilmError) -> Response:
        return JSONResponse({"problem": str(error)}, NOT_FOUND)


def _add_decisions(app: FastAPI, run: RunFolder) -> None:
    @app.post("/api/loss/{row}")
    def loss(row: int, area: Area) -> dict[str, float | None]:
        run.check(row)
        return {"loss": run.loss(row, area)}

    @app.post("/api/decide")
    def decide(verdict: Verdict) -> dict[str, Any]:
        run.decide(verdict)
        return {"row": run.told(verdict.row), "counts": run.decisions.counts()}

    @app.post("/api/undo")
    def undo() -> dict[str, Any]:
        row = run.decisions.undo()
        told = None if row is None else run.told(row)
        return {"row": told, "counts": run.decisions.counts()}

    @app.post("/api/export")
    def export() -> dict[str, Any]:
        path, count = run.export()
        return {"path": str(path), "rows": count}


def open_run(out: Path, root: Path) -> RunFolder:
    """The folder of a run, checked before a page is shown."""
    if not out.is_dir():
        raise SettingsError(f"{out}: no such folder; expected that of a run; check the path")
    return RunFolder(out, root)


def _area(found: Detection) -> dict[str, float]:
    """As the page draws it."""
    return {
        "centre_x_px": found.centre[0],
        "centre_y_px": found.centre[1],
        "width_px": found.width_px,
        "height_px": found.height_px,
        "rotation_deg": found.rotation_deg,
    }
