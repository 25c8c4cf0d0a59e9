"""The page of a longitudinal comparison: plots of all knees and of each, and the mean changes."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kneematch.films.csv_text import Cell
from kneematch.films.files import write_file
from kneematch.knee.detection import knee_text

if TYPE_CHECKING:
    from kneematch.evaluation.longitudinal import Change

Rows = Sequence[Mapping[str, Cell]]  # rows of the table, such as those of one knee
Points = list[tuple[int, float, float]]  # place of the visit, value, half length of its bar

COLOURS: Final = {"medial": "#d95f02", "lateral": "#1f78b4"}
MOST_KNEES: Final = 200  # with a plot of their own
WIDTH, HEIGHT, LEFT, EDGE = 260, 150, 34, 16  # pixels of a plot, and of its margins
HEAD: Final = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Changes</title><style>
body{font:15px/1.45 system-ui,sans-serif;max-width:1120px;margin:2em auto;padding:0 1em}
table{border-collapse:collapse}td,th{padding:.2em .8em;text-align:right;border-top:1px solid #ccc}
td{white-space:nowrap}th:first-child,td:first-child{text-align:left}
figure{display:inline-block;margin:0 8px 16px 0}
figcaption{font-size:13px;max-width:260px;overflow-wrap:anywhere}svg{font-size:11px}</style>
<h1>Changes of the smallest joint-space widths</h1>
<p>The smallest detectable change is what 95 % of knees that did not change stay below, by the
standard deviations of their measures: grey in plots of all knees, a bar in those of each.</p>"""


def write_page(path: Path, rows: Rows, changes: Sequence["Change"], visits: Sequence[str]) -> None:
    """Write the page; knees that changed most, compared with what can be detected, come first."""
    unit = "mm" if any(each.measure == "jsw_medial_minimum_mm" for each in changes) else "pct"
    names = {f"jsw_{part}_minimum_{unit}": colour for part, colour in COLOURS.items()}
    knees: dict[tuple[Cell, ...], list[Mapping[str, Cell]]] = {}
    for row in rows:
        key = row["patient"], row["film_before"], row["image_side_before"]
        knees.setdefault(key, []).append(row)
    content = [HEAD]
    for name, colour in names.items():
        lines = [
            (_points(knee, name, visits, changes_only=True), colour) for knee in knees.values()
        ]
        limit = max((each.sdc or 0 for each in changes if each.measure == name), default=0)
        title = f"{name}, change since the first visit: all {len(knees)} knees"
        content.append(_figure(lines, visits, title, limit))
    content += _table([each for each in changes if each.measure in names])
    coloured = " and ".join(f'<b style="color:{c}">{name}</b>' for name, c in COLOURS.items())
    most = sorted(knees.values(), key=lambda knee: -_largest(knee, names))[:MOST_KNEES]
    shown = f"The {len(most)} of {len(knees)} knees that changed most. " * (len(most) < len(knees))
    content.append(f"<h2>Each knee</h2><p>{shown}Width in {unit}, {coloured}.</p>")
    for knee in most:
        lines = [(_points(knee, name, visits), colour) for name, colour in names.items()]
        which = knee_text(str(knee[0]["image_side_before"]), str(knee[0]["laterality"]))
        content.append(_figure(lines, visits, f"{knee[0]['patient']}, {which}"))
    write_file(path, "\n".join(content).encode("utf-8", "backslashreplace"))


def _largest(knee: Rows, names: Mapping[str, str]) -> float:
    """Return the largest change of a knee, as a multiple of the smallest detectable one."""
    pairs = [(row.get(f"{name}_change"), row.get(f"{name}_sdc")) for row in knee for name in names]
    return max(
        (abs(float(change)) / float(sdc) for change, sdc in pairs if change and sdc), default=0
    )


def _points(knee: Rows, name: str, visits: Sequence[str], *, changes_only: bool = False) -> Points:
    """Return a measure of a knee, or its changes, at its visits."""
    known = [row for row in knee if row.get(f"{name}_change") is not None]
    first = [
        (visits.index(str(row["visit_before"])), float(row[f"{name}_before"] or 0), 0.0)
        for row in known[:1]
    ]
    later = [
        (
            visits.index(str(row["visit_after"])),
            float(row[f"{name}_after"] or 0),
            float(row.get(f"{name}_sdc") or 0),
        )
        for row in known
    ]
    if not changes_only:
        return first + later
    return [(place, value - first[0][1], 0.0) for place, value, _ in first + later]


def _table(changes: Sequence["Change"]) -> Iterator[str]:
    yield "<table><tr><th>measure<th>visit<th>knees<th>mean change<th>standard deviation"
    yield "<th>smallest detectable change<th>knees beyond it"
    for each in changes:
        numbers = (
            f"{each.mean:+.2f}",
            *("" if n is None else f"{n:.2f}" for n in (each.sd, each.sdc)),
        )
        cells = (each.measure, escape(each.visit), str(each.knees), *numbers, str(each.beyond))
        yield "<tr>" + "".join(f"<td>{cell}" for cell in cells)
    yield "</table>"


def _figure(
    lines: Sequence[tuple[Points, str]], visits: Sequence[str], title: str, limit: float = 0.0
) -> str:
    """Return a plot with a line for each series, and a grey band up to a limit from 0."""
    ends = [
        value + sign * bar for points, _ in lines for _, value, bar in points for sign in (-1, 1)
    ]
    low, high = min([0.0, -limit, *ends]), max([limit, *ends, 1e-6])

    def x(place: float) -> float:
        return LEFT + (WIDTH - LEFT - 2 * EDGE) * place / max(len(visits) - 1, 1)

    def y(value: float) -> float:
        return EDGE / 2 + (HEIGHT - 1.5 * EDGE) * (high - value) / (high - low)

    drawn = [f'<figure><svg width="{WIDTH}" height="{HEIGHT}">']
    if limit:
        band = f'width="{WIDTH - LEFT}" height="{y(-limit) - y(limit):.1f}" fill="#ddd"'
        drawn.append(f'<rect x="{LEFT}" y="{y(limit):.1f}" {band}/>')
    for value in (low, 0, high):
        drawn.append(f'<path d="M{LEFT} {y(value):.1f}H{WIDTH}" stroke="#ccc"/>')
        drawn.append(f'<text x="0" y="{y(value) + 4:.1f}">{value:.1f}</text>')
    for number, (points, colour) in enumerate(lines):
        beside = 3 * number if len(lines) < 3 else 0  # so that no bar hides another
        path = "L".join(f"{x(place):.1f} {y(value):.1f}" for place, value, _ in points)
        bars = "".join(
            f"M{x(place) + beside:.1f} {y(value - bar):.1f}V{y(value + bar):.1f}"
            for place, value, bar in points
            if bar
        )
        drawn.append(f'<path d="M{path}{bars}" fill="none" stroke="{colour}"/>' if points else "")
    for place in {0, len(visits) - 1}:
        anchor = "start" if place == 0 else "end"
        at = f'x="{x(place) if place == 0 else WIDTH:.1f}" y="{HEIGHT - 2}" text-anchor="{anchor}"'
        drawn.append(f"<text {at}>{escape(visits[place])}</text>")
    return "".join([*drawn, f"</svg><figcaption>{escape(title)}</figcaption></figure>"])
