"""Reliability: what is to be reviewed is counted among good and among bad areas."""

from pathlib import Path

import numpy as np

from kneematch.detection.detection import Detection
from kneematch.evaluation.ground_truth import KnownKnee, Truth
from kneematch.evaluation.method_run import Trial
from kneematch.evaluation.reliability import reliability_tables

WIDTH = 200.0


def area(moved: float, review: str = "", reason: str = "") -> Detection:
    """An area that is so many widths of the plateau too far down."""
    return Detection(
        side="left",
        laterality="R",
        energy=0.3,
        loss=0.1,
        polarity="positive",
        method="search",
        corners=np.zeros((4, 2)),
        centre=(0.0, 0.0),
        width_px=1.0,
        height_px=1.0,
        rotation_deg=0.0,
        landmarks={"a": (0.0, moved * WIDTH), "b": (WIDTH, moved * WIDTH)},
        review=review,
        reason=reason,
    )


def trial(method: str, *areas: Detection, failed: int = 0) -> Trial:
    found = {f"{k}.png": (one,) for k, one in enumerate(areas)}
    return Trial(method, found, failed={f"{len(areas) + k}.png": "cut" for k in range(failed)})


TRUTH = Truth(
    Path("labels.csv"),
    tuple(KnownKnee(str(k), "left", (0.0, 0.0), (WIDTH, 0.0), "other") for k in range(9)),
    0,
)
BAD = 0.5
METAL, ENERGY, POLARITY = "implant-like metal", "high energy", "wrong polarity tag"


def test_good_and_bad_areas_are_counted_by_method_and_together() -> None:
    first = trial("search", area(0), area(0, "yes", METAL), area(BAD, "yes", ENERGY), area(BAD))
    second = trial("neural", area(0), area(0.01, "", POLARITY))
    flags, _ = reliability_tables([first, second], TRUTH)
    assert flags.rows == (
        ("search", 2, 1, 0.5, 2, 1, 0.5),
        ("neural", 2, 0, 0.0, 0, 0, None),
        ("all", 4, 1, 0.25, 2, 1, 0.5),
    )
    assert flags.shown()[1][-1] == "-"


def test_reasons_are_counted_one_by_one_the_most_frequent_first() -> None:
    first = trial("search", area(BAD, "yes", f"{ENERGY}; {METAL}"), area(0, "yes", METAL))
    second = trial("neural", area(0, "yes", f"{METAL}; {POLARITY}"), area(0, "", POLARITY))
    _, reasons = reliability_tables([first, second], TRUTH)
    assert reasons.rows == (
        (METAL, 3, 3, 1, 1 / 3),
        (POLARITY, 2, 1, 0, 0.0),
        (ENERGY, 1, 1, 1, 1.0),
    )


def test_a_knee_that_was_missed_is_no_area() -> None:
    flags, reasons = reliability_tables([trial("search", area(0), failed=2)], TRUTH)
    assert flags.rows == (("search", 1, 0, 0.0, 0, 0, None),)
    assert reasons.rows == ()
