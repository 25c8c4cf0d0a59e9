"""Corrected areas: where their corners and landmarks lie, their loss, and the reviewed table."""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from kneematch.detection.detection import CORNERS, Detection
from kneematch.detection.detector import PreparedFilm
from kneematch.errors import KneematchError
from kneematch.export.run_file import content_hash
from kneematch.export.tables import COLUMNS, PIXEL, csv_text, detection_values
from kneematch.geometry.sampling import sample
from kneematch.geometry.split import ROOM, SIDES
from kneematch.geometry.view import compose
from kneematch.io.csv_text import write_csv
from kneematch.matching.annotation import load_annotation
from kneematch.matching.energy import one_sided_loss, paper_terms
from kneematch.matching.template import Template, cut_template
from kneematch.networks.model_file import load_model, shipped_model
from kneematch.web.detections_table import DetectionsTable
from kneematch.web.films import read_film
from kneematch.web.review_log import CORRECTED, Area, ReviewLog

METHOD: Final = "review"  # in the table, of a corrected area


def move_detection(found: Detection, area: Area) -> Detection:
    """Return the detection with its area moved, and its landmarks with it."""
    height = area.width_px / found.width_px * found.height_px
    angle = math.radians(area.rotation_deg)
    flip = -1.0 if found.side == "left" else 1.0  # in the left half the template is mirrored
    centre = area.centre_x_px, area.centre_y_px
    across = flip * area.width_px / 2 * np.array([math.cos(angle), math.sin(angle)])
    down = height / 2 * np.array([-math.sin(angle), math.cos(angle)])
    axes = np.stack([across, down])
    motion = np.linalg.inv(_axes(found)) @ axes
    moved = {
        name: tuple((centre + (point - found.corners.mean(0)) @ motion).tolist())
        for name, point in found.landmarks.items()
    }
    return replace(
        found,
        corners=centre + np.array(CORNERS) @ axes,
        centre=centre,
        width_px=area.width_px,
        height_px=height,
        rotation_deg=area.rotation_deg,
        method=METHOD,
        landmarks=moved,
    )


def _axes(found: Detection) -> NDArray[np.float64]:
    """Return half the upper and half the left edge (2, 2), as vectors (x, y) in film pixels."""
    axes: NDArray[np.float64] = (found.corners[[1, 3]] - found.corners[0]) / 2
    return axes


@dataclass(frozen=True, slots=True, eq=False)
class LossMeter:
    """The template of a run, and how the run continued films past their edges."""

    template: Template
    room: float  # as in `split`

    def loss(self, film: PreparedFilm, found: Detection) -> float | None:
        """Return the template's loss at an area, or None if the film has no knee on that side."""
        side = SIDES.index(found.side)
        if side not in film.sides:
            return None
        half = film.sides.index(side)
        pixels = film.halves.pixels[half]
        to_film = torch.eye(3, dtype=torch.float64)  # from the template's [-1, 1]^2
        to_film[:2, :2] = torch.from_numpy(_axes(found).T)
        to_film[:2, 2] = torch.from_numpy(found.corners.mean(0))
        matrix = compose(torch.linalg.inv(film.halves.to_film[half]), to_film)[:2]
        patch = sample(pixels, matrix.to(pixels), self.template.size)
        (term,) = paper_terms(pixels, self.template)
        return float(one_sided_loss(patch, self.template, term.floor))


def load_loss_meter(out: Path) -> tuple[LossMeter | None, str]:
    """Load the template that a run used, as its run.json names it.

    Returns:
        The loss meter, or None and the reason if the template is unknown or has changed.
    """
    path = out / "run.json"
    try:
        run = json.loads(path.read_text(encoding="ascii"))
        settings, hashes = run["settings"], run["sha256"]
        drawn = None
        if settings.get("template") is None:
            model = settings.get("model")
            files = {"model": shipped_model() if model is None else Path(model)}
        else:
            drawn = load_annotation(Path(settings["template"]))
            files = {"template": Path(settings["template"]), "template_film": drawn.film}
        if any(content_hash(file) != hashes[name] for name, file in files.items()):
            return None, "the run's template has changed since"
        if drawn is None:
            template = load_model(files["model"]).fine_template
        else:
            template, _ = cut_template(read_film(drawn.film), drawn)
        return LossMeter(template, 0.0 if settings.get("paper") else ROOM), ""
    except KneematchError as error:
        return None, str(error)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None, f"{path}: the run's template is not named there or cannot be read"


def write_reviewed_table(path: Path, table: DetectionsTable, log: ReviewLog) -> int:
    """Write all rows except the rejected ones, with one more column, `decision`.

    The column is empty for undecided rows. Corrected rows have their new position and loss; their
    energy, which belongs to both knees of a film, is empty.

    Returns:
        The number of rows.
    """
    count = 0
    with write_csv(path, [*table.text, "decision"]) as add:
        for row, cells in enumerate(zip(*table.text.values(), strict=True)):
            decision = log.get(row)
            texts = dict(zip(table.text, cells, strict=True))
            if decision is not None and decision.state == CORRECTED:
                moved = move_detection(table.detection(row), decision.area)
                values = detection_values(texts["film"], moved)
                values |= {"loss": decision.loss, "energy": None}
                for name, value in values.items():
                    texts[name] = csv_text(value, COLUMNS.get(name, PIXEL))
            if decision is None or decision.state != "rejected":
                add([*texts.values(), "" if decision is None else decision.state])
                count += 1
    return count
