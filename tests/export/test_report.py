"""report.html: one page that needs nothing else, and that no name of a film can spoil."""

import base64
import io
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from PIL import Image

from kneematch.detection.detection import Detection
from kneematch.export.report import PICTURE_PX, write_report
from kneematch.export.report_chart import histogram
from kneematch.export.run_file import Counts, Run
from kneematch.export.summary import BINS

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


def grey(film: str, detections: Sequence[Detection]) -> Image.Image:
    return Image.new("RGB", (900, 600), (90, 90, 90))


def written(
    tmp_path: Path,
    rows: Sequence[tuple[str, Detection]],
    failures: Sequence[tuple[str, str]] = (),
    run: Run = RUN,
) -> tuple[Page, str]:
    path = tmp_path / "report.html"
    write_report(path, run, rows, failures, grey)
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    return page, text


def test_counts_settings_versions_and_times_are_told(tmp_path: Path, knees: Knees) -> None:
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


def test_nothing_is_loaded_from_elsewhere(tmp_path: Path, knees: Knees) -> None:
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
def test_no_name_or_reason_is_more_than_text(tmp_path: Path, knees: Knees, name: str) -> None:
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


def test_pictures_are_small_and_those_of_the_worst_films(tmp_path: Path, knees: Knees) -> None:
    asked: list[str] = []

    def picture(film: str, detections: Sequence[Detection]) -> Image.Image | None:
        asked.append(film)
        assert all(isinstance(found, Detection) for found in detections)
        return None if film == "7.dcm" else grey(film, detections)

    rows = [(f"{k}.dcm", replace(knee, loss=k / 100)) for k in range(60) for knee in knees]
    path = tmp_path / "report.html"
    write_report(path, RUN, iter(rows), iter([]), picture)
    assert asked == [f"{k}.dcm" for k in range(59, 11, -1)]
    sources = Page(path.read_text(encoding="utf-8")).sources()
    assert len(sources) == 48
    content = base64.b64decode(sources[0].split(",")[1])
    with Image.open(io.BytesIO(content)) as shown:
        assert max(shown.size) == PICTURE_PX
    write_report(path, RUN, [("7.dcm", knees[0])], [], picture)
    assert "no picture" in path.read_text(encoding="utf-8")


def test_of_many_failures_the_first_are_shown(tmp_path: Path) -> None:
    failures = [(f"/x/{k}.dcm", f"/x/{k}.dcm: empty; expected a film") for k in range(1234)]
    page, _ = written(tmp_path, [], failures)
    assert "199.dcm" in page.text
    assert "200.dcm" not in page.text
    assert "and 1,034 more: see failures.csv" in page.text
    assert "empty; expected a film" in page.text  # without the path a second time


def test_an_empty_run_has_a_page(tmp_path: Path) -> None:
    run = Run(started=START, ended=START, counts=Counts(), settings={})
    page, _ = written(tmp_path, [], [], run)
    assert "Nothing was flagged." in page.text
    assert page.sources() == []


def heights(chart: str, kind: str) -> list[float]:
    return [float(tall) for tall in re.findall(rf'class="{kind}"[^>]*height="([\d.]+)"', chart)]


def test_bars_are_as_tall_as_their_counts() -> None:
    good, flagged = [0] * BINS, [0] * BINS
    good[2], good[9], flagged[9] = 100, 50, 25
    chart = histogram(good, flagged)
    Page(chart)
    assert heights(chart, "good") == pytest.approx([202, 101], abs=0.2)
    assert heights(chart, "flagged") == pytest.approx([0, 50.5], abs=0.2)
    assert "loss 0.045 to 0.050: 75 knees, 25 to review" in chart


@pytest.mark.parametrize(("bin_", "end"), [(39, "0.2"), (40, "0.4"), (80, "1"), (199, "1")])
def test_the_axis_ends_behind_the_worst_knee(bin_: int, end: str) -> None:
    good = [0] * BINS
    good[bin_] = 1
    chart = histogram(good, [0] * BINS)
    assert f'text-anchor="end">{end}</text>' in chart
    assert heights(chart, "good") == [202.0]


@pytest.mark.parametrize("most", [0, 1, 3, 17, 999, 123456])
def test_lines_of_the_chart_are_few_and_round(most: int) -> None:
    chart = histogram([most] + [0] * (BINS - 1), [0] * BINS)
    labels = [int(text.replace(",", "")) for text in re.findall(r'"end">([\d,]+)</text>', chart)]
    steps = {b - a for a, b in pairwise(labels)}
    assert 2 <= len(labels) <= 6
    assert len(steps) == 1
    assert re.fullmatch("[125]0*", str(steps.pop()))
    assert labels[-1] >= most


def test_one_knee_among_very_many_is_seen() -> None:
    good, flagged = [500_000] + [0] * (BINS - 1), [0] * BINS
    flagged[150] = 1
    assert max(heights(histogram(good, flagged), "flagged")) == 2.0
