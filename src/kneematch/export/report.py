"""report.html: a run on one page that needs nothing else, the films worth a look first."""

import base64
import html
import io
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC
from pathlib import Path
from typing import Any, Final

from PIL import Image

from kneematch.detection.detection import Detection
from kneematch.export.report_chart import histogram
from kneematch.export.run_file import Run, versions
from kneematch.export.summary import Survey, Worst, survey
from kneematch.io.atomic import write_aside

PICTURE_PX: Final = 640  # longest side, enlarged; on the page it is shown smaller
QUALITY: Final = 70  # of WebP
# Nothing is loaded and nothing is run, whatever the names of films are.
POLICY: Final = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"

Picture = Callable[[str, Sequence[Detection]], Image.Image | None]


def write_report(
    path: str | os.PathLike[str],
    run: Run,
    rows: Iterable[tuple[str, Detection]],
    failures: Iterable[tuple[str, str]],
    picture: Picture,
) -> None:
    """Write report.html.

    Args:
        path: the file.
        run: counts, settings, times.
        rows: film and detection, the knees of a film one after the other; they are not kept.
        failures: film and reason.
        picture: draws a film with what was found on it, or returns None where that is not
            possible any more; asked for the worst films alone.
    """
    write_survey(path, run, survey(rows, failures), picture)


def write_survey(path: str | os.PathLike[str], run: Run, found: Survey, picture: Picture) -> None:
    """Write report.html of a survey, for who wants to draw its films beforehand."""
    with write_aside(path) as aside, aside.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{part}\n" for part in _page(run, found, picture))


def _page(run: Run, found: Survey, picture: Picture) -> Iterator[str]:
    style = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    yield (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Knee joint areas: {run.counts.knees:,} knees</title>\n"
        f"<style>\n{style}</style></head><body>"
    )
    yield _head(run)
    yield _counts(run)
    yield _overview(found)
    yield from _films(run, found, picture)
    yield _failures(found)
    yield _facts(run)
    yield "<footer>Made by kneematch. Nothing here is a medical device.</footer></body></html>"


def _head(run: Run) -> str:
    when = f"{run.ended.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    films = run.counts.films + run.counts.failed
    rate = f", {films / run.seconds:,.1f} a second" if run.seconds > 0 and films else ""
    return (
        "<header><h1>Knee joint areas</h1>"
        f'<p class="soft">{when} · {_many(films, "film")} in {_duration(run.seconds)}{rate}</p>'
        "</header>"
    )


def _counts(run: Run) -> str:
    counts = run.counts
    cards = (
        ("", counts.films, "films with knees"),
        ("", counts.knees, "knees found"),
        ("flag" if counts.review else "", counts.review, "knees to review"),
        ("bad" if counts.failed else "", counts.failed, "films failed"),
    )
    told = (
        f'<div class="card {kind}"><b>{count:,}</b><span class="soft">{what}</span></div>'
        for kind, count, what in cards
    )
    return f'<section class="counts">{"".join(told)}</section>'


def _overview(found: Survey) -> str:
    rows = "".join(
        f'<tr><td>{_text(reason)}</td><td class="number">{count:,}</td></tr>'
        for reason, count in found.reasons
    )
    table = f"<table>{rows}</table>" if rows else '<p class="soft">Nothing was flagged.</p>'
    return (
        '<section class="two"><div class="card"><h2>How well they match</h2>'
        '<div class="key"><span><i class="good"></i> knees</span>'
        '<span><i class="flagged"></i> to review</span></div>'
        f"{histogram(found.good, found.flagged)}</div>"
        f'<div class="card"><h2>Reasons to review</h2>{table}</div></section>'
    )


def _films(run: Run, found: Survey, picture: Picture) -> Iterator[str]:
    if not found.worst:
        return
    shown = f"{len(found.worst):,} of {_many(run.counts.films, 'film')}"
    yield (
        '<section><h2>Look at these first</h2><p class="soft">Films to review, then those that '
        f"match worst: {shown}. A click enlarges a picture, another one closes it.</p>"
        '<div class="films">'
    )
    for film in found.worst:
        yield _film(film, picture(film.film, film.detections))
    yield "</div></section>"


def _film(worst: Worst, drawn: Image.Image | None) -> str:
    """A picture that enlarges, and what is to be known of it."""
    if drawn is None:
        shown = '<div class="none">no picture</div>'
    else:
        source = f"data:image/webp;base64,{_encoded(drawn)}"
        alt = f"{_text(worst.film)} with its joint areas"
        shown = f'<details><summary><img src="{source}" alt="{alt}"></summary></details>'
    return (
        f'<figure class="card">{shown}<div class="text"><div class="name" '
        f'title="{_text(worst.film)}">{_text(Path(worst.film).name)}</div>'
        f"{''.join(map(_knee, worst.detections))}</div></figure>"
    )


def _knee(found: Detection) -> str:
    """Side, loss, and why it should be looked at."""
    flag = " flag" if found.needs_review else ""
    return (
        f'<div class="knee{flag}"><span class="side">{_text(found.side)} '
        f"({_text(found.laterality)})</span><span>{found.loss:.3f}</span>"
        f'<span class="why">{_text(", ".join(found.review_reasons))}</span></div>'
    )


def _failures(found: Survey) -> str:
    if not found.failed:
        return ""
    rows = "".join(
        f'<tr><th class="name" title="{_text(film)}">{_text(Path(film).name)}</th><td>'
        f"{_text(reason.removeprefix(f'{film}: '))}</td></tr>"
        for film, reason in found.failures
    )
    more = found.failed - len(found.failures)
    rest = f'<p class="soft">and {more:,} more: see failures.csv</p>' if more else ""
    return (
        f'<section><h2>Films that failed</h2><div class="card"><table>{rows}</table>{rest}</div>'
        "</section>"
    )


def _facts(run: Run) -> str:
    """What is needed to repeat the run."""
    made_with = ", ".join(f"{name} {version}" for name, version in versions().items())
    told = {"command": shlex.join(run.command), "versions": made_with, "device": run.device}
    told |= {f"SHA-256 of {name}": value for name, value in run.hashes.items()}
    seconds = {part: _duration(value) for part, value in run.timings_s.items()}
    columns = (
        f'<div class="card {kind}"><h2>{title}</h2>{_table(facts)}</div>'
        for kind, title, facts in (
            ("", "Settings", run.settings),
            ("", "Where the time went", seconds),
            ("wide", "To repeat it", {name: value for name, value in told.items() if value}),
        )
        if facts
    )
    return f'<section class="facts">{"".join(columns)}</section>'


def _table(facts: Mapping[str, Any]) -> str:
    rows = (
        f'<tr><th class="name">{_text(name.replace("_", " "))}</th>'
        f"<td><code>{_text(value)}</code></td></tr>"
        for name, value in facts.items()
    )
    return f"<table>{''.join(rows)}</table>"


def _encoded(drawn: Image.Image) -> str:
    picture = drawn.convert("RGB")
    picture.thumbnail((PICTURE_PX, PICTURE_PX), Image.Resampling.LANCZOS)
    content = io.BytesIO()
    picture.save(content, format="WEBP", quality=QUALITY)
    return base64.b64encode(content.getvalue()).decode("ascii")


def _text(value: object) -> str:
    """Anything as text for HTML, without signs that do not print or that turn the line round."""
    return html.escape("".join(sign if sign.isprintable() else "�" for sign in str(value)))


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
