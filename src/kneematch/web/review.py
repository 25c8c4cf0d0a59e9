"""The review page: the knees of a run and the decisions about them, and the HTTP API for both."""

import logging
import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import fastapi
import numpy as np
from fastapi import Depends, FastAPI, Query
from pydantic import Field
from starlette.responses import JSONResponse, Response

from kneematch.errors import FilmError, KneematchError, SettingsError
from kneematch.films.discovery import common_folder
from kneematch.films.radiograph import Radiograph
from kneematch.knee.decision import LONGEST, MAX_POINTS, Area, Decision, check_outlines, move
from kneematch.knee.detection import (
    ACCEPTED,
    AREA_SIDES,
    CORRECTED,
    REJECTED,
    Detection,
    knee_text,
)
from kneematch.knee.measure import (
    COMPARTMENTS,
    PERCENT,
    PICTURE_SIDES,
    JointMeasures,
    narrowest_line,
)
from kneematch.knee.quality import ATYPICAL
from kneematch.paper.split import SIDES
from kneematch.run.apply import apply_review, check_outline_network, ended_run, run_config
from kneematch.run.database import Run
from kneematch.run.pipeline import DetectResult
from kneematch.settings import LOCATOR
from kneematch.web.knee_rows import (
    Row,
    RowQuery,
    add_name_filter,
    count_reasons,
    count_states,
    read_rows,
    row_order,
    rows_of_film,
)
from kneematch.web.server import Window, film_jpeg, page_app, read_film

if TYPE_CHECKING:
    from kneematch.knee.detector import Detector

MAX_ROWS: Final = 400  # in one response
SHOWN: Final = {  # the medial and the lateral measure of each line of the table
    "Smallest": ("jsw_medial_minimum", "jsw_lateral_minimum"),
    "x = ¼, ¾": ("jsw_x250", "jsw_x750"),
}
NEW_WIDTH: Final = 0.25  # width of an added knee over the film's, where nothing tells its size
NARROWEST_PX: Final = 64  # part of a film in which a knee is looked for
OTHER_SIDE: Final = {"R": "L", "L": "R"}

Keys = Annotated[str, Query(pattern=r"^-?\d{1,9}(,-?\d{1,9})*$")]
FilmNumber = Annotated[int, fastapi.Path(ge=0, lt=10**9)]
Side = Literal["left", "right"]
Border = Annotated[list[tuple[float, float]], Field(min_length=2, max_length=MAX_POINTS)]

logger = logging.getLogger("kneematch")


@dataclass(frozen=True, slots=True)
class Borders:
    """Body of a request: the borders of femur and tibia, points (x, y) in film pixels."""

    femur: Border
    tibia: Border


@dataclass(frozen=True, slots=True)
class DecisionRequest:
    """Body of a request: what the user decides about a row."""

    row: int
    state: Literal["accepted", "rejected", "corrected"]
    side: Side | None = None  # half of a knee to add to the row's film
    area: Area | None = None  # new place of the knee, in a correction
    laterality: Literal["R", "L", ""] | None = None
    landmarks: dict[str, tuple[float, float]] | None = None
    outlines: Borders | None = None  # None leaves them to the run's outline network
    grade: Annotated[str, Field(max_length=LONGEST["grade"])] = ""
    note: Annotated[str, Field(max_length=LONGEST["note"])] = ""


class ReviewSession:
    """The knees of a run and the decisions about them; rows are named by their keys."""

    def __init__(self, out: Path, root: Path | None = None, reader: str = "") -> None:
        """Open the folder `out` of a run; `reader` is stored with each decision.

        Films with relative paths lie in `root`, or else where `detect` was called; so do the run's
        template and model. Raise SettingsError if the folder cannot be reviewed.
        """
        if len(reader) > LONGEST["reader"]:
            raise SettingsError(f"A reader's name has at most {LONGEST['reader']} characters.")
        self.out, self.given_root, self.reader = out, root, reader
        self._lock = threading.Lock()  # requests are answered by several threads
        self._run = Run(out, exclusive=False)
        try:
            ended_run(self._run)
            add_name_filter(self._run)
            self.films = [path for _, path in self._run.paths()]
            self.folder = common_folder(self.films)  # left out on cards
            self.root = self._run.film_folder(root)
            self.config, self.noun = run_config(self._run), self._run.noun
            self.warning = ""
            if outdated := self._run.count_outdated_decisions():
                self.warning = (
                    f"{outdated} of the decisions in {self._run.path} will be ignored, since the "
                    "areas have moved or are gone. Review those knees again."
                )
                logger.warning("%s", self.warning)
        except BaseException:
            self.close()
            raise
        self._measured: tuple[object, JointMeasures] | None = None  # the last knee that was

    def close(self) -> None:
        """Close the database of the run."""
        self._run.close()

    @contextmanager
    def run(self) -> Iterator[Run]:
        """Yield the run to one thread at a time."""
        with self._lock:
            yield self._run

    def row(self, row: int) -> Row:
        """Return the row with a key; raise SettingsError if there is none."""
        return self.rows([row])[0]

    def rows(self, keys: Sequence[int]) -> list[Row]:
        """Return the rows with some keys; raise SettingsError if one is not there."""
        with self.run() as run:
            rows = read_rows(run, keys)
        for key in keys:
            if key not in rows or (rows[key].side and not rows[key].has_area):
                raise SettingsError(f"The run has no knee {key}. Load the page again.")
        return [rows[key] for key in keys]

    def same_film(self, row: Row) -> list[Row]:
        """Return the rows of the knees on the film of a row."""
        with self.run() as run:
            return rows_of_film(run, row.film)

    def free_sides(self, row: Row) -> dict[str, str]:
        """Return the halves of a row's film to which a knee or area can be added, and its side."""
        taken = {other.side for other in self.same_film(row)}
        sides = AREA_SIDES if self.noun == "area" else SIDES
        free = [side for side in sides if side not in taken]
        return {side.partition("-")[0]: side for side in reversed(free)}

    def film(self, row: Row) -> Radiograph:
        """Return the film of a row."""
        return read_film(self.root / row.path)

    def outlined(self, row: Row) -> JointMeasures:
        """Return the outlines and measures of a knee as the run's outline network makes them.

        They were made in the run, unless the reviewer has moved the knee since. Raise SettingsError
        in a run without measures, or if its knees were measured by another network.
        """
        if not self.config.measure:
            raise SettingsError(f"The run in {self.out} was made without --measure.")
        if row.decision is not None:  # without outlines that the reviewer drew
            row = replace(row, decision=replace(row.decision, outlines=None))
        knee = row.knee
        if knee.measures is not None:
            return knee.measures
        last, key = self._measured, (row.key, row.decision)
        if last is None or last[0] != key:
            last = key, self._measure(knee, self.film(row))
            self._measured = last  # another thread may replace it at once
        return last[1]

    def _measure(self, knee: Detection, film: Radiograph) -> JointMeasures:
        from kneematch.knee.measuring import measure_placed_knees  # imports SciPy, which is slow

        with self.run() as run:
            check_outline_network(run)
        (measured,) = measure_placed_knees(film, [knee])
        if measured.measures is None:
            raise SettingsError("The knee cannot be measured.")
        return measured.measures

    def redrawn(self, row: Row, borders: Borders) -> JointMeasures:
        """Return the outlines of a row with borders that the reviewer drew, and their measures."""
        femur, tibia = (np.array(line).round(3) for line in (borders.femur, borders.tibia))
        drawn = self.outlined(row).outlines.redrawn(femur, tibia)
        check_outlines(drawn)
        return JointMeasures.from_outlines(drawn)

    @cached_property
    def _detector(self) -> "Detector | None":
        """The run's detector of knees, told that a picture shows one; None if it is gone."""
        model = self.config.model and str(self.root / self.config.model)
        template = tuple(str(self.root / file) for file in self.config.template)
        config = replace(self.config, model=model, template=template, device="cpu")
        with suppress(KneematchError):
            detector = config.load_detectors().get("")
            if detector is not None:
                preparation = replace(detector.preparation, single=True)
                return replace(detector, preparation=preparation)
        return None

    def recognise(self, row: Row, side: str) -> Detection | None:
        """Return the knee that the detector sees in a half of a film without one, or None.

        It looks at the film beside the other knee, or at all of it where there is none.
        """
        film, (start, end), laterality = self.film(row), (0, row.size[1]), ""
        for other in self.same_film(row):
            if other.knee.template:
                continue
            x = other.knee.corners[:, 0].clip(0).astype(int)
            start, end = (int(x.max()), end) if side == "right" else (start, int(x.min()))
            laterality = OTHER_SIDE.get(other.knee.laterality, "")
        detector = self._detector
        if detector is None or detector.method != LOCATOR or end - start < NARROWEST_PX:
            return None
        part = replace(film, pixels=np.ascontiguousarray(film.pixels[:, start:end]))
        (found,) = detector.detect_radiographs([part])
        if isinstance(found, Exception) or not found:
            return None
        if ATYPICAL in found[0].reasons:
            return None
        area = Area.from_detection(found[0])
        knee = move(found[0], replace(area, centre_x_px=area.centre_x_px + start))
        return replace(knee, side=side, laterality=knee.laterality or laterality)

    def draft(self, row: Row, side: str) -> Detection:
        """Return where a knee that is added starts: mirrored from the other one if there is one."""
        height, width = row.size
        alike = [other.knee for other in self.same_film(row)]
        if row.has_area:
            alike = [knee for knee in alike if knee.template == row.knee.template]
        if alike:
            knee = alike[0]
            x, y = knee.centre
            mirrored = Area(width - x, y, knee.width_px, -knee.rotation_deg)
            laterality = OTHER_SIDE.get(knee.laterality, "")
            return move(replace(knee, side=side, laterality=laterality), mirrored)
        with self.run() as run:
            first = row_order(run, RowQuery(sort="film"), limit=1)
        if not first:
            raise SettingsError(
                "No knee was found in this run whose shape an added knee could have. Detect with "
                "another method or template."
            )
        reference, wide = self.row(first[0]).knee, NEW_WIDTH * width
        if reference.width_mm is not None and row.mm_per_px is not None:
            wide = reference.width_mm / row.mm_per_px
        area = Area((0.25 if side == "left" else 0.75) * width, height / 2, wide, 0.0)
        return move(replace(reference, side=side, laterality=""), area)

    def decide(self, request: DecisionRequest) -> int:
        """Record a decision; return the key of the row that it is about."""
        row = self.row(request.row)
        if (request.state == CORRECTED) != (request.area is not None):
            raise SettingsError("A correction needs an area, and other decisions have none.")
        side = self.free_sides(row).get(request.side) if request.side else row.side
        if side is None:
            raise SettingsError(
                f"There is a knee on the image's {request.side} already. Correct that one."
            )
        if request.outlines and (request.state != CORRECTED or request.side is not None):
            raise SettingsError("Outlines come with a correction of a saved knee only.")
        if request.state == ACCEPTED and row.found is None:
            return row.key  # the reviewer drew it
        if request.area is None:
            start = row.start
            loss = start.loss if math.isfinite(start.loss) else None
            decision = Decision(request.state, Area.from_detection(start), loss)
        else:
            decision = self._correction(row, request, request.area)
        decision = replace(decision, reader=self.reader, grade=request.grade, note=request.note)
        with self.run() as run:
            return run.decide(row.film, side, decision)

    def _correction(self, row: Row, request: DecisionRequest, area: Area) -> Decision:
        height, outlines, side, template = None, None, request.side, ""
        if side is not None or row.found is None:  # it is or was added
            start = row.start if side is None else self.draft(row, side)
            height = area.width_px / start.width_px * start.height_px
            template = start.template
        if request.outlines is not None:
            outlines = self.redrawn(row, request.outlines).outlines
        given = request.laterality, request.landmarks, height, outlines
        return Decision(CORRECTED, area, None, *given, template=template)

    def undo(self) -> Row | None:
        """Revoke the last decision; return its row, or None if there is nothing to revoke."""
        with self.run() as run:
            knee = run.revoke()
            return None if knee is None else read_rows(run, [knee])[knee]

    def apply(self) -> DetectResult:
        """Write the decisions to all files of the run; other requests wait until it has ended."""
        with self.run():
            return apply_review(self.out, root=self.given_root)


def review_app(session: ReviewSession) -> FastAPI:
    """Return the app of the review page."""
    app = page_app("review.html")
    OneRow = Annotated[Row, Depends(session.row)]

    @app.get("/api/start")
    def start() -> dict[str, Any]:
        with session.run() as run:
            counts, reasons = count_states(run), count_reasons(run)
            last = run.newest_decision()
        return {
            "run": session.out.resolve().name,
            "reasons": reasons,
            "last": last and last[1],
            "counts": counts,
            "measured": session.config.measure,
            "noun": session.noun,
            "reader": session.reader,
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
        return {
            "size": [width, height],
            "knee": _shape(row.knee) if row.has_area else None,
            "found": _shape(row.start) if row.has_area else None,
            "others": [each.knee.corners.tolist() for each in others if each.key != row.key],
            "lateralities": {k.side: k.knee.laterality for k in others if k.state != REJECTED},
            "free": [half for half in SIDES if half in session.free_sides(row)],
            "grade": row.decision.grade if row.decision else "",
            "note": row.decision.note if row.decision else "",
        }

    @app.get("/api/draft/{row}/{side}")
    def draft(row: OneRow, side: Side) -> dict[str, Any]:
        found = session.recognise(row, side)
        start = session.draft(row, side) if found is None else found
        return {**_shape(start), "recognised": found is not None}

    @app.get("/api/outlines/{row}")
    def outlines(row: OneRow) -> dict[str, Any]:
        found = session.outlined(row)
        measures = measures_table(found.magnified(session.config.magnification))
        return {"borders": borders_of(found), "measures": measures}

    @app.get("/thumbnail/{film}")
    def thumbnail(film: FilmNumber) -> Response:
        with session.run() as run:
            picture = run.thumbnail(film)
        return Response(picture or b"", 200 if picture else 404, media_type="image/jpeg")

    @app.get("/film/{row}")
    def film(row: OneRow, window: Annotated[Window, Depends(Window)]) -> Response:
        return Response(film_jpeg(session.film(row), window), media_type="image/jpeg")

    @app.exception_handler(FilmError)
    async def unreadable(request: object, error: FilmError) -> Response:
        return JSONResponse({"problem": str(error)}, HTTPStatus.NOT_FOUND)

    def counts() -> dict[str, int]:
        with session.run() as run:
            return count_states(run)

    @app.post("/api/measures/{row}")
    def measures(row: OneRow, drawn: Borders) -> dict[str, Any]:
        found = session.redrawn(row, drawn)
        return {"measures": measures_table(found.magnified(session.config.magnification))}

    @app.post("/api/decide")
    def decide(request: DecisionRequest) -> dict[str, Any]:
        row = session.row(session.decide(request))
        return {"row": _card(session, row), "counts": counts()}

    @app.post("/api/undo")
    def undo() -> dict[str, Any]:
        row = session.undo()
        return {
            "undone": row and f"{_knee_text(row)} of {_printable(row.path)}",
            "row": _card(session, row) if row and row.has_area else None,
            "counts": counts(),
        }

    @app.post("/api/apply")
    def apply() -> dict[str, Any]:
        result = session.apply()
        message = f"{result.decisions}, {result.review:,} to review"
        return {"out": str(session.out), "message": message, "problems": result.missing_reasons}

    return app


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
        "knee": _knee_text(row) if row.side else "",
        "state": row.state,
        "grade": row.decision.grade if row.decision else "",
    }
    if not row.has_area:
        return shown | {"reasons": [f"no {session.noun} found"], "laterality": ""}
    knee, found = row.knee, row.found
    return shown | {
        "corners": knee.corners.round(2).tolist(),
        "laterality": knee.laterality,
        "alone": knee.alone,
        "review": knee.needs_review,
        "reasons": ["added in the review"] if found is None else found.review_reasons,
    }


def _knee_text(row: Row) -> str:
    return row.knee.name if row.has_area else knee_text(row.side, "")


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


def borders_of(measures: JointMeasures) -> dict[str, Any]:
    """Return borders as `Borders` has them."""
    lines = measures.outlines
    return {name: getattr(lines, name).round(3).tolist() for name in ("femur", "tibia")}


def measures_table(measures: JointMeasures) -> dict[str, Any]:
    """Return the main measures as texts: a unit, and lines of name, medial, lateral width.

    Also the smallest widths, to be drawn on the film. The unit is mm where the film has spacing,
    else percent of the plateau's width.
    """
    outlines = measures.outlines
    unit, decimals, factor = "% of the plateau", 1, 1.0
    if outlines.width_mm is not None:
        unit, decimals = "mm", 2
        factor = outlines.width_mm / PERCENT

    def text(name: str) -> str:
        measure = measures.values[name]
        if measure.value is None:
            return measure.reason
        spread = "" if measure.sd is None else f" ± {factor * measure.sd:.{decimals}f}"
        return f"{factor * measure.value:.{decimals}f}{spread}"

    widths = []
    for part in COMPARTMENTS:
        name = part if outlines.medial else PICTURE_SIDES[part]
        value = measures.values[f"jsw_{name}_minimum"].value
        if value is not None:
            ends = narrowest_line(outlines, part).round(2).tolist()
            widths.append({"ends": ends, "text": f"{factor * value:.1f} {unit[:2].strip()}"})
    lines = [(label, *map(text, names)) for label, names in SHOWN.items()]
    return {"unit": unit, "lines": lines, "widths": widths}
