"""report.html: one page that needs nothing else, and that no name of a film can spoil."""

import base64
import io
import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from kneematch.knee.detection import Detection
from kneematch.run.outputs.report import BINS, PICTURE_PX, histogram, summarise, write_report
from kneematch.run.outputs.run_file import Counts, Run

Knees = tuple[Detection, Detection]
START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
RUN = Run(
    started=START,
    ended=START + timedelta(seconds=20),
    counts=Counts(films=3, knees=6, failed=1, review=2),
    settings={"method": "search", "batch_size": 8},
    command=("kneematch", "detect", "two words.dcm"),
    device="cpu (x86_64, 2 cores)",
    hashes={"template": "ab12cd"},
    timings_s={"read": 4.0, "search": 7300.0},
)
VOID = {"meta", "img", "rect", "line", "input", "br"}


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
        return [str(attrs["src"]) for tag, attrs in self.tags if tag == "img"]


GREY = Image.new("RGB", (900, 600), (90, 90, 90))


def written(
    tmp_path: Path,
    rows: Sequence[tuple[str, Detection]],
    failures: Sequence[tuple[str, str]] = (),
    run: Run = RUN,
    picture: Image.Image | None = GREY,
) -> tuple[Page, str]:
    path = tmp_path / "report.html"
    summary = summarise(rows, failures)
    write_report(path, run, summary, [picture] * len(summary.worst))
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    return page, text


def test_write_report_has_counts_settings_versions_and_times(tmp_path: Path, knees: Knees) -> None:
    page, _ = written(tmp_path, [("a.dcm", knee) for knee in knees], [("b.dcm", "b.dcm: empty")])
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
    page, text = written(tmp_path, [("a.dcm", knees[0])])
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
    plain, _ = written(
        tmp_path, [("a.dcm", replace(knees[0], review="yes", reason="b"))], [("c", "d")]
    )
    bad = replace(knees[0], review="yes", reason=name.replace(";", ""))  # which parts reasons
    run = replace(RUN, settings={"method": name, "batch_size": 8}, command=("x", "y", name))
    page, _ = written(tmp_path, [(name, bad)], [(name, name)], run)
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in plain.tags]
    assert page.sources() == plain.sources()
    shown = "".join(sign if sign.isprintable() else "�" for sign in name)
    assert shown in page.text


def test_write_report_pictures_are_small(tmp_path: Path, knees: Knees) -> None:
    page, _ = written(tmp_path, [("a.dcm", knees[0]), ("b.dcm", knees[1])])
    assert len(page.sources()) == 2
    content = base64.b64decode(page.sources()[0].split(",")[1])
    with Image.open(io.BytesIO(content)) as shown:
        assert max(shown.size) == PICTURE_PX


def test_write_report_says_where_a_picture_is_missing(tmp_path: Path, knees: Knees) -> None:
    page, _ = written(tmp_path, [("a.dcm", knees[0])], picture=None)
    assert page.sources() == []
    assert "no picture" in page.text


def test_write_report_explains_the_drawing_and_how_to_review(tmp_path: Path, knees: Knees) -> None:
    run = replace(RUN, settings={"out": Path("my results")})
    page, _ = written(tmp_path, [("a.dcm", knees[0])], run=run)
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
    _, text = written(tmp_path, [("a.dcm", knees[0])], run=run)
    table = text.partition("<h2>Settings</h2>")[2].partition("</table>")[0]
    assert shown in table
    assert hidden not in table.replace(shown, "")
    assert ("crops" in settings) == ("<code>yes</code>" in table)


def test_write_report_shows_the_first_of_many_failures(tmp_path: Path) -> None:
    failures = [(f"/x/{k}.dcm", f"/x/{k}.dcm: empty; expected a film") for k in range(1234)]
    page, _ = written(tmp_path, [], failures, replace(RUN, counts=Counts(failed=1234)))
    assert "199.dcm" in page.text
    assert "200.dcm" not in page.text
    assert "and 1,034 more: see failures.csv" in page.text
    assert "empty; expected a film" in page.text  # without the path a second time


def test_write_report_names_tell_films_apart(tmp_path: Path, knees: Knees) -> None:
    films = [(f"/oai/{patient}/001", knees[0]) for patient in ("9000099", "9000296")]
    page, _ = written(tmp_path, films)
    assert {"9000099/001", "9000296/001"} <= set(page.text)


def test_write_report_of_an_empty_run(tmp_path: Path) -> None:
    run = Run(started=START, ended=START, counts=Counts(), settings={})
    page, _ = written(tmp_path, [], [], run)
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


def films(knees: Knees, losses: list[tuple[float, float]]) -> Iterator[tuple[str, Detection]]:
    for number, pair in enumerate(losses):
        for knee, loss in zip(knees, pair, strict=True):
            yield f"{number}.dcm", replace(knee, loss=loss)


def test_summarise_counts_every_knee_by_its_loss(knees: Knees) -> None:
    found = summarise(films(knees, [(0.0, 0.1024), (0.1025, 1.0), (-0.01, 1.7)]), [])
    assert sum(found.good) == 6
    assert len(found.good) == len(found.flagged) == BINS
    assert (found.good[0], found.good[20], found.good[-1]) == (2, 2, 2)
    assert sum(found.flagged) == 0
    assert found.methods == ("search",)


def test_write_report_says_that_it_shows_some_of_the_films_to_review(
    tmp_path: Path, knees: Knees
) -> None:
    rows = [(film, replace(knee, review="yes")) for film, knee in films(knees, [(0.5, 0.6)] * 50)]
    page, _ = written(tmp_path, rows)
    assert "Of 50 films to review, the 48 that match worst; " in " ".join(page.text)
    page, _ = written(tmp_path, rows[: 2 * 48])
    assert "Films to review, then those that match worst: 48 of" in " ".join(page.text)


def test_summarise_counts_nan_as_the_worst_loss(tmp_path: Path, knees: Knees) -> None:
    rows = list(films(knees, [(0.9, 0.9), (math.nan, 0.1), (0.1, math.nan)]))
    found = summarise(rows, [])
    assert found.good[-1] == 2
    assert [film for film, _ in found.worst] == ["1.dcm", "2.dcm", "0.dcm"]
    written(tmp_path, rows)


def test_summarise_ranks_a_film_by_its_worst_knee(knees: Knees) -> None:
    rows = films(knees, [(0.1, 0.2), (0.5, 0.0), (0.3, 0.3), (0.0, 0.0)])
    found = summarise(rows, [], most_films=3)
    assert [film for film, _ in found.worst] == ["1.dcm", "2.dcm", "0.dcm"]
    assert [knee.loss for knee in found.worst[0][1]] == [0.5, 0.0]


def test_summarise_ranks_films_to_review_before_all_others(knees: Knees) -> None:
    rows = list(films(knees, [(0.9, 0.9), (0.1, 0.1), (0.2, 0.2)]))
    rows[2] = rows[2][0], replace(rows[2][1], review="yes", reason="cut by the edge; metal")
    rows[3] = rows[3][0], replace(rows[3][1], review="yes", reason="metal")
    found = summarise(rows, [])
    assert [film for film, _ in found.worst] == ["1.dcm", "0.dcm", "2.dcm"]
    assert found.reasons == (("metal", 2), ("cut by the edge", 1))
    assert (sum(found.good), sum(found.flagged)) == (4, 2)


def test_summarise_keeps_the_order_of_films_that_are_equally_bad(knees: Knees) -> None:
    found = summarise(films(knees, [(0.1, 0.1)] * 9), [], most_films=4)
    assert [film for film, _ in found.worst] == ["0.dcm", "1.dcm", "2.dcm", "3.dcm"]
    assert len(summarise(films(knees, [(0.1, 0.1)] * 60), []).worst) == 48


def test_summarise_counts_a_flag_without_a_reason_too(knees: Knees) -> None:
    found = summarise([("a", replace(knees[0], review="yes"))], [])
    assert found.reasons == (("not stated", 1),)


def test_summarise_keeps_the_first_failures() -> None:
    failures = [(f"{k}.dcm", "why") for k in range(207)]
    found = summarise([], iter(failures))
    assert (found.failures, found.worst) == (tuple(failures[:200]), ())
