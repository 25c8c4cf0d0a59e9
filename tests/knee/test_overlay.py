"""Pictures of detections: outlines where the areas are, labels that can be read."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from detections import make_detection
from kneematch.films.pictures import LEFT_COLOUR, RIGHT_COLOUR, Colour
from kneematch.films.radiograph import Radiograph
from kneematch.knee.detection import Detection
from kneematch.knee.measure import JointMeasures, Outlines
from kneematch.knee.overlay import LONGEST_PX, REVIEW_COLOUR, draw_detections


def grey(height: int, width: int) -> Radiograph:
    return Radiograph(np.tile(np.linspace(0, 1, width, dtype=np.float32), (height, 1)))


def area(side: str, x0: float, y0: float, size: float) -> Detection:
    """An upright square; the template's top left is towards the middle of the picture."""
    centre = x0 + size / 2, y0 + size / 2
    return make_detection(side, centre, (size, size), loss=0.15)


def near(picture: Image.Image, colour: Colour) -> NDArray[np.bool_]:
    """Where a picture has a colour, but for smoothing."""
    return np.abs(np.asarray(picture).astype(int) - colour).max(-1) < 40


def box_of(mask: NDArray[np.bool_]) -> tuple[int, int, int, int]:
    ys, xs = np.nonzero(mask)
    return int(xs.min()), int(ys.min()), int(xs.max()), int(ys.max())


LEFT, RIGHT = area("left", 60, 120, 200), area("right", 340, 120, 200)


def test_draw_detections_outlines_the_areas() -> None:
    picture = draw_detections(grey(400, 600), [LEFT, RIGHT])
    assert picture.size == (600, 400)
    for found, colour in ((LEFT, LEFT_COLOUR), (RIGHT, RIGHT_COLOUR)):
        shown = near(picture, colour)
        shown[:118] = False  # the label
        (x0, y0), (x1, y1) = found.corners.min(0), found.corners.max(0)
        assert box_of(shown) == pytest.approx((x0, y0, x1, y1), abs=4)
        x, y = map(round, found.centre)
        assert not shown[y - 80 : y + 80, x - 80 : x + 80].any()
        counts = [
            int(shown[round(y) - 8 : round(y) + 9, round(x) - 8 : round(x) + 9].sum())
            for x, y in found.corners
        ]
        assert counts[0] > 1.5 * max(counts[1:])  # the template's top left corner


def test_draw_detections_marks_landmarks_by_crosses() -> None:
    marked = replace(RIGHT, landmarks={"rim": (400.5, 200.5)})
    x0, y0, x1, y1 = changed([marked], [RIGHT])
    assert ((x0 + x1) / 2, (y0 + y1) / 2) == pytest.approx((400, 200), abs=1.5)
    assert 4 <= x1 - x0 <= 30


def changed(
    one: list[Detection], other: list[Detection], *, thumbnail: bool = False
) -> tuple[int, int, int, int]:
    """Where two pictures of 600 x 400 pixels differ."""
    first, second = (
        np.asarray(draw_detections(grey(400, 600), each, thumbnail=thumbnail)).astype(int)
        for each in (one, other)
    )
    return box_of(np.abs(first - second).max(-1) > 40)


def words_of(found: Detection) -> tuple[int, int, int, int]:
    """Where the label's words stand."""
    return changed([replace(found, laterality="R")], [replace(found, laterality="L")])


@pytest.mark.parametrize("y0", [-150, 120, 390])
def test_draw_detections_keeps_labels_in_the_picture(y0: float) -> None:
    x0, top, x1, bottom = words_of(area("right", 450, y0, 200))  # reaches past the right edge
    assert 8 <= bottom - top <= 16
    assert 2 < top < bottom < 397
    assert 450 < x0 < x1 < 595


def test_draw_detections_marks_areas_to_review_by_dashes_and_a_red_label() -> None:
    flagged = replace(RIGHT, needs_review=True, reasons=("cut by the edge", "sides disagree"))
    film = grey(400, 600)
    pictures = {
        "plain": draw_detections(film, [RIGHT]),
        "flagged": draw_detections(film, [flagged]),
        "unstated": draw_detections(film, [flagged], reasons=False),
    }
    lines = {name: int(near(drawn, RIGHT_COLOUR)[315:].sum()) for name, drawn in pictures.items()}
    assert 0.3 * lines["plain"] < lines["flagged"] < 0.75 * lines["plain"]
    red = {name: near(drawn, REVIEW_COLOUR) for name, drawn in pictures.items()}
    assert not red["plain"].any()
    assert red["flagged"].sum() > 1.3 * red["unstated"].sum() > 300  # a line for each reason


@pytest.mark.parametrize("reasons", [False, True])
@pytest.mark.parametrize("width", [400, 1400])
def test_draw_detections_keeps_labels_of_small_knees_apart(width: int, reasons: bool) -> None:
    flagged = [
        replace(
            area(side, x, 500, 100),
            laterality="",
            needs_review=True,
            reasons=("search and network disagree",),
        )
        for side, x in (("left", width / 2 - 125), ("right", width / 2 + 25))
    ]

    def shown(detections: list[Detection], longest_px: int) -> NDArray[np.bool_]:
        """Where labels are, in a picture of a black film."""
        film = Radiograph(np.zeros((1400, width), np.float32))
        draw = partial(draw_detections, longest_px=longest_px, thumbnail=True, reasons=reasons)
        return near(draw(film, detections), REVIEW_COLOUR)

    for longest_px in (480, 640):
        left, right = (shown([knee], longest_px) for knee in flagged)
        both = shown(flagged, longest_px)
        columns = np.flatnonzero(both.any(0))
        assert (left & right).any()  # where there is but one knee, its label may take more room
        assert (np.diff(columns) > 2).sum() == 1
        assert 0 < columns[0] < columns[-1] < both.shape[1] - 1


def test_draw_detections_outlines_the_bones_of_measured_knees() -> None:
    x = np.linspace(380.0, 500.0, 9)
    lines = (np.stack([x, np.full(9, y)], axis=1) for y in (200.0, 230.0))
    measured = replace(RIGHT, measures=JointMeasures.from_outlines(Outlines(*lines, "left")))
    assert changed([measured], [RIGHT]) == pytest.approx((380, 200, 500, 230), abs=4)


def test_draw_detections_reduces_large_films() -> None:
    large = draw_detections(grey(1000, 2 * LONGEST_PX), [RIGHT])
    assert large.size == (LONGEST_PX, 500)
    assert draw_detections(grey(600, 300), [], longest_px=200).size == (100, 200)
    plain = np.asarray(draw_detections(grey(100, 120), []))
    assert (plain == plain[..., :1]).all()
    assert (plain.min(), plain.max()) == (0, 255)
