"""Detection: the joint area of one knee, in the pixels of its film."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from kneematch.errors import SettingsError
from kneematch.films.files import BROKEN
from kneematch.films.radiograph import LATERALITIES, Point, Radiograph
from kneematch.knee.measure import COMPARTMENTS, JointMeasures, in_mm

if TYPE_CHECKING:
    from PIL import Image

    from kneematch.films.read import Film

CORNERS: Final = ((-1.0, -1.0), (1.0, -1.0), (1.0, 1.0), (-1.0, 1.0))  # clockwise from the top left
# Decimals of positions in pixels and of angles in all tables: a decision of a reviewer applies to
# the area that equals its own after rounding.
PIXEL, DEGREE = 3, 4
MOST_AREAS: Final = 9  # on a film, of one orientation


def area_side(half: str, number: int) -> str:
    """Return the name of an area among those of its half, counted from 1."""
    return half if number == 1 else f"{half}-{number}"


# Names of the areas of a film; knees have the first two only.
AREA_SIDES: Final = tuple(
    area_side(half, k) for k in range(1, MOST_AREAS + 1) for half in ("left", "right")
)
ACCEPTED, REJECTED, CORRECTED = DECISIONS = ("accepted", "rejected", "corrected")


@dataclass(frozen=True, slots=True, eq=False)
class Detection:
    """The joint area of one knee; points (x, y) and lengths in film pixels."""

    to_film: NDArray[np.float64] = field(repr=False)  # (3, 3), from the template's [-1, 1]^2
    # The half of the picture, "left" or "right"; of a single knee, where it would stand. Of other
    # parts: "left" where the template is mirrored; further ones of a film are "left-2", ...
    side: str
    method: str
    landmarks: Mapping[str, Point] = field(default_factory=dict)
    landmark_sd_px: Mapping[str, float] = field(default_factory=dict)  # where they were refined
    # Median standard deviation of the refined landmarks, as a share of the area's size: large where
    # parts of the area match back elsewhere, or are not where the others expect them.
    match_back: float | None = None
    template: str = ""  # name of the template of another part than knees, in a run
    laterality: str = ""  # the patient's side, "R" or "L"; empty if it is not known
    side_known: bool = True  # which side of it is medial is known
    alone: bool = False  # no other knee was found on the film
    laterality_source: str = ""  # "user", "header", "name" (of the file), "marker" or empty
    energy: float = math.nan  # the paper's energy of the film: both sides and the symmetry penalty
    loss: float = math.nan  # the paper's loss of this side
    polarity: str = "positive"  # "negative" where bright and dark are the template's swapped
    mm_per_px: float | None = None
    expected_error_px: float | None = None  # nine of ten margin errors lie below it
    needs_review: bool = False  # a person should look at this knee
    reasons: tuple[str, ...] = ()  # why; a knee that needs no review may have notes here
    decision: str = ""  # a reviewer's: "accepted", "rejected", "corrected", or empty
    measures: JointMeasures | None = field(default=None, repr=False)  # see docs/measures.md

    def on_film(self, copy: Radiograph) -> "Detection":
        """Return this area, which was found in a smaller copy of a film, on the film itself."""
        factor, corner = copy.reduction, copy.corner
        larger = np.array([[factor, 0, corner], [0, factor, corner], [0, 0, 1]])
        error, spacing = self.expected_error_px, self.mm_per_px
        return replace(
            self,
            to_film=larger @ self.to_film,
            landmarks=map_landmarks(larger, self.landmarks),
            expected_error_px=None if error is None else factor * error,
            mm_per_px=None if spacing is None else spacing / factor,
        )

    @property
    def half(self) -> str:
        """The side without its number, "left" or "right"."""
        return self.side.partition("-")[0]

    @property
    def corners(self) -> NDArray[np.float64]:
        """(4, 2), where the template's corners land, clockwise from its top left."""
        return _map(self.to_film, CORNERS)

    @property
    def centre(self) -> Point:
        """The middle of the area."""
        return float(self.to_film[0, 2]), float(self.to_film[1, 2])

    @property
    def width_px(self) -> float:
        """Length of the area's top edge."""
        return math.dist(*self.corners[:2])

    @property
    def height_px(self) -> float:
        """Length of the area's left edge."""
        return math.dist(*self.corners[::3])

    @property
    def rotation_deg(self) -> float:
        """Direction of the top edge from the picture's left to its right; clockwise positive."""
        # The template is mirrored in the left half, where the edge runs from corner 1 to 0.
        (x0, y0), (x1, y1) = self.corners[[1, 0] if self.half == "left" else [0, 1]]
        return math.degrees(math.atan2(y1 - y0, x1 - x0))

    @property
    def width_mm(self) -> float | None:
        """Width in mm, at the detector or as calibrated by the header; None without spacing."""
        return None if self.mm_per_px is None else self.width_px * self.mm_per_px

    @property
    def height_mm(self) -> float | None:
        """Height in mm; None without spacing."""
        return None if self.mm_per_px is None else self.height_px * self.mm_per_px

    @property
    def mirrored(self) -> bool:
        """Whether the lateral side points to the left of the upright picture."""
        return bool(np.linalg.det(self.to_film) < 0)

    @property
    def review_reasons(self) -> tuple[str, ...]:
        """Why a person should look at this knee; empty where nobody needs to."""
        return self.reasons if self.needs_review else ()

    @property
    def name(self) -> str:
        """The knee, or an area of another part, in words."""
        if self.template or self.match_back is not None:
            return f"{self.template or 'area'} on the image's {self.half}"
        if self.alone and not self.laterality:  # `side` says nothing of its place
            return "knee"
        return knee_text(self.half, self.laterality)

    @property
    def label(self) -> str:
        """The knee in words, such as "right knee", and its smallest widths where measured."""
        if self.measures is None:
            return self.name
        widths, unit = [], "mm"
        for part in COMPARTMENTS:
            measure = self.measures.values[f"jsw_{part}_minimum"]
            width = in_mm(measure, self.measures.outlines)
            if width is None and measure.value is not None:
                width, unit = measure.value, "% of the plateau's width"
            widths += [] if width is None else [f"{part} {width:.1f}"]
        said = f"{self.name}, smallest joint space {', '.join(widths)} {unit}"
        return said if widths else self.name

    def crop(
        self, film: "Film", *, mm: float = 140.0, spacing_mm: float = 0.3, mirror: bool = False
    ) -> NDArray[np.float32]:
        """Cut the area from its film: upright, resampled once, black beyond the film's edge.

        Args:
            film: the film on which the area was found, as `Detector.detect` takes it.
            mm: side of the square around the centre. A film without spacing is scaled as if the
                area were 100 mm wide.
            spacing_mm: pixel spacing of the crop.
            mirror: turn knees of the picture's left half so that all look as in its right half.

        Returns:
            (height, width) in [0, 1].
        """
        from kneematch.films.read import as_radiograph
        from kneematch.knee.crop import CropSize, cut, place

        return cut(as_radiograph(film), place(self, CropSize(mm, spacing_mm, mirror)))

    def measure(self, film: "Film") -> "Detection":
        """Return this detection with `measures`, taken from its film (as `detect` takes it)."""
        from kneematch.films.read import as_radiograph
        from kneematch.knee.measuring import measure_knees

        return measure_knees(as_radiograph(film), [self])[0]

    def draw(self, film: "Film") -> "Image.Image":
        """Draw the film in grey with the area's outline, landmarks, side and a caption."""
        from kneematch.films.read import as_radiograph
        from kneematch.knee.overlay import draw_detections

        return draw_detections(as_radiograph(film), [self])

    def to_dict(self) -> dict[str, Any]:
        """Return what JSON can hold, every number exact."""
        plain = {item.name: getattr(self, item.name) for item in fields(self)}
        plain["to_film"] = self.to_film.tolist()
        plain["landmarks"] = {name: list(place) for name, place in self.landmarks.items()}
        plain["measures"] = None if self.measures is None else self.measures.to_dict()
        return plain

    @classmethod
    def from_json(cls, text: str) -> "Detection":
        """Return the detection whose `to_dict` was stored as JSON.

        Raises:
            SettingsError: it is no JSON, or names or values are not those of a detection.
        """
        try:
            found = dict(json.loads(text))
            found["to_film"] = np.array(found["to_film"], np.float64).reshape(3, 3)
            places = found["landmarks"].items()
            found["landmark_sd_px"] = dict(found["landmark_sd_px"])
            found["landmarks"] = {str(name): (float(x), float(y)) for name, (x, y) in places}
            found["reasons"] = tuple(found["reasons"])
            positions = [found["to_film"].ravel(), *found["landmarks"].values()]
            if not np.isfinite(np.concatenate(positions)).all():
                raise ValueError("a position is not a finite number")
            if found["side"] not in AREA_SIDES or found["laterality"] not in ("", *LATERALITIES):
                raise ValueError("a side that no area has")
            if found["measures"] is not None:
                found["measures"] = JointMeasures.from_dict(found["measures"])
            return cls(**found)
        except BROKEN as error:
            raise SettingsError(
                f"A stored detection cannot be read ({type(error).__name__}). Run the films again."
            ) from error


def knee_text(side: str, laterality: str) -> str:
    """Name a knee by the patient's side, or where it is not known by its half of the picture."""
    known = {"R": "right knee", "L": "left knee"}
    return known.get(laterality, f"knee on the image's {side}")


def map_landmarks(matrix: NDArray[np.float64], landmarks: Mapping[str, Point]) -> dict[str, Point]:
    """Return landmarks where an affine map (3, 3) sends them."""
    points = _map(matrix, list(landmarks.values())).tolist()
    return {name: (x, y) for name, (x, y) in zip(landmarks, points, strict=True)}


def _map(matrix: NDArray[np.float64], points: Sequence[Point]) -> NDArray[np.float64]:
    """Return points (K, 2) where an affine map (3, 3) sends them."""
    # `sampling.transform` would import torch, which reading a run does without.
    mapped: NDArray[np.float64] = np.array(points).reshape(-1, 2) @ matrix[:2, :2].T
    return mapped + matrix[:2, 2]
