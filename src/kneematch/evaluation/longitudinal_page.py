"""The page of a longitudinal comparison: plots of all knees and of each, and the mean changes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kneematch.films.csv_text import Cell
from kneematch.films.files import write_file
from kneematch.knee.detection import knee_text
from kneematch.run.outputs.report import page_template

if TYPE_CHECKING:
    from kneematch.evaluation.longitudinal import Change

Rows = Sequence[Mapping[str, Any]]  # rows of the table, such as those of one knee
Points = list[tuple[int, float, float]]  # place of the visit, value, half length of its bar

COLOURS: Final = ("#d95f02", "#1f78b4")  # medial, lateral
MOST_KNEES: Final = 200  # with a plot of their own


def write_page(path: Path, rows: Rows, changes: Sequence["Change"], visits: Sequence[str]) -> None:
    """Write the page; knees that changed most, compared with what can be detected, come first."""
    unit = "mm" if any(each.measure == "jsw_medial_minimum_mm" for each in changes) else "pct"
    names = [f"jsw_{part}_minimum_{unit}" for part in ("medial", "lateral")]
    groups: dict[tuple[Cell, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        key = row["patient"], row["film_before"], row["image_side_before"]
        groups.setdefault(key, []).append(row)
    knees = sorted(groups.values(), key=lambda knee: -_largest(knee, names))
    all_knees = []
    for name, colour in zip(names, COLOURS, strict=True):
        lines = [_points(knee, name, visits) for knee in knees]
        limit = max((each.sdc or 0.0 for each in changes if each.measure == name), default=0.0)
        moved = [[(place, y - line[0][1], 0.0) for place, y, _ in line] for line in lines]
        all_knees.append(_plot(f"{name}, change since the first visit", moved, colour, limit))
    each_knee = [
        _plot(
            f"{row['patient']}, {knee_text(row['image_side_before'], row['laterality'])}",
            [_points(knee, name, visits) for name in names],
        )
        for knee in knees[:MOST_KNEES]
        for row in knee[:1]
    ]
    page = page_template(Path(__file__).with_name("longitudinal.html.j2")).render(
        all_knees=all_knees,
        each_knee=each_knee,
        changes=[each for each in changes if each.measure in names],
        visits=visits,
        number=len(knees),
        unit=unit,
        colours=COLOURS,
    )
    write_file(path, page.encode())


def _largest(knee: Rows, names: Sequence[str]) -> float:
    """Return the largest change of a knee, as a multiple of the smallest detectable one."""
    pairs = [(row.get(f"{name}_change"), row.get(f"{name}_sdc")) for row in knee for name in names]
    return max((abs(change) / sdc for change, sdc in pairs if change and sdc), default=0.0)


def _points(knee: Rows, name: str, visits: Sequence[str]) -> Points:
    """Return a measure of a knee at its visits."""
    known = [row for row in knee if row.get(f"{name}_change") is not None]
    return [
        (visits.index(row[f"visit_{when}"]), row[f"{name}_{when}"], bar)
        for number, row in enumerate(known)
        for when, bar in (("before", 0.0), ("after", row.get(f"{name}_sdc") or 0.0))
        if number == 0 or when == "after"
    ]


def _plot(
    title: str, lines: list[Points], colour: str | None = None, limit: float = 0.0
) -> dict[str, Any]:
    """Return what the page draws: lines, and a grey band up to a limit on either side of 0."""
    ends = [y + sign * bar for points in lines for _, y, bar in points for sign in (-1, 1)]
    ends_of_axis = {"low": min(0.0, -limit, *ends), "high": max(limit, 1e-6, *ends)}
    return {"title": title, "lines": lines, "colour": colour, "limit": limit, **ends_of_axis}
