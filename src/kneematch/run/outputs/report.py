"""report.html: one self-contained page about a run, with the films worth a look first.

The page is a Jinja2 template, which escapes all text. Its histogram is SVG in that template:
matplotlib would add 0.35 s of CPU time to a run (0.27 for its import), about as much as the rest of
the page, and its text would shrink with the page on a phone.
"""

import base64
import heapq
import math
import os
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC
from itertools import count
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kneematch.films.discovery import common_folder
from kneematch.films.files import atomic_write
from kneematch.knee.overlay import COLOURS, TICK, label_text
from kneematch.run.film_record import FilmRecord
from kneematch.run.outputs.run_file import RunInfo, versions

MOST_FAILURES: Final = 200
BINS: Final = 200  # bins in which losses from 0 to 1 are counted
BARS: Final = 40  # bars of the histogram
AXIS_ENDS: Final = (0.2, 0.4, 1.0)  # the loss axis ends at the first that holds all knees
LOWEST_BAR: Final = 0.01  # share of the chart's height: one knee in a million is visible


Bar = tuple[float, float, float, str]  # x, height of the good, height of the flagged, title
Rank = tuple[bool, float, int]  # films to review first, then by loss, then in their order


class Summary:
    """The part of a run's rows that fits on a page, whatever the size of the run."""

    def __init__(self, most_films: int) -> None:
        """Keep as many of the films that match worst: those to review first, then by loss."""
        self.good, self.flagged = [0] * BINS, [0] * BINS  # numbers of knees by loss
        self.reasons: Counter[str] = Counter()  # for review
        self.methods: dict[str, None] = {}
        self.films_to_review = 0
        self.failures: list[FilmRecord] = []  # the first films without knees
        self._most_films = most_films
        self._worst: list[tuple[Rank, FilmRecord]] = []  # a heap

    def add(self, film: FilmRecord) -> None:
        """Count the knees of a film."""
        if film.has_failed and len(self.failures) < MOST_FAILURES:
            self.failures.append(film)
        for knee in film.kept:
            (self.flagged if knee.needs_review else self.good)[_bin(knee.loss)] += 1
            self.reasons.update(knee.review_reasons)
            self.methods[knee.method] = None
        if film.kept:
            highest = max(math.inf if math.isnan(k.loss) else k.loss for k in film.kept)
            to_review = any(knee.needs_review for knee in film.kept)
            self.films_to_review += to_review
            ranked = (to_review, highest, -film.id), film
            if len(self._worst) < self._most_films:
                heapq.heappush(self._worst, ranked)
            else:
                heapq.heappushpop(self._worst, ranked)

    @property
    def worst(self) -> list[FilmRecord]:
        """The films that match worst, the worst first."""
        return [film for _, film in sorted(self._worst, key=itemgetter(0), reverse=True)]

    @property
    def common_reasons(self) -> list[tuple[str, int]]:
        """The reasons for review with their counts, most frequent first."""
        return sorted(self.reasons.items(), key=lambda item: (-item[1], item[0]))


def write_report(
    path: str | os.PathLike[str],
    run: RunInfo,
    summary: Summary,
    thumbnail: Callable[[int], bytes | None],
) -> None:
    """Write report.html; `thumbnail` gives the picture of a film, as WebP, by its id."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        finalize=printable,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    folder = common_folder([film.path for film in (*summary.worst, *summary.failures)])
    bars, axis_end, axis_top, step = histogram(summary.good, summary.flagged)
    page = environment.get_template("report.html.j2").generate(
        run=run,
        ended=f"{run.ended.astimezone(UTC):%Y-%m-%d %H:%M} UTC",
        duration=_duration(run.seconds),
        films=run.counts.films + run.counts.no_knee + run.counts.failed,
        summary=summary,
        bars=bars,
        bar_width=1 / BARS,
        x_ticks=[(k / 4, f"{axis_end * k / 4:g}") for k in range(5)],
        y_ticks=[(count / axis_top, count) for count in range(0, axis_top + 1, step)],
        cards=[_card(film, thumbnail(film.id)) for film in summary.worst],
        colours={side: "rgb({}, {}, {})".format(*colour) for side, colour in COLOURS.items()},
        review_command=shlex.join(["kneematch", "review", str(run.settings.get("out", "FOLDER"))]),
        settings=_settings(run, summary),
        timings={part: _duration(seconds) for part, seconds in run.timings_s.items()},
        provenance=_provenance(run),
        short_name=lambda film: film.removeprefix(folder),
    )
    with atomic_write(path) as temp, temp.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(page)


def _card(film: FilmRecord, picture: bytes | None) -> dict[str, Any]:
    """Return what the page shows of a film: its picture, and the marks to draw on it."""
    height, width = film.size or (1, 1)
    marks = []
    for knee in film.kept:
        corners = knee.corners
        leftmost = knee is film.kept[0] and len(film.kept) > 1  # labels grow outwards
        across, down = TICK * (corners[1] - corners[0]), TICK * (corners[3] - corners[0])
        marks.append(
            {
                "side": knee.side,
                "review": knee.needs_review,
                "area": _points(corners),
                "tick": _points(np.stack([corners[0] + across, corners[0], corners[0] + down])),
                "landmarks": [(round(x, 1), round(y, 1)) for x, y in knee.landmarks.values()],
                "arm": round(TICK / 3 * knee.width_px, 1),
                "label": " ".join(label_text(knee).split()),
                "x": round(float(corners[:, 0].max() if leftmost else corners[:, 0].min()), 1),
                "anchor": "end" if leftmost else "start",
                "y": round(float(corners[:, 1].min()), 1),
            }
        )
    url = None
    if picture is not None:
        url = f"data:image/webp;base64,{base64.b64encode(picture).decode('ascii')}"
    return {
        "film": film.path,
        "knees": film.kept,
        "picture": url,
        "size": (width, height),
        "text_px": round(max(width, height) / 24, 1),
        "marks": marks,
    }


def _points(points: NDArray[np.float64]) -> str:
    """Return points (K, 2) as the attribute of a polygon in SVG."""
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def histogram(good: Sequence[int], flagged: Sequence[int]) -> tuple[list[Bar], float, int, int]:
    """Turn counts of losses, (BINS,) each, into bars.

    Returns:
        The bars that are not empty, with positions and heights as shares of the chart, the loss at
        the end of the x axis, the count at the top of the y axis, and the step of its grid lines:
        1, 2 or 5 times a power of ten, so that there are about four.
    """
    bins = np.array([good, flagged])
    last = np.flatnonzero(bins.any(0)).max(initial=0)
    end = next(end for end in AXIS_ENDS if last < round(end * BINS))
    counts = bins[:, : round(end * BINS)].reshape(2, BARS, -1).sum(2)
    most = int(counts.sum(0).max())
    step = next(k * 10**e for e in count() for k in (1, 2, 5) if most <= 4 * k * 10**e)
    top = max(step, math.ceil(most / step) * step)
    bars = []
    for k, (plain, review) in enumerate(counts.T.tolist()):
        low, high = (max(LOWEST_BAR, n / top) if n else 0.0 for n in (plain, review))
        title = f"loss {end * k / BARS:.3f} to {end * (k + 1) / BARS:.3f}: {plain + review:,} knees"
        title += f", {review:,} to review" if review else ""
        if plain + review:
            bars.append((k / BARS, low, high, title))
    return bars, end, top, step


def printable(value: object) -> object:
    """Replace signs that do not print, or that reverse the reading direction, in a text."""
    if type(value) is not str:  # numbers, and markup that the template has made
        return value
    return "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in value)


def _bin(loss: float) -> int:
    """Return the bin of a loss; NaN counts as the highest."""
    return int(max(loss, 0.0) * BINS) if loss < 1 else BINS - 1


def _settings(run: RunInfo, summary: Summary) -> dict[str, str]:
    """Describe the settings that were made; run.json has all of them."""
    settings: dict[str, Any] = dict(run.settings)
    if "model" in run.hashes and settings.get("model") is None:
        settings["model"] = "the built-in model"
    if settings.get("method") == "auto" and summary.methods:
        settings["method"] = f"{', '.join(summary.methods)} (chosen automatically)"
    unused = {"num_parts", "part_id"} if settings.get("num_parts") == 1 else set()
    unused |= set() if settings.get("paper") else {"paper_settings"}
    settings = {name: value for name, value in settings.items() if name not in unused}
    made = {}
    for name, value in settings.items():
        if value is not None and value is not False and value not in ((), []):
            text = ", ".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)
            made[name.replace("_", " ")] = "yes" if value is True else text
    return made


def _provenance(run: RunInfo) -> dict[str, str]:
    """Return what is needed to repeat the run."""
    facts = {
        "command": shlex.join(run.command),
        "versions": ", ".join(f"{name} {version}" for name, version in versions().items()),
        "device": run.device,
        **{f"SHA-256 of {name.replace('_', ' ')}": value for name, value in run.hashes.items()},
    }
    return {name: value for name, value in facts.items() if value}


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
