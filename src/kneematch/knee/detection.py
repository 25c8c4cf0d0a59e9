"""Detection: the joint area of one knee, in the pixels of its film."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from kneematch.errors import SettingsError
from kneematch.films.radiograph import Point, Radiograph
from kneematch.knee.measure import Measure, measures_from_dict, measures_to_dict
from kneematch.knee.outlines import Outlines

if TYPE_CHECKING:
    from PIL import Image

# Of a template, clockwise from its top left.
CORNERS: Final = ((-1.0, -1.0), (1.0, -1.0), (1.0, 1.0), (-1.0, 1.0))
# Decimals of positions in pixels and of angles, in the tables and in review.csv: the area of a
# decision has to equal the one found.
PIXEL, DEGREE = 3, 4
YES: Final = "yes"  # in the column `review`


def corners_to_matrix(corners: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the maps (..., 3, 3) of [-1, 1]^2 onto corners (..., 4, 2)."""
    matrix = np.zeros((*corners.shape[:-2], 3, 3))
    matrix[..., :2, 0] = (corners[..., 1, :] - corners[..., 0, :]) / 2
    matrix[..., :2, 1] = (corners[..., 3, :] - corners[..., 0, :]) / 2
    matrix[..., :2, 2] = corners.mean(-2)
    matrix[..., 2, 2] = 1
    return matrix


def join_reasons(*reasons: str) -> str:
    """Return the column `reason` of reasons, of which empty ones are left out."""
    return "; ".join(filter(None, reasons))


def split_reasons(review: str, reason: str) -> tuple[str, ...]:
    """Return the reasons in the columns `review` and `reason`; empty for a knee that needs none."""
    if review in ("", "no"):
        return ()
    reasons = (part.strip() for part in reason.split(";"))
    return tuple(part for part in reasons if part) or ("not stated",)


@dataclass(frozen=True, slots=True, eq=False)
class Detection:
    """The joint area of one knee; points (x, y) and lengths in film pixels."""

    side: str  # the half of the picture, "left" or "right"; of a single knee, where it would stand
    laterality: str  # the patient's side, "R" or "L"; empty if it is not known
    energy: float  # the paper's, of the film: both sides and the symmetry penalty
    loss: float  # of this side
    polarity: str  # "positive", or "negative" where bright and dark are the template's swapped
    method: str
    corners: NDArray[np.float64] = field(repr=False)  # (4, 2), of the template, where they land
    centre: Point
    width_px: float
    height_px: float
    rotation_deg: float  # picture clockwise positive
    mm_per_px: float | None = None
    landmarks: Mapping[str, Point] = field(default_factory=dict)
    status: str = "ok"
    review: str = ""
    reason: str = ""
    outlines: Outlines | None = field(default=None, repr=False)  # of the bones, where measured
    measures: Mapping[str, Measure] = field(  # by name; see docs/measures.md
        default_factory=dict, repr=False
    )
    laterality_source: str = ""  # "user", "header", "marker" or empty: how the laterality is known
    decision: str = ""  # of a reviewer: "accepted", "corrected", "rejected", or empty
    expected_error_px: float | None = None  # 9 of 10 margin errors lie below it

    @property
    def width_mm(self) -> float | None:
        """Width in mm, at the detector or as calibrated by the header; None without spacing."""
        return None if self.mm_per_px is None else self.width_px * self.mm_per_px

    @property
    def height_mm(self) -> float | None:
        """Height in mm; None without spacing."""
        return None if self.mm_per_px is None else self.height_px * self.mm_per_px

    @property
    def to_film(self) -> NDArray[np.float64]:
        """(3, 3), the map of the template's [-1, 1]^2 to film pixels."""
        return corners_to_matrix(self.corners)

    @property
    def mirrored(self) -> bool:
        """Whether the lateral side points to the left of the upright picture."""
        return bool(np.linalg.det(self.to_film) < 0)

    @property
    def needs_review(self) -> bool:
        """Whether a person should look at this knee."""
        return self.review not in ("", "no")

    @property
    def review_reasons(self) -> tuple[str, ...]:
        """Why a person should look at this knee; empty where nobody needs to."""
        return split_reasons(self.review, self.reason)

    @classmethod
    def from_matrix(
        cls,
        to_film: NDArray[np.float64],
        landmarks: Mapping[str, Point],
        *,
        side: str,
        **others: Any,
    ) -> "Detection":
        """Return the detection of an area that a map places.

        Args:
            to_film: (3, 3), from the template's [-1, 1]^2 to film pixels.
            landmarks: of the template, in its [-1, 1]^2.
            side: the half of the picture, "left" or "right".
            others: the fields that do not follow from these.
        """
        # `geometry.view.transform` would import torch, which reading tables does without.
        points = np.array([*CORNERS, *landmarks.values()]) @ to_film[:2, :2].T + to_film[:2, 2]
        corners, marks = np.split(points, [len(CORNERS)])
        # The top edge from the picture's left to its right; mirrored, from corner 1 to 0.
        (x0, y0), (x1, y1) = corners[[1, 0] if side == "left" else [0, 1]]
        return cls(
            side=side,
            corners=corners,
            centre=(float(to_film[0, 2]), float(to_film[1, 2])),
            width_px=math.dist(corners[0], corners[1]),
            height_px=math.dist(corners[0], corners[3]),
            rotation_deg=math.degrees(math.atan2(y1 - y0, x1 - x0)),
            landmarks=dict(zip(landmarks, map(tuple, marks.tolist()), strict=True)),
            **others,
        )

    def crop(
        self,
        film: Radiograph,
        *,
        mm: float | None = 140.0,
        spacing_mm: float | None = 0.3,
        px: int | None = None,
        mirror: bool = False,
    ) -> NDArray[np.float32]:
        """Cut the area from its film: upright, resampled once, black beyond the film's edge.

        Args:
            film: the one on which the area was found.
            mm: side of the square around the centre. A film without spacing is scaled as if the
                area were 100 mm wide, unless `px` is given.
            spacing_mm: of the crop's pixels; None keeps the film's own pixels.
            px: side of the square in film pixels, not resized: for films without spacing, or for
                all where mm is None. With neither, the area's own shape.
            mirror: turn knees of the picture's left half so that all look as in its right half.

        Returns:
            (height, width) in [0, 1].
        """
        from kneematch.knee.crop import CropSize, cut, place

        size = CropSize(mm=mm, spacing_mm=spacing_mm, px=px, mirror=mirror)
        return cut(film, place(self, size))

    def measure(self, film: Radiograph) -> "Detection":
        """Return this detection with `outlines` and `measures`, taken from its film."""
        from kneematch.knee.measuring import measure_knees

        return measure_knees(film, [self])[0]

    def draw(self, film: Radiograph) -> "Image.Image":
        """Draw the film in grey with the area's outline, its landmarks, its side and its loss."""
        from kneematch.knee.overlay import draw_detections

        return draw_detections(film, [self])

    def to_dict(self) -> dict[str, Any]:
        """Return what JSON can hold, every number exact."""
        plain = {item.name: getattr(self, item.name) for item in fields(self)}
        plain["corners"] = self.corners.tolist()
        plain["centre"] = list(self.centre)
        plain["landmarks"] = {name: list(place) for name, place in self.landmarks.items()}
        del plain["outlines"], plain["measures"]
        if self.outlines is not None:
            plain["outlines"] = self.outlines.to_dict()
            plain["measures"] = measures_to_dict(self.measures)
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "Detection":
        """Return the detection that `to_dict` wrote.

        Raises:
            SettingsError: names or values are not those of a detection.
        """
        try:
            found = dict(plain)
            x, y = found["centre"]
            found["centre"] = (float(x), float(y))
            found["corners"] = np.array(found["corners"], np.float64).reshape(4, 2)
            places = found.get("landmarks", {}).items()
            found["landmarks"] = {str(name): (float(x), float(y)) for name, (x, y) in places}
            if "outlines" in found:
                found["outlines"] = Outlines.from_dict(found["outlines"])
                found["measures"] = measures_from_dict(found["measures"])
            return cls(**found)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SettingsError(
                f"a record of a detection that does not fit ({error}); expected the fields of this "
                "version of kneematch; run the films again"
            ) from error
