"""report.html: one self-contained page about a run, with the films worth a look first.

The page is a Jinja2 template, which escapes all text. Its histograms are SVG in that template:
matplotlib would add 0.35 s of CPU time to a run (0.27 for its import), about as much as the rest of
the page, and its text would shrink with the page on a phone.
"""

import heapq
import math
import os
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from operator import itemgetter
from pathlib import Path
from statistics import median_low
from typing import TYPE_CHECKING, Any, Final

from kneematch.films.annotation import find_plateau_margins
from kneematch.films.discovery import common_folder
from kneematch.films.files import atomic_write
from kneematch.films.pictures import data_url
from kneematch.knee.detection import Detection
from kneematch.knee.measure import ANGLE, in_mm
from kneematch.knee.overlay import COLOURS, TICK
from kneematch.run.film_record import NO_KNEE, FilmRecord

if TYPE_CHECKING:
    from jinja2 import Template

MOST_FAILURES: Final = 200
MOST_EMPTY: Final = 12  # films without a knee that are shown
MARGIN_ERROR: Final = 0.03  # margin error that the page counts, as a share of the plateau's width
MEASURES: Final = {  # titles of the measures that are shown
    "jsw_medial_minimum": "Smallest joint-space width, medial",
    "jsw_lateral_minimum": "Smallest joint-space width, lateral",
    "tibiofemoral_angle": "Angle between femur and tibia, varus above 0",
}
RANGES: Final = {"mm": (0, 12), "%": (0, 16), "°": (-20, 20)}  # ends of their histograms
SPARK_BARS: Final = 24
NO_MM, NO_OUTLINES = "millimetres not known", "bones not outlined"  # why measures are missing
LINKS: Final = {  # results that the page links to, where they are there
    "detections.csv": "one row for each knee: where it is, which side, whether to look at it",
    "knees.csv": "one row for each knee: its main measures; begin here",
    "measurements.csv": "all joint-space widths and angles, with standard deviations",
    "outlines.json": "outlines of the bones",
    "failures.csv": "films with no knee, and films that could not be used",
    "review.csv": "the decisions of the review",
    "crops": "a picture of each knee",
    "crops.csv": "where each of these pictures lies on its film",
    "overlays": "each film with its knees drawn on it",
    "dicom-objects": "reports and pictures for an image archive",
    "coco.json": "the knees, for programs that label images",
}

Rank = tuple[bool, float, int]  # films to review first, then by loss, then in their order


class Summary:
    """The part of a run's rows that fits on a page, whatever the size of the run."""

    def __init__(self, most_films: int) -> None:
        """Keep as many of the films that match worst: those to review first, then by loss."""
        self.reasons: Counter[str] = Counter()  # for review
        self.methods: dict[str, None] = {}
        self.films_to_review = 0
        self.failures: list[FilmRecord] = []  # the first films that could not be used
        self.empty: list[FilmRecord] = []  # the first films without a knee
        self.films_by_knees: Counter[int] = Counter()
        self.sided = self.in_mm = 0  # knees whose side is known, and with millimetres
        self.trusted = 0  # knees that nobody needs to look at or has looked at
        self.expected_errors = 0.0  # among their margins; NaN if not known
        self.measures: defaultdict[tuple[str, str], Counter[float]] = defaultdict(Counter)  # units
        self.unmeasured: defaultdict[str, Counter[str]] = defaultdict(Counter)  # the reasons
        self.measured = False  # the run has measures
        self._most_films = most_films
        self._worst: list[tuple[Rank, FilmRecord]] = []  # a heap

    def add(self, film: FilmRecord) -> None:
        """Count the knees of a film."""
        if film.has_failed and film.status == NO_KNEE and len(self.empty) < MOST_EMPTY:
            self.empty.append(film)
        elif film.has_failed and film.status != NO_KNEE and len(self.failures) < MOST_FAILURES:
            self.failures.append(film)
        self.films_by_knees[len(film.kept)] += 1
        # An area that a reviewer placed has no loss, and needs no second look.
        matched = [k for k in film.kept if not (k.decision and math.isnan(k.loss))]
        for knee in film.kept:
            self.reasons.update(knee.review_reasons)
            self.methods[knee.method] = None
            self._add_facts(knee)
        if film.kept:
            losses = (math.inf if math.isnan(knee.loss) else knee.loss for knee in matched)
            highest = max(losses, default=0.0)
            to_review = any(knee.needs_review for knee in film.kept)
            self.films_to_review += to_review
            ranked = (to_review, highest, -film.id), film
            if len(self._worst) < self._most_films:
                heapq.heappush(self._worst, ranked)
            else:
                heapq.heappushpop(self._worst, ranked)

    def _add_facts(self, knee: Detection) -> None:
        """Count what is known of a knee, how far it can be trusted, and its measures."""
        self.sided += bool(knee.laterality)
        self.in_mm += knee.mm_per_px is not None
        if not knee.needs_review and not knee.decision:
            self.trusted += 1
            self.expected_errors += expected_errors(knee)
        if knee.measures is not None:
            self.measured = True
            for name in MEASURES:
                measure = knee.measures.values[name]
                mm = in_mm(measure, knee.measures.outlines)
                if measure.value is None:
                    self.unmeasured[name][measure.reason] += 1
                else:
                    unit = "°" if measure.unit == ANGLE else "%"
                    self.measures[name, unit][round(measure.value, 1)] += 1
                if mm is not None:
                    self.measures[name, "mm"][round(mm, 1)] += 1

    @property
    def worst(self) -> list[FilmRecord]:
        """The films that match worst, the worst first."""
        return [film for _, film in sorted(self._worst, key=itemgetter(0), reverse=True)]


def write_report(
    path: str | os.PathLike[str],
    run: Mapping[str, Any],
    summary: Summary,
    thumbnail: Callable[[int], bytes | None],
    noun: str = "knee",
) -> None:
    """Write report.html.

    Args:
        path: where to write it.
        run: the content of run.json.
        summary: what is to be shown of the films.
        thumbnail: gives the picture of a film, as JPEG, by its id.
        noun: what the run looked for, "knee" or "area".
    """
    listed = (*summary.worst, *summary.failures, *summary.empty)
    folder, out = common_folder([film.path for film in listed]), Path(path).parent
    page = _page_template().generate(
        run=run,
        ended=f"{str(run['ended'])[:16].replace('T', ' ')} UTC",  # as run_facts writes it
        duration=_duration(run["seconds"]),
        films=sum(run["counts"][status] for status in ("films", "no_knee", "failed")),
        summary=summary,
        noun=noun,
        a_noun="an area" if noun == "area" else f"a {noun}",
        cards=[_card(film, thumbnail(film.id)) for film in summary.worst],
        colours={side: "rgb({}, {}, {})".format(*colour) for side, colour in COLOURS.items()},
        empty=[_card(film, thumbnail(film.id)) for film in summary.empty],
        errors=_about(summary.expected_errors) if summary.trusted else None,
        measures=_measures(summary, run["counts"]["knees"]),
        links={
            name: about.replace("knee", noun)
            for name, about in LINKS.items()
            if (out / name).exists()
        },
        review_command=shlex.join(["kneematch", "review", str(out.resolve())]),
        settings=_settings(run, summary),
        provenance=_provenance(run),
        short_name=lambda film: film.removeprefix(folder),
    )
    with atomic_write(path) as temp, temp.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(page)


def _page_template() -> "Template":
    """Return the template of the page, which escapes all text that it is given."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        finalize=printable,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2")


def _card(film: FilmRecord, picture: bytes | None) -> dict[str, Any]:
    """Return what the page shows of a film: its picture, and the marks to draw on it."""
    height, width = film.size or (1, 1)
    marks = []
    for knee in film.kept:
        corners = knee.corners
        known = knee.laterality or knee.alone
        leftmost = knee is film.kept[0] and len(film.kept) > 1  # labels grow outwards
        marks.append(
            {
                "half": knee.half,
                "review": knee.needs_review,
                "area": " ".join(f"{x:.1f},{y:.1f}" for x, y in corners),
                "landmarks": [(round(x, 1), round(y, 1)) for x, y in knee.landmarks.values()],
                "arm": round(TICK / 3 * knee.width_px, 1),
                "label": knee.template or (knee.name if known else f"image {knee.half}"),
                "x": round(float(corners[:, 0].max() if leftmost else corners[:, 0].min()), 1),
                "anchor": "end" if leftmost else "start",
                "y": round(float(corners[:, 1].min()), 1),
            }
        )
    return {
        "film": film.path,
        "reason": film.reason.removeprefix(f"{film.path}: "),
        "knees": film.kept,
        "picture": None if picture is None else data_url(picture, "jpeg"),
        "size": (width, height),
        "text_px": round(max(width, height) / 24, 1),
        "marks": marks,
    }


def expected_errors(knee: Detection) -> float:
    """Return how many of a knee's two margins are expected to be off by MARGIN_ERROR.

    Nine of ten errors lie below `expected_error_px`; the others are taken to be spread as distances
    of points with normal errors are (Rayleigh). NaN where the margins or that limit are not known.
    """
    margins = find_plateau_margins(knee.landmarks)
    if margins is None or not knee.expected_error_px:
        return math.nan
    share = MARGIN_ERROR * math.dist(*margins) / knee.expected_error_px
    return float(len(margins) * 0.1 ** (share**2))


def _about(number: float) -> str | None:
    """Return a number of errors in words; None if it is NaN."""
    if math.isnan(number):
        return None
    return "none" if number < 0.1 else "at most one" if number < 1 else f"about {round(number):,}"


def _measures(summary: Summary, knees: int) -> list[dict[str, Any]]:
    """Return what the page shows of each measure: counts, the median and a histogram."""
    shown = []
    for name, title in MEASURES.items() if summary.measured else ():
        unit = next((unit for unit in RANGES if (name, unit) in summary.measures), "mm")
        counts = summary.measures[name, unit]
        (low, high), total = RANGES[unit], counts.total()
        bins: Counter[int] = Counter()
        for value, number in counts.items():
            place = math.floor((value - low) / (high - low) * SPARK_BARS)
            bins[min(max(place, 0), SPARK_BARS - 1)] += number
        reasons = Counter(summary.unmeasured[name])
        reasons[NO_MM] = sum(summary.measures[name, "%"].values()) - total if unit == "mm" else 0
        reasons[NO_OUTLINES] = knees - total - reasons.total()
        wide, most = (high - low) / SPARK_BARS, max(bins.values(), default=1)
        median = f"{median_low(counts.elements()):.1f} {unit}".replace(" °", "°") if total else ""
        shown.append(
            {
                "title": title,
                "measured": total,
                "missing": knees - total,
                "reasons": [(why, number) for why, number in reasons.most_common() if number > 0],
                "median": median,
                "bars": [
                    (k / SPARK_BARS, number / most, f"from {low + k * wide:g} {unit}: {number:,}")
                    for k, number in sorted(bins.items())
                ],
                "bins": SPARK_BARS,
                "unit": "% of the plateau’s width" if unit == "%" else unit,
                "low": low,
                "high": high,
            }
        )
    return shown


def printable(value: object) -> object:
    """Replace characters that do not print, or that reverse the reading direction, in a text."""
    if type(value) is not str or value.isprintable():  # or a number, or the template's own markup
        return value
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in value)


def _settings(run: Mapping[str, Any], summary: Summary) -> dict[str, str]:
    """Describe the settings that were made; run.json has all of them."""
    settings: dict[str, Any] = dict(run["settings"])
    if "model" in run["sha256"] and settings.get("model") is None:
        settings["model"] = "the built-in model"
    if settings.get("method") == "auto" and summary.methods:
        settings["method"] = f"{', '.join(summary.methods)} (chosen automatically)"
    made = {}
    for name, value in settings.items():
        if value is not None and value is not False and value not in ((), []):
            text = ", ".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)
            made[name.replace("_", " ")] = "yes" if value is True else text
    return made


def _provenance(run: Mapping[str, Any]) -> dict[str, str]:
    """Return what is needed to repeat the run."""
    facts = {
        "command": shlex.join(map(str, run["command"])),
        "versions": ", ".join(f"{name} {version}" for name, version in run["versions"].items()),
        "device": run["device"],
        **{f"SHA-256 of {name.replace('_', ' ')}": value for name, value in run["sha256"].items()},
    }
    return {name: value for name, value in facts.items() if value}


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
