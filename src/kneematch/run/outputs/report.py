"""report.html: one self-contained page about a run, with the films worth a look first.

The page is a Jinja2 template, which escapes all text. Its histogram is SVG in that template:
matplotlib would add 0.35 s of CPU time to a run (0.27 for its import), about as much as the rest of
the page, and its text would shrink with the page on a phone.
"""

import heapq
import math
import os
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC
from itertools import count, groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image

from kneematch.films.discovery import common_folder
from kneematch.films.display import data_url
from kneematch.films.files import atomic_write
from kneematch.knee.detection import Detection
from kneematch.knee.overlay import COLOURS
from kneematch.run.outputs.run_file import Run, versions

PICTURE_PX: Final = 640  # longest side of a picture when enlarged; the page shows it smaller
WEBP_QUALITY: Final = 70
MOST_FAILURES: Final = 200
BINS: Final = 200  # bins in which losses from 0 to 1 are counted
BARS: Final = 40  # bars of the histogram
AXIS_ENDS: Final = (0.2, 0.4, 1.0)  # the loss axis ends at the first that holds all knees
LOWEST_BAR: Final = 0.01  # of the chart's height, so that one knee in a million is visible


FilmKnees = tuple[str, tuple[Detection, ...]]  # a film, and the knees found on it
Bar = tuple[float, float, float, str]  # x, height of the good, height of the flagged, title


@dataclass(frozen=True, slots=True, eq=False)
class RunSummary:
    """The part of a run's rows that fits on a page, whatever the size of the run."""

    good: tuple[int, ...]  # (BINS,) numbers of knees by loss, without those to review
    flagged: tuple[int, ...]  # (BINS,) numbers of knees to review by loss
    reasons: tuple[tuple[str, int], ...]  # for review, with their counts, most frequent first
    methods: tuple[str, ...]
    worst: tuple[FilmKnees, ...]  # worst first
    films_to_review: int  # of all films, whether they are among the worst or not
    failures: tuple[tuple[str, str], ...]  # film and reason of the first failures


def summarise(
    rows: Iterable[tuple[str, Detection]],
    failures: Iterable[tuple[str, str]],
    *,
    most_films: int = 48,
) -> RunSummary:
    """Summarise a run in one pass over its rows.

    Args:
        rows: film and detection, the knees of a film one after the other.
        failures: film and reason.
        most_films: number of worst films to keep: those to review first, then by loss.
    """
    bins = [0] * BINS, [0] * BINS
    reasons: Counter[str] = Counter()
    methods: dict[str, None] = {}
    to_review: Counter[bool] = Counter()

    def ranked() -> Iterator[tuple[tuple[bool, float, int], FilmKnees]]:
        for number, (film, group) in enumerate(groupby(rows, key=itemgetter(0))):
            knees = tuple(knee for _, knee in group)
            for knee in knees:
                bins[knee.needs_review][_bin(knee.loss)] += 1
                reasons.update(knee.review_reasons)
                methods[knee.method] = None
            highest = max(math.inf if math.isnan(knee.loss) else knee.loss for knee in knees)
            flagged = any(knee.needs_review for knee in knees)
            to_review[flagged] += 1
            yield (flagged, highest, -number), (film, knees)

    worst = heapq.nlargest(most_films, ranked())
    return RunSummary(
        good=tuple(bins[0]),
        flagged=tuple(bins[1]),
        reasons=tuple(sorted(reasons.items(), key=lambda item: (-item[1], item[0]))),
        methods=tuple(methods),
        worst=tuple(film for _, film in worst),
        films_to_review=to_review[True],
        failures=tuple(islice(failures, MOST_FAILURES)),
    )


def write_report(
    path: str | os.PathLike[str],
    run: Run,
    summary: RunSummary,
    pictures: Sequence[Image.Image | None],
) -> None:
    """Write report.html, with a picture, or None, of each of the summary's worst films."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        finalize=printable,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    folder = common_folder([film for film, _ in (*summary.worst, *summary.failures)])
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
        cards=zip(summary.worst, map(_data_url, pictures), strict=True),
        colours={side: "rgb({}, {}, {})".format(*colour) for side, colour in COLOURS.items()},
        review_command=shlex.join(["kneematch", "review", str(run.settings.get("out", "FOLDER"))]),
        settings=_settings(run, summary),
        timings={part: _duration(seconds) for part, seconds in run.timings_s.items()},
        provenance=_provenance(run),
        short_name=lambda film: film.removeprefix(folder),
    )
    with atomic_write(path) as temp, temp.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(page)


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


def _settings(run: Run, summary: RunSummary) -> dict[str, str]:
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


def _provenance(run: Run) -> dict[str, str]:
    """Return what is needed to repeat the run."""
    facts = {
        "command": shlex.join(run.command),
        "versions": ", ".join(f"{name} {version}" for name, version in versions().items()),
        "device": run.device,
        **{f"SHA-256 of {name.replace('_', ' ')}": value for name, value in run.hashes.items()},
    }
    return {name: value for name, value in facts.items() if value}


def _data_url(picture: Image.Image | None) -> str | None:
    if picture is None:
        return None
    small = picture.convert("RGB")
    small.thumbnail((PICTURE_PX, PICTURE_PX), Image.Resampling.LANCZOS)
    return data_url(small, "webp", quality=WEBP_QUALITY)


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
