"""Losses, scores of knees, and the tables of both, against results worked out by hand."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detections import make_detection
from kneematch.errors import SettingsError
from kneematch.evaluation.labels import LabelledKnee, Labels
from kneematch.evaluation.scores import (
    MethodRun,
    Table,
    accuracy_table,
    bootstrap_mean,
    film_losses,
    loss_table,
    require_margins,
    score_knees,
)
from kneematch.knee.detection import Detection, Point

Margins = tuple[float, float, float, float]  # x1, y1, x2, y2


def run(method: str, losses: list[float]) -> MethodRun:
    """Films 0, 1, ... of two knees, whose losses together are these."""
    found = {
        str(k): (make_detection("left", loss=0.25 * x), make_detection("right", loss=0.75 * x))
        for k, x in enumerate(losses)
    }
    return MethodRun(method, found)


def row(table: Table, *start: str) -> dict[str, object]:
    """The only row that begins so."""
    (found,) = (r for r in table.rows if r[: len(start)] == start)
    return dict(zip(table.columns, found, strict=True))


def test_film_losses_add_both_sides_of_films_with_two_known_losses() -> None:
    both = make_detection("left", loss=0.1), make_detection("right", loss=0.2)
    unknown = make_detection("left", loss=math.nan), make_detection("right", loss=0.2)
    found = {"a": both, "b": (make_detection("left", loss=9.0),), "c": unknown}
    assert film_losses(MethodRun("search", found)) == {"a": pytest.approx(0.3)}


def test_loss_table_has_the_mean_and_its_error_on_films_that_all_methods_have() -> None:
    runs = [run("sliding", [0.1, 0.3, 0.9]), run("neural", [0.1, 0.1]), run("grid", [0.1])]
    losses = loss_table(runs)
    found = row(losses, "sliding")
    assert found["films"] == 2
    assert found["left + right loss"] == pytest.approx(0.2)
    assert found["standard error"] == pytest.approx(0.1)
    assert row(losses, "grid")["films"] == 1  # which was run on fewer
    assert "computed alike" in losses.caption
    nothing = loss_table([MethodRun("sliding", {}), MethodRun("neural", {})])
    assert nothing.shown()[0] == ["sliding", "0", "-", "-"]


def area(side: str, left: Point, right: Point, **changes: Any) -> Detection:
    """A detection whose margins are known; nothing else of it matters here."""
    margins = {"plateau_lateral": left, "plateau_medial": right}
    return make_detection(side, **{"landmarks": margins} | changes)


def labels(*names: str) -> Labels:
    knees = [LabelledKnee(name, "left", (100, 300), (300, 300), "other") for name in names]
    return Labels(Path("labels.csv"), tuple(knees), 0)


def test_require_margins_are_ordered_as_in_the_picture() -> None:
    ends = {"plateau_lateral": (300.0, 1.0), "plateau_medial": (100.0, 2.0)}
    assert require_margins(ends) == ((100, 2), (300, 1))
    assert require_margins(ends | {"spine": (0.0, 0.0)}) == ((100, 2), (300, 1))
    assert require_margins({"b": (9.0, 1.0), "a": (3.0, 1.0)}) == ((3, 1), (9, 1))
    for names in ("", "a", "abc"):
        with pytest.raises(SettingsError, match="lacks the landmarks"):
            require_margins(dict.fromkeys(names, (1.0, 1.0)))


def test_score_knees_counts_knees_that_were_not_found_in_films_that_were_searched() -> None:
    right = area("right", (700, 300), (900, 300))
    left = area("left", (100, 300), (300, 300))
    found = {"one.jpg": (right,), "two.jpg": (left,)}
    search = MethodRun("search", found, failed={"three.jpg": "why"})
    runs = [search, MethodRun("grid", {"two.jpg": (left,)})]
    scores = score_knees(runs, labels("one", "two", "three", "never"))
    many = scores["search"]
    assert [knee.film for knee in many] == ["one.jpg", "two.jpg", "three.jpg"]
    assert [knee.missed for knee in many] == [True, False, True]
    assert [knee.iou for knee in many] == [0, 1, 0]
    assert [math.isnan(knee.margin_percent) for knee in many] == [True, False, True]
    assert [knee.film for knee in scores["grid"]] == ["two.jpg"]


def test_score_knees_finds_the_only_knee_of_a_film_in_either_half() -> None:
    there = area("right", (102.0, 300.0), (300.0, 300.0))
    elsewhere = area("right", (902.0, 300.0), (1100.0, 300.0))
    run = MethodRun("m", {"a": (there,), "b": (elsewhere,), "c": (there, replace(there))})
    scores = score_knees([run], labels("a", "b", "c"))["m"]
    assert [knee.missed for knee in scores] == [False, True, True]
    assert scores[0].margin_percent == pytest.approx(0.5)


def made(
    films: int, seed: int = 0
) -> tuple[Labels, MethodRun, dict[str, list[tuple[Margins, Margins]]]]:
    """Labels of two sources, what was found near them, and both, by source."""
    rng = np.random.default_rng(seed)
    knees: list[LabelledKnee] = []
    found: dict[str, tuple[Detection, ...]] = {}
    plain: dict[str, list[tuple[Margins, Margins]]] = {"knee": [], "leg": []}
    for k in range(films):
        source, areas = ("knee", "leg")[k % 2], []
        for side, x in (("left", 100.0), ("right", 500.0)):
            true = (x, 300 + rng.normal(), x + 200 + 9 * rng.normal(), 300 + 9 * rng.normal())
            x1, y1, x2, y2 = (value + rng.normal(0, 25) for value in true)
            knees.append(LabelledKnee(f"{source}-{k}", side, true[:2], true[2:], source))
            areas.append(area(side, (x1, y1), (x2, y2), mm_per_px=0.2))
            plain[source].append((true, (x1, y1, x2, y2)))
        found[f"films/{source}-{k}.png"] = tuple(areas)
    truth = Labels(Path("labels.csv"), tuple(knees), 3)
    return truth, MethodRun("search", found), plain


def accuracy(truth: Labels, *runs: MethodRun) -> Table:
    return accuracy_table(score_knees(runs, truth), truth.left_out)


def plain_iou(p: Margins, q: Margins) -> float:
    """IoU as one would write it down, apart from the code under test."""
    corners = []
    for x1, y1, x2, y2 in (p, q):
        half = 0.75 * math.sqrt((x2 - x1) ** 2 + (y2 - y1) ** 2)
        x, y = (x1 + x2) / 2, (y1 + y2) / 2
        corners.append((x - half, x + half, y - half, y + half))
    (a0, a1, b0, b1), (c0, c1, d0, d1) = corners
    shared = max(0, min(a1, c1) - max(a0, c0)) * max(0, min(b1, d1) - max(b0, d0))
    return shared / ((a1 - a0) * (b1 - b0) + (c1 - c0) * (d1 - d0) - shared)


@pytest.mark.parametrize("source", ["leg", "all"])
def test_accuracy_table_is_that_of_a_plain_computation(source: str) -> None:
    truth, run, plain = made(21)
    pairs = plain["knee"] + plain["leg"] if source == "all" else plain[source]
    found = row(accuracy(truth, run), "search", source)
    ious = [plain_iou(true, near) for true, near in pairs]
    assert min(ious) < 0.75 < 0.9 < max(ious)  # otherwise recall would be 0 or 1
    assert found["knees"] == len(pairs)
    assert found["mean IoU"] == pytest.approx(sum(ious) / len(ious))
    for least in ("0.5", "0.75", "0.9"):
        share = sum(iou >= float(least) for iou in ious) / len(ious)
        assert found[f"recall at {least}"] == pytest.approx(share)
    errors, widths = [], []
    for true, near in pairs:
        widths.append(math.dist(true[:2], true[2:]))
        errors.append((math.dist(true[:2], near[:2]) + math.dist(true[2:], near[2:])) / 2)
    percent = 100 * np.array(errors) / widths
    assert found["margins, median %"] == pytest.approx(np.median(percent))
    assert found["margins, 95th %"] == pytest.approx(np.percentile(percent, 95))
    assert found["margins, median mm"] == pytest.approx(0.2 * np.median(errors))


def test_accuracy_table_counts_a_missed_knee_as_no_overlap_without_error() -> None:
    truth, run, _ = made(4)
    before = row(accuracy(truth, run), "search", "all")
    (first, *others) = run.found
    less = MethodRun("less", {film: run.found[film] for film in others}, failed={first: "cut"})
    after = row(accuracy(truth, run, less), "less", "all")
    assert (after["knees"], after["missed"]) == (8, 2)
    assert after["recall at 0.5"] == pytest.approx(before["recall at 0.5"] - 2 / 8)  # type: ignore[operator]
    assert after["margins, 95th %"] < 100  # type: ignore[operator]


def test_bootstrap_mean_is_two_standard_errors_wide_to_each_side() -> None:
    values = np.random.default_rng(1).normal(5, 2, size=400)
    low, high = bootstrap_mean([str(k) for k in range(400)], values.tolist())
    error = values.std(ddof=1) / math.sqrt(len(values))
    assert low == pytest.approx(values.mean() - 1.96 * error, abs=0.03)
    assert high == pytest.approx(values.mean() + 1.96 * error, abs=0.03)


def test_bootstrap_mean_keeps_the_knees_of_a_film_together() -> None:
    # A film's two equal knees say no more than one: the interval is no narrower.
    values = np.random.default_rng(3).normal(size=200).tolist()
    films = [str(k) for k in range(200)]
    assert bootstrap_mean([*films, *films], [*values, *values]) == pytest.approx(
        bootstrap_mean(films, values)
    )
    assert bootstrap_mean(list("abb"), [0.0, 1, 1]) == (0, 1)
    assert bootstrap_mean(list("abbc"), [1.0] * 4) == (1, 1)
    assert bootstrap_mean(["a", "a"], [0.5, 1]) == bootstrap_mean([], []) == (None, None)
