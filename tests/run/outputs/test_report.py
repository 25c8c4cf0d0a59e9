"""report.html: one page that needs nothing else, and that no name of a film can spoil."""

import base64
import math
import os
import re
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from detections import make_record
from kneematch.knee.detection import Detection
from kneematch.run.film_record import FilmRecord
from kneematch.run.outputs.report import BINS, Summary, histogram, write_report
from kneematch.run.outputs.run_file import Counts, RunInfo

Knees = tuple[Detection, Detection]
START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
RUN = RunInfo(
    started=START,
    ended=START + timedelta(seconds=20),
    counts=Counts(films=3, knees=6, failed=1, review=2),
    settings={"method": "search", "batch_size": 8},
    command=("kneematch", "detect", "two words.dcm"),
    device="cpu (x86_64, 2 cores)",
    hashes={"template": "ab12cd"},
    timings_s={"read": 4.0, "search": 7300.0},
)
VOID = {"meta", "br"}


class Page(HTMLParser):
    """Tags in order, whether they are closed rightly, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.text.append(data)

    def sources(self) -> list[str]:
        return [str(attrs["href"]) for tag, attrs in self.tags if tag == "image"]


def summarise(films: Iterable[FilmRecord], most_films: int = 48) -> Summary:
    summary = Summary(most_films)
    for film in films:
        summary.add(film)
    return summary


def failed(number: int, path: str, reason: str) -> FilmRecord:
    return make_record(number, path=path, status="failed", reason=reason)


def written(
    tmp_path: Path,
    films: Iterable[FilmRecord],
    run: RunInfo = RUN,
    picture: bytes | None = b"a picture",
) -> tuple[Page, str]:
    path = tmp_path / "report.html"
    write_report(path, run, summarise(films), lambda film: picture)
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    return page, text


def test_write_report_has_counts_settings_versions_and_times(tmp_path: Path, knees: Knees) -> None:
    page, _ = written(tmp_path, [make_record(1, *knees), failed(2, "b.dcm", "b.dcm: empty")])
    told = " ".join(page.text)
    for fact in (
        "2026-03-01 12:00 UTC",
        "4 films in 20.0 s, 0.2 a second",
        "batch size",
        "kneematch detect 'two words.dcm'",
        "ab12cd",
        "2 h 2 min",
        "pydicom",
    ):
        assert fact in told
    cards = [text for text in page.text if text.isdigit()][:4]
    assert cards == ["3", "6", "2", "1"]


def test_write_report_loads_nothing_from_elsewhere(tmp_path: Path, knees: Knees) -> None:
    page, text = written(tmp_path, [make_record(1, knees[0])])
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "link", "iframe", "object", "base", "form"}
    assert all(source.startswith("data:image/webp;base64,") for source in page.sources())
    assert not re.search(r"https?://|@import|url\(", text)
    assert not any(name.startswith("on") for _, attrs in page.tags for name in attrs)
    policy = [attrs["content"] for tag, attrs in page.tags if "http-equiv" in attrs]
    assert policy == ["default-src 'none'; img-src data:; style-src 'unsafe-inline'"]


HOSTILE = [
    "<script>alert(1)</script>.dcm",
    "\"><img src=x onerror='alert(1)'>.dcm",
    "a&lt;b&amp;.dcm",
    os.fsdecode(b"\xff\xfe.dcm"),
    "\u202egnp.exe\n\0.dcm",
    "x" * 3000,
]


@pytest.mark.parametrize("name", HOSTILE)
def test_write_report_no_name_or_reason_is_more_than_text(
    tmp_path: Path, knees: Knees, name: str
) -> None:
    flagged = replace(knees[0], needs_review=True, reasons=("b",))
    plain, _ = written(tmp_path, [make_record(1, flagged), failed(2, "c", "d")])
    bad = replace(flagged, reasons=(name,))
    run = replace(RUN, settings={"method": name, "batch_size": 8}, command=("x", "y", name))
    films = [make_record(1, bad, path=name), failed(2, name, name)]
    page, _ = written(tmp_path, films, run)
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in plain.tags]
    assert page.sources() == plain.sources()
    shown = "".join(sign if sign.isprintable() else "�" for sign in name)
    assert shown in page.text


def test_write_report_draws_the_marks_on_thumbnails(tmp_path: Path, knees: Knees) -> None:
    flagged = replace(knees[0], needs_review=True, landmarks={"margin": (10.0, 20.0)})
    page, text = written(tmp_path, [make_record(1, flagged, knees[1])])
    assert base64.b64decode(page.sources()[0].split(",")[1]) == b"a picture"
    areas = [attrs["points"] for tag, attrs in page.tags if tag == "polygon"]
    wanted = [" ".join(f"{x:.1f},{y:.1f}" for x, y in knee.corners) for knee in (flagged, knees[1])]
    assert areas[::2] == wanted
    assert text.count('class="left dashed"') == 1
    assert text.count('class="cross"') == 1 + 1  # and the legend


def test_write_report_says_where_a_picture_is_missing(tmp_path: Path, knees: Knees) -> None:
    page, _ = written(tmp_path, [make_record(1, knees[0])], picture=None)
    assert page.sources() == []
    assert "no picture" in page.text


def test_write_report_explains_the_drawing_and_how_to_review(tmp_path: Path, knees: Knees) -> None:
    run = replace(RUN, settings={"out": Path("my results")})
    page, _ = written(tmp_path, [make_record(1, knees[0])], run=run)
    told = " ".join(" ".join(page.text).split())
    for part in ("a landmark", "thick corner", "the patient’s side, or the half", "to review"):
        assert part in told
    assert "kneematch review 'my results'" in told


@pytest.mark.parametrize(
    ("settings", "hashes", "shown", "hidden"),
    [
        ({"model": None, "template": None}, {"model": "ab"}, "the built-in model", "None"),
        ({"model": "m.safetensors"}, {"model": "ab"}, "m.safetensors", "built-in"),
        ({"model": None, "template": "t.json"}, {"template": "ab"}, "t.json", "built-in"),
        ({"export": ("coco", "dicom"), "sheet": None, "crops": True}, {}, "coco, dicom", "("),
        ({"method": "auto"}, {}, "search (chosen automatically)", "auto "),
        ({"method": "grid", "paper": False, "paper_settings": (300, 0.01)}, {}, "grid", "300"),
    ],
)
def test_write_report_settings_are_words(
    tmp_path: Path,
    knees: Knees,
    settings: dict[str, Any],
    hashes: dict[str, str],
    shown: str,
    hidden: str,
) -> None:
    run = replace(RUN, settings=settings, hashes=hashes, device="", command=())
    _, text = written(tmp_path, [make_record(1, knees[0])], run=run)
    table = text.partition("<h2>Settings</h2>")[2].partition("</table>")[0]
    assert shown in table
    assert hidden not in table.replace(shown, "")
    assert ("crops" in settings) == ("<code>yes</code>" in table)


def test_write_report_shows_the_first_of_many_failures(tmp_path: Path) -> None:
    films = [failed(k, f"/x/{k}.dcm", f"/x/{k}.dcm: The file is empty.") for k in range(1234)]
    page, _ = written(tmp_path, films, replace(RUN, counts=Counts(failed=1234)))
    assert "199.dcm" in page.text
    assert "200.dcm" not in page.text
    assert "and 1,034 more: see failures.csv" in page.text
    assert "The file is empty." in page.text  # without the path a second time


def test_write_report_names_tell_films_apart(tmp_path: Path, knees: Knees) -> None:
    paths = [f"/oai/{patient}/001" for patient in ("9000099", "9000296")]
    films = [make_record(k, knees[0], path=path) for k, path in enumerate(paths)]
    page, _ = written(tmp_path, films)
    assert {"9000099/001", "9000296/001"} <= set(page.text)


def test_write_report_of_an_empty_run(tmp_path: Path) -> None:
    run = RunInfo(started=START, ended=START, counts=Counts(), settings={})
    page, _ = written(tmp_path, [], run)
    assert "Nothing was flagged." in " ".join(page.text)
    assert page.sources() == []


def one_bin(place: int, count: int = 1) -> list[int]:
    counts = [0] * BINS
    counts[place] = count
    return counts


NONE = [0] * BINS


def test_histogram_bars_are_as_tall_as_their_counts() -> None:
    good = [a + b for a, b in zip(one_bin(2, 100), one_bin(9, 50), strict=True)]
    bars, end, top, _ = histogram(good, one_bin(9, 25))
    assert (end, top) == (0.2, 100)
    assert [bar[:3] for bar in bars] == [(0.05, 1, 0), (0.225, 0.5, 0.25)]
    assert bars[1][3] == "loss 0.045 to 0.050: 75 knees, 25 to review"


@pytest.mark.parametrize(("place", "end"), [(39, 0.2), (40, 0.4), (80, 1), (199, 1)])
def test_histogram_axis_ends_behind_the_worst_knee(place: int, end: float) -> None:
    (bar,), axis_end, _, _ = histogram(one_bin(place), NONE)
    assert axis_end == end
    assert bar[1] == 1


@pytest.mark.parametrize("most", [0, 1, 3, 17, 999, 123456])
def test_histogram_grid_lines_are_few_and_round(most: int) -> None:
    _, _, top, step = histogram(one_bin(0, most), NONE)
    assert 2 <= len(range(0, top + 1, step)) <= 6
    assert re.fullmatch("[125]0*", str(step))
    assert top >= most


def test_histogram_shows_one_knee_among_very_many() -> None:
    bars, *_ = histogram(one_bin(0, 500_000), one_bin(150))
    assert max(flagged for _, _, flagged, _ in bars) == 0.01


def films(knees: Knees, losses: list[tuple[float, float]]) -> list[FilmRecord]:
    return [
        make_record(k, *(replace(knee, loss=loss) for knee, loss in zip(knees, pair, strict=True)))
        for k, pair in enumerate(losses)
    ]


def worst(summary: Summary) -> list[str]:
    return [film.path for film in summary.worst]


def test_summary_counts_every_knee_by_its_loss(knees: Knees) -> None:
    found = summarise(films(knees, [(0.0, 0.1024), (0.1025, 1.0), (-0.01, 1.7)]))
    assert sum(found.good) == 6
    assert (found.good[0], found.good[20], found.good[-1]) == (2, 2, 2)
    assert sum(found.flagged) == 0
    assert list(found.methods) == ["search"]


def test_write_report_says_that_it_shows_some_of_the_films_to_review(
    tmp_path: Path, knees: Knees
) -> None:
    pair = tuple(replace(knee, needs_review=True) for knee in knees)
    rows = films((pair[0], pair[1]), [(0.5, 0.6)] * 50)
    page, _ = written(tmp_path, rows)
    assert "Of 50 films to review, the 48 that match worst; " in " ".join(page.text)
    page, _ = written(tmp_path, rows[:48])
    assert "Films to review, then those that match worst: 48 of" in " ".join(page.text)


def test_summary_counts_nan_as_the_worst_loss(knees: Knees) -> None:
    found = summarise(films(knees, [(0.9, 0.9), (math.nan, 0.1), (0.1, math.nan)]))
    assert found.good[-1] == 2
    assert worst(found) == ["1.dcm", "2.dcm", "0.dcm"]


def test_summary_ranks_films_by_review_and_their_worst_knee(knees: Knees) -> None:
    rows = films(knees, [(0.9, 0.9), (0.1, 0.1), (0.2, 0.2), (0.0, 0.5)])
    flagged = replace(knees[0], needs_review=True, reasons=("cut by the edge", "metal"))
    rows[1] = make_record(1, flagged, replace(knees[1], needs_review=True, reasons=("metal",)))
    found = summarise(rows, most_films=3)
    assert worst(found) == ["1.dcm", "0.dcm", "3.dcm"]
    assert found.common_reasons == [("metal", 2), ("cut by the edge", 1)]
    assert (sum(found.good), sum(found.flagged), found.films_to_review) == (6, 2, 1)


def test_summary_keeps_the_order_of_films_that_are_equally_bad(knees: Knees) -> None:
    found = summarise(films(knees, [(0.1, 0.1)] * 9), most_films=4)
    assert worst(found) == ["0.dcm", "1.dcm", "2.dcm", "3.dcm"]
