"""Outlines of one knee's bones in film pixels, and the plateau's own coordinates."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kneematch.errors import SettingsError

Array = NDArray[np.float64]

NOTHING: Final = np.zeros((0, 2))
ARRAYS: Final = ("femur", "tibia", "femur_sd", "tibia_sd")
SIDES: Final = ("femur_sides", "tibia_sides")


@dataclass(frozen=True, slots=True, eq=False)
class Outlines:
    """Outlines of one knee; points (x, y) in film pixels, from the picture's left to its right.

    The ends of `tibia` are the margins of the tibial plateau, and the distance between them is the
    plateau's width, to which all measures refer.
    """

    femur: Array  # (K, 2) lower border of both condyles and the notch
    tibia: Array  # (M, 2) upper border of the plateau, spines included
    medial: str  # the end of the plateau that is medial, "left" or "right" in the picture
    femur_sd: Array = field(default_factory=lambda: np.zeros(0))  # (K,) in pixels; empty if unknown
    tibia_sd: Array = field(default_factory=lambda: np.zeros(0))  # (M,)
    femur_sides: tuple[Array, Array] = (NOTHING, NOTHING)  # left, right; (R, 2), proximal first
    tibia_sides: tuple[Array, Array] = (NOTHING, NOTHING)
    mm_per_px: float | None = None
    corrected: bool = False  # a person drew the borders

    def __post_init__(self) -> None:
        for name in ("femur", "tibia"):
            line = getattr(self, name)
            if line.ndim != 2 or line.shape[1] != 2 or len(line) < 2 or not np.isfinite(line).all():
                raise SettingsError(f"The outline of the {name} needs two or more points (x, y).")
        if self.medial not in ("left", "right"):
            raise SettingsError(f"The medial side is 'left' or 'right', not {self.medial!r}.")

    @property
    def width_px(self) -> float:
        """Width of the tibial plateau, in pixels."""
        return float(np.linalg.norm(self.tibia[-1] - self.tibia[0]))

    @property
    def width_mm(self) -> float | None:
        """Width of the tibial plateau, in mm; None without pixel spacing."""
        return None if self.mm_per_px is None else self.width_px * self.mm_per_px

    def in_plateau_widths(self, points: Array) -> Array:
        """Return points (K, 2) as (x, y) along and below the line through the margins.

        x is 0 at the medial margin and 1 at the lateral one, y grows towards the foot, and the unit
        is the plateau's width.
        """
        start, end = self.tibia[[0, -1]] if self.medial == "left" else self.tibia[[-1, 0]]
        across = (end - start) / self.width_px**2
        down = np.array([-across[1], across[0]]) * (1 if self.medial == "left" else -1)
        return np.asarray((points - start) @ np.stack([across, down], axis=1))

    def border_in_plateau_widths(self, border: Array) -> Array:
        """Return a border (K, 2) in plateau widths, sorted by x, to interpolate along x."""
        points = self.in_plateau_widths(border)
        return np.asarray(points[np.argsort(points[:, 0], kind="stable")])

    def to_film(self, points: Array) -> Array:
        """Return the film pixels of points (K, 2) in plateau widths."""
        start = self.tibia[0] if self.medial == "left" else self.tibia[-1]
        origin, right, below = self.in_plateau_widths(start + np.array([[0, 0], [1, 0], [0, 1]]))
        return np.asarray(
            points @ np.linalg.inv(np.stack([right - origin, below - origin])) + start
        )

    def redrawn(self, femur: Array, tibia: Array) -> "Outlines":
        """Return the outlines with borders (K, 2), (M, 2) that a person drew.

        Their uncertainty is not known.
        """
        unknown = np.zeros(0)
        return replace(
            self, femur=femur, tibia=tibia, femur_sd=unknown, tibia_sd=unknown, corrected=True
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary that JSON can hold, rounded to a thousandth of a pixel."""
        plain: dict[str, Any] = {item.name: getattr(self, item.name) for item in fields(self)}
        for name in ARRAYS:
            plain[name] = plain[name].round(3).tolist()
        for name in SIDES:
            plain[name] = [side.round(3).tolist() for side in plain[name]]
        if not self.corrected:
            del plain["corrected"]
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "Outlines":
        """Return the outlines that `to_dict` wrote; only femur, tibia and medial are needed.

        Other keys are ignored.

        Raises:
            SettingsError: a value is missing or is no outline.
        """
        try:
            values = {item.name: plain[item.name] for item in fields(cls) if item.name in plain}
            for name in ("femur", "tibia"):
                values[name] = _line(values[name])
            for name in ("femur_sd", "tibia_sd"):
                values[name] = np.array(values.get(name, ()), np.float64)
            for name in SIDES:
                values[name] = tuple(map(_line, values.get(name) or ((), ())))
            if (spacing := values.get("mm_per_px")) is not None:
                values["mm_per_px"] = float(spacing)
            return cls(**values)
        except (KeyError, TypeError, ValueError) as error:
            raise SettingsError(
                f"The outlines cannot be read ({error}). They have femur, tibia and medial, as in "
                "outlines.json."
            ) from error


def _line(points: Any) -> Array:
    return np.array(points, np.float64).reshape(-1, 2)
