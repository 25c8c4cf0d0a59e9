"""Corrected areas: where their corners and landmarks lie, their loss, and the reviewed table."""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from kneematch.detection.detection import Detection
from kneematch.detection.detector import PreparedFilm, prepare
from kneematch.detection.methods import TemplateSource
from kneematch.errors import KneematchError
from kneematch.export.run_file import content_hash
from kneematch.export.tables import COLUMNS, CORNERS, PIXEL
from kneematch.geometry.sampling import sample
from kneematch.geometry.split import ROOM, SIDES
from kneematch.geometry.view import compose, transform
from kneematch.io.csv_text import write_csv
from kneematch.io.radiograph import Radiograph
from kneematch.matching.annotation import load_annotation
from kneematch.matching.energy import one_sided_loss, paper_terms
from kneematch.matching.template import Template
from kneematch.networks.model_file import load_model, shipped_model
from kneematch.web.detections_table import DetectionsTable
from kneematch.web.review_log import CORRECTED, Area, Decision, ReviewLog

RUN_FILE: Final = "run.json"
REVIEWED_FILE: Final = "detections.reviewed.csv"
METHOD: Final = "review"  # in the table, of a corrected area
SQUARE: Final = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]])


def move_detection(found: Detection, area: Area) -> Detection:
    """Return the detection with its area moved, and its landmarks with it."""
    height = area.width_px / found.width_px * found.height_px
    angle = math.radians(area.rotation_deg)
    flip = -1.0 if found.side == "left" else 1.0  # in the left half the template is mirrored
    across = flip * area.width_px / 2 * np.array([math.cos(angle), math.sin(angle)])
    down = height / 2 * np.array([-math.sin(angle), math.cos(angle)])
    centre = np.array([area.centre_x_px, area.centre_y_px])
    moved = replace(
        found,
        corners=centre + SQUARE @ np.stack([across, down]),
        centre=(area.centre_x_px, area.centre_y_px),
        width_px=area.width_px,
        height_px=height,
        rotation_deg=area.rotation_deg,
        method=METHOD,
    )
    motion = _template_to_film(moved) @ torch.linalg.inv(_template_to_film(found))
    points = torch.tensor(list(found.landmarks.values()), dtype=torch.float64).reshape(-1, 2)
    landmarks = zip(found.landmarks, transform(motion, points).tolist(), strict=True)
    return replace(moved, landmarks={name: (x, y) for name, (x, y) in landmarks})


def _template_to_film(found: Detection) -> Tensor:
    """Return the map (3, 3) from the template's [-1, 1]^2 to film pixels."""
    corners = torch.from_numpy(found.corners)
    matrix = torch.eye(3, dtype=torch.float64)
    matrix[:2, 0] = (corners[1] - corners[0]) / 2
    matrix[:2, 1] = (corners[3] - corners[0]) / 2
    matrix[:2, 2] = corners.mean(0)
    return matrix


@dataclass(frozen=True, slots=True, eq=False)
class LossMeter:
    """Computes the loss of a run's template at any place of a film."""

    template: Template
    room: float  # padding beside the film, as in the run

    def prepare(self, film: Radiograph) -> PreparedFilm:
        """Split a film as the run did."""
        return prepare(film, self.room)

    def loss(self, film: PreparedFilm, found: Detection) -> float | None:
        """Return the loss of an area, or None if the film shows no knee on that side."""
        side = SIDES.index(found.side)
        if side not in film.sides:
            return None
        half = film.sides.index(side)
        pixels = film.halves.pixels[half]
        from_film = torch.linalg.inv(film.halves.to_film[half])
        matrix = compose(from_film, _template_to_film(found))[:2]
        patch = sample(pixels, matrix.to(pixels), self.template.size)
        (term,) = paper_terms(pixels, self.template)
        return float(one_sided_loss(patch, self.template, term.floor))


def load_loss_meter(out: Path) -> tuple[LossMeter | None, str]:
    """Load the template that a run used, as its run.json names it.

    Returns:
        The loss meter, or None and the reason if the template is unknown or has changed.
    """
    path = out / RUN_FILE
    try:
        run = json.loads(path.read_text(encoding="ascii"))
        settings, hashes = run["settings"], run["sha256"]
        template, model = _path(settings, "template"), _path(settings, "model")
        files = {"model": model or shipped_model()}
        if template is not None:
            files = {"template": template, "template_film": load_annotation(template).film}
        if any(content_hash(file) != hashes[name] for name, file in files.items()):
            return None, "the run's template has changed since"
        found = (
            TemplateSource.drawn(template).template
            if template
            else load_model(files["model"]).fine_template
        )
        return LossMeter(found, 0.0 if settings.get("paper") else ROOM), ""
    except KneematchError as error:
        return None, str(error)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None, f"{path}: the run's template is not named there or cannot be read"


def _path(settings: dict[str, Any], name: str) -> Path | None:
    value = settings.get(name)
    return None if value is None else Path(value)


def write_reviewed_table(path: Path, table: DetectionsTable, log: ReviewLog) -> int:
    """Write all rows except the rejected ones, with one more column, `decision`.

    The column is empty for undecided rows. Corrected rows have their new position.

    Returns:
        The number of rows.
    """
    count = 0
    with write_csv(path, [*table.columns, "decision"]) as add:
        for row, cells in enumerate(table.rows):
            decision = log.get(row)
            if decision is not None and decision.state == "rejected":
                continue
            if decision is not None and decision.state == CORRECTED:
                cells = _corrected_row(table, decision)
            add([*cells, "" if decision is None else decision.state])
            count += 1
    return count


def _corrected_row(table: DetectionsTable, decision: Decision) -> list[str]:
    """Return the cells of a moved area; the energy belongs to both knees and is left empty."""
    moved = move_detection(table.detection(decision.row), decision.area)
    numbers = {
        "centre_x_px": moved.centre[0],
        "centre_y_px": moved.centre[1],
        "width_px": moved.width_px,
        "height_px": moved.height_px,
        "rotation_deg": moved.rotation_deg,
        **dict(zip(CORNERS, moved.corners.flatten().tolist(), strict=True)),
        **{f"{name}_x_px": x for name, (x, _) in moved.landmarks.items()},
        **{f"{name}_y_px": y for name, (_, y) in moved.landmarks.items()},
        "loss": math.nan if decision.loss is None else decision.loss,
        "energy": math.nan,
    }
    texts = {name: _to_text(value, COLUMNS.get(name)) for name, value in numbers.items()}
    texts["method"] = moved.method
    cells = zip(table.columns, table.rows[decision.row], strict=True)
    return [texts.get(name, cell) for name, cell in cells]


def _to_text(value: float, decimals: int | None) -> str:
    return "" if math.isnan(value) else f"{value:.{PIXEL if decimals is None else decimals}f}"
