"""The review page: HTTP API to look through the knees of a run and decide about them."""

import math
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from fastapi import Depends, FastAPI, Query
from starlette.responses import FileResponse, JSONResponse, Response

from kneematch.detection.detection import Detection
from kneematch.detection.detector import prepare
from kneematch.errors import FilmError, SettingsError
from kneematch.io.radiograph import Radiograph
from kneematch.web import review_log
from kneematch.web.auth import AuthMiddleware, Credentials
from kneematch.web.correction import load_loss_meter, move_detection, write_reviewed_table
from kneematch.web.detections_table import STATES, RowQuery, read_detections_table
from kneematch.web.films import CACHED_FILMS, film_jpeg, make_thumbnail, read_film, thumbnail_key
from kneematch.web.review_log import CORRECTED, Area, Decision, ReviewLog, area_of_row
from kneematch.web.server import page_app

REVIEWED_FILE: Final = "detections.reviewed.csv"
THUMBNAILS: Final = "review-cache"
MAX_ROWS: Final = 400  # in one response


@dataclass(frozen=True, slots=True)
class DecisionRequest:
    """Body of a request: what the user decides about a row."""

    row: int
    state: Literal["accepted", "rejected", "corrected"]
    area: Area | None = None  # of a correction


class RunFolder:
    """The folder of a run: everything that the review page reads and writes."""

    def __init__(self, out: Path, root: Path) -> None:
        """Open the folder of a run.

        Args:
            out: The folder that `kneematch detect` wrote.
            root: Folder of films whose path in the table is relative.

        Raises:
            SettingsError: The folder cannot be reviewed.
        """
        if not out.is_dir():
            raise SettingsError(f"{out}: no such folder; expected that of a run; check the path")
        self.out, self.root = out, root
        self.table = read_detections_table(out)
        self.loss_meter, self.no_loss_reason = load_loss_meter(out)
        self.thumbnails = path_inside(out, THUMBNAILS)
        self.log = ReviewLog(path_inside(out, review_log.FILE_NAME), self.table)
        self.table.select(RowQuery(), self.log.states)  # fills the table's caches
        self._prepare = lru_cache(CACHED_FILMS)(prepare)

    def check_row(self, row: int) -> int:
        """Return a row's number; raise SettingsError if there is no such row."""
        if not 0 <= row < len(self.table):
            raise SettingsError(
                f"row {row}; expected one of {len(self.table)}; load the page again"
            )
        return row

    def film(self, row: int) -> Radiograph:
        """Return the film of a row."""
        return read_film(self.root / self.table.text["film"][row])

    def knee(self, row: int) -> Detection:
        """Return the knee of a row, at its corrected position if there is one."""
        decision = self.log.get(row)
        found = self.table.detection(row)
        if decision is None or decision.state != CORRECTED:
            return found
        loss = math.nan if decision.loss is None else decision.loss
        return replace(move_detection(found, decision.area), loss=loss, review="no", reason="")

    def card(self, row: int) -> dict[str, Any]:
        """Return what the gallery shows of a row."""
        knee, film = self.knee(row), self.table.text["film"][row]
        return {
            "row": row,
            "film": film.encode("utf-8", "replace").decode(),
            "side": knee.side,
            "laterality": knee.laterality,
            "loss": _finite(knee.loss),
            "found_loss": _finite(self.table.numbers["loss"][row]),
            "reasons": self.table.reasons[row],
            "state": STATES[self.log.states[row]],
            "key": thumbnail_key(film, knee),
        }

    def thumbnail(self, row: int) -> Path:
        """Return the file of a row's thumbnail; make those of its film if necessary."""
        path = self._thumbnail_path(row)
        if not path.exists():
            film = self.film(row)
            for other in self.table.same_film(row):
                make_thumbnail(self._thumbnail_path(other), film, self.knee(other))
        return path

    def loss(self, row: int, area: Area) -> float | None:
        """Return the loss of the run's template at another place, or None if it is unknown."""
        if self.loss_meter is None:
            return None
        film = self._prepare(self.film(row), self.loss_meter.room)
        return self.loss_meter.loss(film, move_detection(self.table.detection(row), area))

    def decide(self, request: DecisionRequest) -> None:
        """Record a decision."""
        row = self.check_row(request.row)
        if (request.state == CORRECTED) != (request.area is not None):
            raise SettingsError(f"{request.state}; expected an area with a correction only")
        area, loss = area_of_row(self.table, row), _finite(self.table.numbers["loss"][row])
        if request.area is not None:
            area, loss = request.area, self.loss(row, request.area)
        self.log.add(Decision(row, request.state, area, loss))

    def _thumbnail_path(self, row: int) -> Path:
        key = thumbnail_key(self.table.text["film"][row], self.knee(row))
        return self.thumbnails / f"{key}.jpg"


def path_inside(folder: Path, name: str) -> Path:
    """Return a path in a folder.

    Raises:
        SettingsError: It is a link that leads out of the folder.
    """
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise SettingsError(
            f"{path}: a link that leads out of {folder}; expected a file in it; remove the link"
        )
    return path


def review_app(run: RunFolder, credentials: Credentials) -> AuthMiddleware:
    """Return the app of the review page."""
    app = page_app("review.html")
    _add_reading_routes(app, run)
    _add_writing_routes(app, run)
    return AuthMiddleware(app, credentials)


def _add_reading_routes(app: FastAPI, run: RunFolder) -> None:
    Row = Annotated[int, Depends(run.check_row)]

    @app.get("/api/start")
    def start() -> dict[str, Any]:
        return {
            "run": run.out.resolve().name,
            "rows": len(run.table),
            "reasons": run.table.reason_counts,
            "last": run.log.last,
            "counts": run.log.counts(),
            "no_loss": run.no_loss_reason,
            "warning": run.log.warning,
        }

    @app.get("/api/order")
    def order(query: Annotated[RowQuery, Depends(RowQuery)]) -> dict[str, Any]:
        return {"rows": run.table.select(query, run.log.states).tolist()}

    @app.get("/api/rows")
    def rows(numbers: Annotated[str, Query(pattern=r"^\d{1,9}(,\d{1,9})*$")]) -> list[Any]:
        wanted = [int(number) for number in numbers.split(",")]
        if len(wanted) > MAX_ROWS:
            raise SettingsError(f"{len(wanted)} rows at once; expected at most {MAX_ROWS}")
        return [run.card(run.check_row(row)) for row in wanted]

    @app.get("/api/areas/{row}")
    def areas(row: Row) -> dict[str, Any]:
        height, width = run.film(row).size
        others = (run.knee(other) for other in run.table.same_film(row) if other != row)
        return {
            "size": [width, height],
            "area": _area(run.knee(row)),
            "found": _area(run.table.detection(row)),
            "others": [knee.corners.tolist() for knee in others],
        }

    @app.get("/thumbnail/{row}/{key}")  # the key makes the address change with the picture
    def thumbnail(row: Row, key: str) -> Response:
        return FileResponse(run.thumbnail(row), media_type="image/jpeg")

    @app.get("/film/{row}")
    def film(row: Row) -> Response:
        return Response(film_jpeg(run.film(row)), media_type="image/jpeg")

    @app.exception_handler(FilmError)
    async def unreadable(request: object, error: FilmError) -> Response:
        return JSONResponse({"problem": str(error)}, HTTPStatus.NOT_FOUND)


def _add_writing_routes(app: FastAPI, run: RunFolder) -> None:
    @app.post("/api/loss/{row}")
    def loss(row: Annotated[int, Depends(run.check_row)], area: Area) -> dict[str, float | None]:
        return {"loss": run.loss(row, area)}

    @app.post("/api/decide")
    def decide(request: DecisionRequest) -> dict[str, Any]:
        run.decide(request)
        return {"row": run.card(request.row), "counts": run.log.counts()}

    @app.post("/api/undo")
    def undo() -> dict[str, Any]:
        row = run.log.undo()
        return {"row": None if row is None else run.card(row), "counts": run.log.counts()}

    @app.post("/api/export")
    def export() -> dict[str, Any]:
        path = path_inside(run.out, REVIEWED_FILE)
        return {"path": str(path), "rows": write_reviewed_table(path, run.table, run.log)}


def _area(knee: Detection) -> dict[str, float]:
    area = Area(*knee.centre, knee.width_px, knee.rotation_deg)
    return {**asdict(area), "height_px": knee.height_px}


def _finite(value: float) -> float | None:
    """Return a number as JSON can hold it."""
    return float(value) if math.isfinite(value) else None
