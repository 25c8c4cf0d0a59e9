"""report.html: one page that needs nothing else, and that no name of a film can spoil."""

import base64
import math
import os
import re
from collections.abc import Iterable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detections import Knees, make_record
from kneematch.knee.measure import JointMeasures, Outlines
from kneematch.run.film_record import FilmRecord
from kneematch.run.outputs.report import Summary, write_report

COUNTS = {"films": 3, "knees": 6, "no_knee": 0, "failed": 1, "review": 2}
COUNTS |= {"accepted": 0, "rejected": 0, "corrected": 0}
RUN: dict[str, Any] = {
    "ended": "2026-03-01T12:00:00+00:00",
    "seconds": 7300.0,
    "counts": COUNTS,
    "settings": {"method": "search", "batch_size": 8, "model": None, "template": None},
    "command": ["kneematch", "detect", "two words.dcm"],
    "device": "cpu (x86_64, 2 cores)",
    "sha256": {"model": "ef34", "template": "ab12cd"},
    "versions": {"kneematch": "1.2.3", "torch": "2.6"},
}
VOID = {"meta", "br", "img"}


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

    @property
    def told(self) -> str:
        return " ".join(" ".join(self.text).split())

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
    run: dict[str, Any] = RUN,
    picture: bytes | None = b"a picture",
) -> Page:
    path = tmp_path / "report.html"
    write_report(path, run, summarise(films), lambda film: picture)
    page = Page(path.read_text(encoding="utf-8"))
    assert page.open == []
    return page


def test_write_report_has_counts_settings_versions_and_times(tmp_path: Path, knees: Knees) -> None:
    page = written(tmp_path, [make_record(1, *knees), failed(2, "b.dcm", "b.dcm: empty")])
    for fact in (
        "2026-03-01 12:00 UTC",
        "Knees on 4 films",
        "took 2 h 2 min",
        "batch size",
        "kneematch detect 'two words.dcm'",
        "the built-in model",
        "template ab12cd",
        "kneematch 1.2.3, torch 2.6",
        f"kneematch review {tmp_path}",  # wherever the terminal is opened
    ):
        assert fact in page.told
    cards = [text for text in page.text if text.isdigit()][:4]
    assert cards == ["1", "0", "0", "1"]  # films with two knees, one, none, and not readable
    page = written(tmp_path, [], {**RUN, "ended": "2026-03-01T1!:00:00+00:00"})
    assert "2026-03-01 1!:00 UTC" in page.told  # a damaged time, as it is


def test_write_report_loads_nothing_from_elsewhere(tmp_path: Path, knees: Knees) -> None:
    page = written(tmp_path, [make_record(1, knees[0])])
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "link", "iframe", "object", "base", "form"}
    assert all(source.startswith("data:image/jpeg;base64,") for source in page.sources())
    assert not re.search(r"https?://|@import|url\(", text)
    assert not any(name.startswith("on") for _, attrs in page.tags for name in attrs)
    policy = [attrs["content"] for tag, attrs in page.tags if "http-equiv" in attrs]
    assert policy == ["default-src 'none'; img-src data:; style-src 'unsafe-inline'"]


def test_write_report_answers_first_what_can_be_trusted(tmp_path: Path, knees: Knees) -> None:
    margins = {"plateau_medial": (0.0, 0.0), "plateau_lateral": (100.0, 0.0)}
    sure = replace(knees[0], landmarks=margins, expected_error_px=3.0, mm_per_px=0.2)
    flagged = replace(sure, needs_review=True, reasons=("metal",), laterality="")
    films = [make_record(k, sure, replace(sure, side="right")) for k in range(10)]
    films += [make_record(10, flagged), make_record(11, path="/x/hip.dcm", status="no_knee")]
    counts = COUNTS | {"films": 11, "knees": 21, "review": 1, "no_knee": 1}
    (tmp_path / "detections.csv").touch()
    page = written(tmp_path, films, RUN | {"counts": counts})
    assert "1 of 21 knees to look at (5 %)." in page.told
    assert "expect about 4 of 40 margins" in page.told  # a tenth: the limit is 3 px
    assert "Right or left is known 20" in page.told
    assert "Millimetres are known 21" in page.told
    links = [attrs["href"] for tag, attrs in page.tags if tag == "a"]
    assert links == ["detections.csv"]  # of the tables that are there
    pictures = [attrs["alt"] for tag, attrs in page.tags if tag == "img"]
    assert pictures == ["/x/hip.dcm"]


def test_write_report_shows_measures_and_how_many_are_missing(tmp_path: Path, knees: Knees) -> None:
    x = np.linspace(0, 100, 101)
    lines = np.stack([x, 0 * x + 40], 1), np.stack([x, 0 * x + 50], 1)
    measured, bare = (
        replace(knees[0], measures=JointMeasures.from_outlines(outlines))
        for outlines in (Outlines(*lines, "left", mm_per_px=0.5), Outlines(*lines, "left"))
    )
    told = written(tmp_path, [make_record(1, measured, bare)]).told
    assert "median 5.0 mm · 1 measured, 5 missing (4 bones not outlined, 1 millimetres" in told
    assert "0 measured, 6 missing (4 bones not outlined, 2 shaft too short)" in told
    told = written(tmp_path, [make_record(1, bare, bare)]).told  # no film has millimetres
    assert "median 10.0 % · 2 measured, 4 missing (4 bones not outlined) from" in told


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
    plain = written(tmp_path, [make_record(1, flagged), failed(2, "c", "d")])
    bad = replace(flagged, reasons=(name,))
    settings = {"method": name, "batch_size": 8}
    run = RUN | {"settings": settings, "command": ["x", "y", name]}
    films = [make_record(1, bad, path=name), failed(2, name, name)]
    page = written(tmp_path, films, run)
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in plain.tags]
    assert page.sources() == plain.sources()
    shown = "".join(sign if sign.isprintable() else "�" for sign in name)
    assert shown in page.text


def test_write_report_draws_the_marks_on_thumbnails(tmp_path: Path, knees: Knees) -> None:
    flagged = replace(knees[0], needs_review=True, landmarks={"margin": (10.0, 20.0)})
    page = written(tmp_path, [make_record(1, flagged, knees[1])])
    assert base64.b64decode(page.sources()[0].split(",")[1]) == b"a picture"
    areas = [attrs["points"] for tag, attrs in page.tags if tag == "polygon"]
    wanted = [" ".join(f"{x:.1f},{y:.1f}" for x, y in knee.corners) for knee in (flagged, knees[1])]
    assert areas[::2] == wanted
    marks = [attrs.get("class") for _, attrs in page.tags]
    assert marks.count("left dashed") == 1
    assert marks.count("cross") == 1 + 1  # and the legend
    page = written(tmp_path, [make_record(1, knees[0])], picture=None)
    assert (page.sources(), "no picture" in page.text) == ([], True)
    page = written(tmp_path, [], RUN | {"counts": dict.fromkeys(COUNTS, 0), "seconds": 0.0})
    assert (page.sources(), "Nothing was flagged." in page.told) == ([], True)


def test_write_report_shows_the_first_of_many_failures(tmp_path: Path) -> None:
    films = [failed(k, f"/x/{k}.dcm", f"/x/{k}.dcm: The file is empty.") for k in range(1234)]
    page = written(tmp_path, films, RUN | {"counts": COUNTS | {"failed": 1234}})
    assert "199.dcm" in page.text
    assert "200.dcm" not in page.text
    assert "and 1,034 more: see failures.csv" in page.text
    assert "The file is empty." in page.text  # without the path a second time


def test_write_report_names_tell_films_apart(tmp_path: Path, knees: Knees) -> None:
    paths = [f"/oai/{patient}/001" for patient in ("9000099", "9000296")]
    films = [make_record(k, knees[0], path=path) for k, path in enumerate(paths)]
    page = written(tmp_path, films)
    assert {"9000099/001", "9000296/001"} <= set(page.text)


def test_summary_ranks_films_by_review_and_their_worst_knee(knees: Knees) -> None:
    def films(*losses: tuple[float, float]) -> list[FilmRecord]:
        pairs = [[replace(knees[k], loss=loss) for k, loss in enumerate(pair)] for pair in losses]
        return [make_record(k, *pair) for k, pair in enumerate(pairs)]

    rows = films((0.9, 0.9), (0.1, 0.1), (0.2, 0.2), (0.0, 0.5))
    flagged = replace(knees[0], needs_review=True, reasons=("cut by the edge", "metal"))
    rows[1] = make_record(1, flagged, replace(knees[1], needs_review=True, reasons=("metal",)))
    found = summarise(rows, most_films=3)
    assert [film.path for film in found.worst] == ["1.dcm", "0.dcm", "3.dcm"]
    assert found.reasons.most_common() == [("metal", 2), ("cut by the edge", 1)]
    assert found.films_to_review == 1
    found = summarise(films(*[(0.1, 0.1)] * 9), most_films=4)  # equally bad ones: in order
    assert [film.path for film in found.worst] == ["0.dcm", "1.dcm", "2.dcm", "3.dcm"]
    placed = make_record(1, replace(knees[0], loss=math.nan, decision="corrected"))
    found = summarise([placed, make_record(2, replace(knees[0], loss=0.1))])
    assert [film.path for film in found.worst] == ["2.dcm", "1.dcm"]  # a reviewer's come last
