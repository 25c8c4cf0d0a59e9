"""The review page: HTTP API to look through the knees of a run and decide about them."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from fastapi import Depends, FastAPI, Query
from starlette.responses import FileResponse, JSONResponse, Response

from kneematch.detection.detection import Detection
from kneematch.detection.detector import PreparedFilm
from kneematch.errors import FilmError, SettingsError
from kneematch.io.radiograph import Radiograph
from kneematch.web import correction, review_log, thumbnails
from kneematch.web.auth import AuthMiddleware, Credentials
from kneematch.web.correction import load_loss_meter, move_detection, write_reviewed_table
from kneematch.web.detections_table import STATES, RowQuery, read_detections_table
from kneematch.web.films import film_jpeg, locked_cache, read_film
from kneematch.web.review_log import CORRECTED, Area, Decision, ReviewLog, area_of_row
from kneematch.web.server import page_app

MAX_ROWS: Final = 400  # in one response
CACHED_FILMS: Final = 3  # in memory, each up to 50 MB
NOT_FOUND: Final = 404


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
        self.cache = path_inside(out, thumbnails.FOLDER)
        self.log = ReviewLog(path_inside(out, review_log.FILE_NAME), self.table)
        self.table.select(RowQuery(), self.log.states)  # fills the table's caches
        self._films = list(self.table.rows_by_film)
        self._film_numbers = {name: number for number, name in enumerate(self._films)}
        self._read = locked_cache(self._read_film, CACHED_FILMS)
        self._prepared = locked_cache(self._prepare_film, CACHED_FILMS)

    def check_row(self, row: int) -> None:
        """Raise SettingsError if there is no such row."""
        if not 0 <= row < len(self.table):
            raise SettingsError(
                f"row {row}; expected one of {len(self.table)}; load the page again"
            )

    def film(self, row: int) -> Radiograph:
        """Return the film of a row."""
        return self._read(self._film_numbers[self.table.text(row, "film")])

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
        text, knee = self.table.text, self.knee(row)
        return {
            "row": row,
            "film": text(row, "film").encode("utf-8", "replace").decode(),
            "side": text(row, "side"),
            "laterality": text(row, "laterality"),
            "loss": _finite(knee.loss),
            "found_loss": _finite(self.table.number(row, "loss")),
            "reasons": self.table.reasons[row],
            "state": STATES[self.log.states[row]],
            "key": thumbnails.thumbnail_key(text(row, "film"), knee),
        }

    def thumbnail(self, row: int) -> Path:
        """Return the file of a row's thumbnail; make those of its film if necessary."""
        path = self._thumbnail_path(row)
        if not path.exists():
            film = self.film(row)
            for other in self.table.rows_by_film[self.table.text(row, "film")]:
                thumbnails.make_thumbnail(self._thumbnail_path(other), film, self.knee(other))
        return path

    def loss(self, row: int, area: Area) -> float | None:
        """Return the loss of the run's template at another place, or None if it is unknown."""
        if self.loss_meter is None:
            return None
        film = self._prepared(self._film_numbers[self.table.text(row, "film")])
        return self.loss_meter.loss(film, move_detection(self.table.detection(row), area))

    def decide(self, request: DecisionRequest) -> None:
        """Record a decision."""
        self.check_row(request.row)
        corrects = request.state == CORRECTED
        if corrects != (request.area is not None):
            raise SettingsError(f"{request.state}; expected an area with a correction only")
        area = request.area or area_of_row(self.table, request.row)
        found_loss = _finite(self.table.number(request.row, "loss"))
        loss = self.loss(request.row, area) if corrects else found_loss
        self.log.add(Decision(request.row, request.state, area, loss))

    def export(self) -> tuple[Path, int]:
        """Write the reviewed table; return its path and the number of its rows."""
        path = path_inside(self.out, correction.REVIEWED_FILE)
        return path, write_reviewed_table(path, self.table, self.log)

    def _thumbnail_path(self, row: int) -> Path:
        key = thumbnails.thumbnail_key(self.table.text(row, "film"), self.knee(row))
        return self.cache / f"{key}.jpg"

    def _read_film(self, number: int) -> Radiograph:
        return read_film(self.root / self._films[number])

    def _prepare_film(self, number: int) -> PreparedFilm:
        if self.loss_meter is None:
            raise SettingsError("the run's template is not known; expected run.json to name it")
        return self.loss_meter.prepare(self._read(number))


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
    _add_table_routes(app, run)
    _add_film_routes(app, run)
    _add_decision_routes(app, run)
    return AuthMiddleware(app, credentials)


def _add_table_routes(app: FastAPI, run: RunFolder) -> None:
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
        for row in wanted:
            run.check_row(row)
        return [run.card(row) for row in wanted]


def _add_film_routes(app: FastAPI, run: RunFolder) -> None:
    @app.get("/api/areas/{row}")
    def areas(row: int) -> dict[str, Any]:
        run.check_row(row)
        height, width = run.film(row).size
        same_film = run.table.rows_by_film[run.table.text(row, "film")]
        return {
            "size": [width, height],
            "area": _area(run.knee(row)),
            "found": _area(run.table.detection(row)),
            "others": [run.knee(other).corners.tolist() for other in same_film if other != row],
        }

    @app.get("/thumbnail/{row}/{key}")  # the key makes the address change with the picture
    def thumbnail(row: int, key: str) -> Response:
        run.check_row(row)
        return FileResponse(run.thumbnail(row), media_type="image/jpeg")

    @app.get("/film/{row}")
    def film(row: int) -> Response:
        run.check_row(row)
        return Response(film_jpeg(run.film(row)), media_type="image/jpeg")

    @app.exception_handler(FilmError)
    async def unreadable(request: object, error: FilmError) -> Response:
        return JSONResponse({"problem": str(error)}, NOT_FOUND)


def _add_decision_routes(app: FastAPI, run: RunFolder) -> None:
    @app.post("/api/loss/{row}")
    def loss(row: int, area: Area) -> dict[str, float | None]:
        run.check_row(row)
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
        path, count = run.export()
        return {"path": str(path), "rows": count}


def _area(knee: Detection) -> dict[str, float]:
    return {
        "centre_x_px": knee.centre[0],
        "centre_y_px": knee.centre[1],
        "width_px": knee.width_px,
        "height_px": knee.height_px,
        "rotation_deg": knee.rotation_deg,
    }


def _finite(value: float) -> float | None:
    """Return a number as JSON can hold it."""
    return value if math.isfinite(value) else None
