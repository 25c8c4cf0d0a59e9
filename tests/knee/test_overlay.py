"""Pictures of detections: outlines where the areas are, labels that can be read."""

import math
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
from kneematch.knee.overlay import LONGEST_PX, REVIEW_COLOUR, draw_detections, label_text


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


def test_outlines_lie_on_the_areas() -> None:
    picture = draw_detections(grey(400, 600), [LEFT, RIGHT])
    assert picture.size == (600, 400)
    for found, colour in ((LEFT, LEFT_COLOUR), (RIGHT, RIGHT_COLOUR)):
        inside = near(picture, colour)
        inside[:118] = False  # the label
        (x0, y0), (x1, y1) = found.corners.min(0), found.corners.max(0)
        assert box_of(inside) == pytest.approx((x0, y0, x1, y1), abs=4)
        x, y = map(round, found.centre)
        assert not inside[y - 80 : y + 80, x - 80 : x + 80].any()


def test_the_templates_top_left_corner_is_the_thicker_one() -> None:
    picture = draw_detections(grey(400, 600), [LEFT, RIGHT])
    for found, colour in ((LEFT, LEFT_COLOUR), (RIGHT, RIGHT_COLOUR)):
        shown = near(picture, colour)
        counts = [
            int(shown[round(y) - 8 : round(y) + 9, round(x) - 8 : round(x) + 9].sum())
            for x, y in found.corners
        ]
        assert counts[0] > 1.5 * max(counts[1:])


def test_landmarks_are_crosses() -> None:
    marked = replace(RIGHT, landmarks={"rim": (400.5, 200.5)})
    film = Radiograph(np.pad(np.full((398, 598), 0.4, np.float32), 1))
    with_cross = np.asarray(draw_detections(film, [marked])).astype(int)
    without = np.asarray(draw_detections(film, [RIGHT])).astype(int)
    changed = np.abs(with_cross - without).max(-1) > 60
    x0, y0, x1, y1 = box_of(changed)
    assert ((x0 + x1) / 2, (y0 + y1) / 2) == pytest.approx((400, 200), abs=1.5)
    assert 4 <= x1 - x0 <= 30


def digits_of(found: Detection) -> tuple[int, int, int, int]:
    """Where the label's number stands in a picture of 600 x 400 pixels."""
    one, other = (
        np.asarray(draw_detections(grey(400, 600), [replace(found, loss=loss)])).astype(int)
        for loss in (0.11, 0.88)
    )
    return box_of(np.abs(one - other).max(-1) > 40)


@pytest.mark.parametrize("y0", [-150, 0, 120, 199, 390])
def test_the_label_stays_in_the_picture(y0: float) -> None:
    x0, top, x1, bottom = digits_of(area("right", 450, y0, 200))  # reaches past the right edge
    assert 8 <= bottom - top <= 14
    assert 2 < top < bottom < 397
    assert 450 < x0 < x1 < 595


def test_the_label_stands_above_an_area_or_else_below_it() -> None:
    assert 80 < digits_of(area("right", 340, 120, 200))[3] < 120
    assert 205 < digits_of(area("right", 340, 5, 200))[1] < 240


def test_an_area_to_review_has_a_dashed_outline_and_a_red_label_with_the_reason() -> None:
    flagged = replace(RIGHT, review="yes", reason="joint cut by the edge; sides disagree")
    film = grey(400, 600)
    pictures = {
        "plain": draw_detections(film, [RIGHT]),
        "flagged": draw_detections(film, [flagged]),
        "unstated": draw_detections(film, [replace(flagged, reason="")]),
    }
    lines = {name: int(near(drawn, RIGHT_COLOUR)[315:].sum()) for name, drawn in pictures.items()}
    assert 0.3 * lines["plain"] < lines["flagged"] < 0.75 * lines["plain"]
    red = {name: near(drawn, REVIEW_COLOUR) for name, drawn in pictures.items()}
    assert not red["plain"].any()
    assert red["flagged"].sum() > 1.3 * red["unstated"].sum() > 300  # a line for each reason


def test_a_thumbnail_has_larger_labels() -> None:
    one, other = (
        draw_detections(grey(400, 600), [replace(RIGHT, loss=loss)], thumbnail=True)
        for loss in (0.11, 0.88)
    )
    changed = np.abs(np.asarray(one).astype(int) - np.asarray(other)).max(-1) > 40
    _, top, _, bottom = box_of(changed)
    assert 15 <= bottom - top <= 24


def test_reasons_can_be_left_out_and_are_wrapped_beside_each_other() -> None:
    reason = "probably not a knee or not frontal"
    flagged = [replace(found, review="yes", reason=reason) for found in (LEFT, RIGHT)]

    def red(detections: list[Detection], *, reasons: bool) -> tuple[int, int, int, int]:
        drawn = draw_detections(grey(400, 600), detections, thumbnail=True, reasons=reasons)
        return box_of(near(drawn, REVIEW_COLOUR))

    _, short_top, _, short_bottom = red(flagged[:1], reasons=False)
    _, top, right, bottom = red(flagged[:1], reasons=True)
    assert bottom - top > 2.5 * (short_bottom - short_top)  # two more lines at least
    assert right < red(flagged[1:], reasons=True)[0]  # the labels of both knees do not overlap


@pytest.mark.parametrize("reasons", [False, True])
@pytest.mark.parametrize("width", [400, 1400])
def test_labels_of_small_knees_do_not_overlap(width: int, reasons: bool) -> None:
    flagged = [
        replace(
            area(side, x, 500, 100), laterality="", review="yes", reason="the networks disagree"
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
        assert columns[0] > 0
        assert columns[-1] < both.shape[1] - 1


def test_label_text_names_the_patients_side_only_where_it_is_known() -> None:
    assert label_text(RIGHT) == "L   0.15"
    assert label_text(replace(RIGHT, laterality="")) == "right half   0.15"
    assert label_text(replace(RIGHT, loss=math.nan)) == "L"  # a corrected knee, template unknown


def test_without_detections_the_film_is_plain_grey() -> None:
    picture = np.asarray(draw_detections(grey(100, 120), []))
    assert (picture == picture[..., :1]).all()
    assert picture.min() == 0
    assert picture.max() == 255


def test_large_films_are_reduced_and_small_ones_are_not() -> None:
    large = draw_detections(grey(1000, 2 * LONGEST_PX), [RIGHT])
    assert large.size == (LONGEST_PX, 500)
    assert draw_detections(grey(300, 200), []).size == (200, 300)
    assert draw_detections(grey(600, 300), [], longest_px=200).size == (100, 200)


def test_lines_are_smooth() -> None:
    corners = RIGHT.corners - RIGHT.centre
    turn = math.radians(5)
    rotation = np.array([[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]])
    turned = replace(RIGHT, corners=corners @ rotation.T + RIGHT.centre)
    blue = np.asarray(draw_detections(Radiograph(np.eye(600, dtype=np.float32)), [turned]))
    assert len(np.unique(blue[300:, 400:440, 2])) > 8  # and not line and film alone
