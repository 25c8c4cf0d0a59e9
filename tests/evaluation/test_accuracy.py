"""Accuracy: means and shares are those that one would work out by hand."""

import math
from pathlib import Path

import numpy as np
import pytest

from kneematch.detection.detection import Detection
from kneematch.evaluation.accuracy import accuracy_tables
from kneematch.evaluation.ground_truth import KnownKnee, Truth
from kneematch.evaluation.method_run import Trial
from kneematch.evaluation.tables import Cell, Table

Margins = tuple[float, float, float, float]


def area(side: str, at: Margins, mm_per_px: float | None = 0.2) -> Detection:
    x1, y1, x2, y2 = at
    return Detection(
        side=side,
        laterality="L",
        energy=0.3,
        loss=0.1,
        polarity="positive",
        method="search",
        corners=np.zeros((4, 2)),
        centre=(0.0, 0.0),
        width_px=1.0,
        height_px=1.0,
        rotation_deg=0.0,
        mm_per_px=mm_per_px,
        landmarks={"plateau_right": (x1, y1), "plateau_left": (x2, y2)},
    )


def made(
    films: int, seed: int = 0
) -> tuple[Truth, Trial, dict[str, list[tuple[Margins, Margins]]]]:
    """Labels of two sources, what was found near them, and both, by source."""
    rng = np.random.default_rng(seed)
    knees: list[KnownKnee] = []
    found: dict[str, tuple[Detection, ...]] = {}
    plain: dict[str, list[tuple[Margins, Margins]]] = {"knee": [], "leg": []}
    for k in range(films):
        source, areas = ("knee", "leg")[k % 2], []
        for side, x in (("left", 100.0), ("right", 500.0)):
            true = (x, 300 + rng.normal(), x + 200 + 9 * rng.normal(), 300 + 9 * rng.normal())
            near = tuple(value + rng.normal(0, 25) for value in true)
            knees.append(KnownKnee(f"{source}-{k}", side, true[:2], true[2:], source))
            areas.append(area(side, near))
            plain[source].append((true, near))
        found[f"films/{source}-{k}.png"] = tuple(areas)
    return Truth(Path("labels.csv"), tuple(knees), 3), Trial("search", found), plain


def plain_iou(p: Margins, q: Margins) -> float:
    """As one would write it down, apart from the code under test."""
    corners = []
    for x1, y1, x2, y2 in (p, q):
        half = 0.75 * math.sqrt((x2 - x1) ** 2 + (y2 - y1) ** 2)
        x, y = (x1 + x2) / 2, (y1 + y2) / 2
        corners.append((x - half, x + half, y - half, y + half))
    (a0, a1, b0, b1), (c0, c1, d0, d1) = corners
    shared = max(0, min(a1, c1) - max(a0, c0)) * max(0, min(b1, d1) - max(b0, d0))
    return shared / ((a1 - a0) * (b1 - b0) + (c1 - c0) * (d1 - d0) - shared)


def cells(table: Table, method: str, films: str) -> dict[str, Cell]:
    titles = [column.title for column in table.columns]
    assert len(set(titles)) == len(titles)
    rows = [dict(zip(titles, row, strict=True)) for row in table.rows]
    return next(row for row in rows if (row["method"], row["source"]) == (method, films))


@pytest.mark.parametrize("source", ["knee", "leg", "all"])
def test_means_and_recall_are_those_of_a_plain_computation(source: str) -> None:
    truth, trial, plain = made(21)
    (table,) = accuracy_tables([trial], truth, np.random.default_rng(0))
    pairs = plain["knee"] + plain["leg"] if source == "all" else plain[source]
    row = cells(table, "search", source)
    ious = [plain_iou(true, near) for true, near in pairs]
    assert min(ious) < 0.75 < 0.9 < max(ious)  # or recall would tell nothing
    assert row["knees"] == len(pairs)
    assert row["mean IoU"] == pytest.approx(sum(ious) / len(ious))
    for least in ("0.5", "0.75", "0.9"):
        share = sum(iou >= float(least) for iou in ious) / len(ious)
        assert row[f"recall at {least}"] == pytest.approx(share)


def test_errors_are_those_of_a_plain_computation() -> None:
    truth, trial, plain = made(21)
    (table,) = accuracy_tables([trial], truth, np.random.default_rng(0))
    row = cells(table, "search", "all")
    margin, mm, centre = [], [], []
    for true, near in plain["knee"] + plain["leg"]:
        width = math.dist(true[:2], true[2:])
        error = (math.dist(true[:2], near[:2]) + math.dist(true[2:], near[2:])) / 2
        dx, dy = sum(near[::2]) - sum(true[::2]), sum(near[1::2]) - sum(true[1::2])
        margin.append(100 * error / width)
        mm.append(0.2 * error)
        centre.append(50 * math.hypot(dx, dy) / width)
    assert row["margins, median %"] == pytest.approx(np.median(margin))
    assert row["margins, 95th %"] == pytest.approx(np.percentile(margin, 95))
    assert row["centre, median %"] == pytest.approx(np.median(centre))
    assert row["margins, median mm"] == pytest.approx(np.median(mm))


def test_intervals_hold_the_mean_and_are_those_of_the_seed() -> None:
    truth, trial, _ = made(21)
    first, again = (accuracy_tables([trial], truth, np.random.default_rng(0))[0] for _ in range(2))
    assert first.rows == again.rows
    row = cells(first, "search", "all")
    for low, value, high in [
        ("IoU, low", "mean IoU", "IoU, high"),
        ("recall at 0.75, low", "recall at 0.75", "recall at 0.75, high"),
    ]:
        assert row[low] < row[value] < row[high]  # type: ignore[operator]


def test_a_missed_knee_counts_as_no_overlap_and_has_no_error() -> None:
    truth, trial, _ = made(4)
    before = cells(accuracy_tables([trial], truth, np.random.default_rng(0))[0], "search", "all")
    (first, *others) = trial.found
    less = Trial("search", {film: trial.found[film] for film in others}, failed={first: "cut"})
    (table,) = accuracy_tables([trial, less], truth, np.random.default_rng(0))
    row = dict(zip([column.title for column in table.columns], table.rows[-1], strict=True))
    assert (row["knees"], row["missed"]) == (8, 2)
    assert row["recall at 0.5"] == pytest.approx(before["recall at 0.5"] - 2 / 8)  # type: ignore[operator]
    assert row["margins, 95th %"] < 100  # type: ignore[operator]


def test_a_single_source_has_no_row_of_its_own_and_films_without_spacing_no_mm() -> None:
    knee = KnownKnee("one", "left", (100, 300), (300, 300), "other")
    trial = Trial("search", {"one.png": (area("left", (100, 300, 300, 300), None),)})
    (table,) = accuracy_tables(
        [trial, Trial("grid", {})], Truth(Path("labels.csv"), (knee,), 0), np.random.default_rng(0)
    )
    assert [row[:3] for row in table.rows] == [("search", "all", 1), ("grid", "all", 0)]
    assert table.rows[0][-1] is None
    assert table.rows[0][5:7] == (None, None)  # of a single film there is no interval
    assert set(table.rows[1][4:]) == {None}
    assert table.shown()  # None can be shown everywhere


def test_the_caption_tells_how_many_labels_are_left_out() -> None:
    truth, trial, _ = made(2)
    assert "3 knees" in accuracy_tables([trial], truth, np.random.default_rng(0))[0].caption
