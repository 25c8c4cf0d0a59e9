"""Pictures of detections: outlines where the areas are, labels that can be read."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from detections import make_detection
from kneematch.films.pictures import LEFT_COLOUR, RIGHT_COLOUR, Colour
from kneematch.films.radiograph import Radiograph
from kneematch.knee.detection import Detection
from kneematch.knee.measure import JointMeasures, Outlines
from kneematch.knee.overlay import LONGEST_PX, REVIEW_BACKGROUND, draw_detections


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
    picture = draw_detections(grey(400, 600), [LEFT, RIGHT], caption=False)
    assert picture.size == (600, 400)
    for found, colour in ((LEFT, LEFT_COLOUR), (RIGHT, RIGHT_COLOUR)):
        shown = near(picture, colour)
        shown[:118] = False  # the side
        (x0, y0), (x1, y1) = found.corners.min(0), found.corners.max(0)
        assert box_of(shown) == pytest.approx((x0, y0, x1, y1), abs=4)
        x, y = map(round, found.centre)
        assert not shown[y - 80 : y + 80, x - 80 : x + 80].any()
        places = found.corners.round().astype(int)
        counts = [int(shown[y - 8 : y + 9, x - 8 : x + 9].sum()) for x, y in places]
        assert counts[0] > 1.5 * max(counts[1:])  # the template's top left corner


@pytest.mark.parametrize("place", [(-900, 10), (10, -900), (900, 10), (10, 900), (9e5, 9e5)])
def test_draw_detections_draws_films_with_areas_outside_them(place: tuple[float, float]) -> None:
    outside = area("right", *place, 200)
    picture = draw_detections(grey(400, 600), [LEFT, outside], caption=False)
    assert picture.size == (600, 400)
    assert near(picture, LEFT_COLOUR)[120:320, 60:260].any()


def changed(one: Detection, other: Detection) -> tuple[int, int, int, int]:
    """Where two pictures of 600 x 400 pixels differ."""
    film = grey(400, 600)
    first, second = (
        np.asarray(draw_detections(film, [area]))[:400].astype(int) for area in (one, other)
    )
    return box_of(np.abs(first - second).max(-1) > 40)


def test_draw_detections_marks_landmarks_by_crosses() -> None:
    x0, y0, x1, y1 = changed(replace(RIGHT, landmarks={"rim": (400.5, 200.5)}), RIGHT)
    assert ((x0 + x1) / 2, (y0 + y1) / 2) == pytest.approx((400, 200), abs=1.5)
    assert 4 <= x1 - x0 <= 30


@pytest.mark.parametrize("y0", [-150, 120, 390])
def test_draw_detections_writes_the_side_above_the_area(y0: float) -> None:
    found = area("right", 300, y0, 200)
    x0, top, x1, bottom = changed(*(replace(found, laterality=side) for side in "RL"))
    assert 8 <= bottom - top <= 25
    assert 2 < top < bottom < 397
    assert 300 < x0 < x1 < 500
    if y0 == 120:  # there is room above it
        assert bottom < 120


def test_draw_detections_writes_reasons_below_the_film_and_on_no_joint() -> None:
    reasons = ("cut by the edge", *("search and network disagree",) * 3)
    flagged = replace(RIGHT, needs_review=True, reasons=reasons)
    film = grey(400, 600)
    one, two = (draw_detections(film, knees) for knees in ([LEFT, RIGHT], [LEFT, flagged]))
    assert one.size[0] == two.size[0] == 600
    assert 400 < one.size[1] < two.size[1]  # the reasons take two lines
    assert not near(one, REVIEW_BACKGROUND).any()
    left, top, right, bottom = box_of(near(two, REVIEW_BACKGROUND))
    assert (left, right, bottom) == (0, 599, two.size[1] - 1)
    assert top > 400  # below the line about the other knee
    lines = [int(near(drawn, RIGHT_COLOUR)[315:400].sum()) for drawn in (one, two)]
    assert 0.3 * lines[0] < lines[1] < 0.75 * lines[0]  # a dashed outline
    bare = np.asarray(draw_detections(film, [flagged], caption=False))
    assert (bare == np.asarray(draw_detections(film, [flagged]))[:400]).all()


def test_draw_detections_outlines_the_bones_of_measured_knees() -> None:
    x = np.linspace(380.0, 500.0, 9)
    lines = (np.stack([x, np.full(9, y)], axis=1) for y in (200.0, 230.0))
    measured = replace(RIGHT, measures=JointMeasures.from_outlines(Outlines(*lines, "left")))
    assert changed(measured, RIGHT) == pytest.approx((380, 200, 500, 230), abs=4)


def test_draw_detections_reduces_large_films() -> None:
    large = draw_detections(grey(1000, 2 * LONGEST_PX), [RIGHT])
    assert large.size[0] == LONGEST_PX
    assert large.size[1] > 500
    assert draw_detections(grey(600, 300), [], longest_px=200).size == (100, 200)
    plain = np.asarray(draw_detections(grey(100, 120), []))
    assert (plain == plain[..., :1]).all()
    assert (plain.min(), plain.max()) == (0, 255)
