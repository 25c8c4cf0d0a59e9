"""What an evaluation writes: a page to read, the tables for LaTeX and as CSV, and all numbers."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from kneematch import __version__
from kneematch.evaluation.config import GRID, Settings
from kneematch.evaluation.tables import Cell, Table, to_csv, to_latex, to_markdown
from kneematch.export.run_file import device_name, versions
from kneematch.io.atomic import write_aside

FORMAT: Final = "kneematch-evaluation/1"
PAGE: Final = "evaluation.md"
LATEX: Final = "tables.tex"
NUMBERS: Final = "evaluation.json"


@dataclass(frozen=True, slots=True)
class Drawing:
    """A picture that was written as NAME.png and NAME.pdf."""

    name: str
    caption: str


@dataclass(frozen=True, slots=True)
class About:
    """What was evaluated, and on what."""

    settings: Settings
    films: int
    device: str
    command: tuple[str, ...] = ()  # as it was typed


def remove_earlier(out: Path) -> None:
    """Remove what an evaluation wrote to a folder, so that none of it is taken for the next one's;
    its runs stay."""
    try:
        files = json.loads((out / NUMBERS).read_text(encoding="ascii"))["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    for file in files:
        if Path(file).name == file:  # in this folder
            (out / file).unlink(missing_ok=True)


def write_evaluation(
    out: Path, about: About, tables: Sequence[Table], drawings: Sequence[Drawing]
) -> None:
    """Write evaluation.md, tables.tex, evaluation.json and TABLE.csv for each table."""
    for table in tables:
        _write(out / f"{table.name}.csv", to_csv(table))
    _write(out / LATEX, "\n".join(map(to_latex, tables)))
    numbers = _numbers(about, tables) | {"files": _files(tables, drawings)}
    _write(out / NUMBERS, json.dumps(numbers, indent=1, default=str) + "\n")
    _write(out / PAGE, _page(about, tables, drawings))  # last: when it is there, all is


def _page(about: About, tables: Sequence[Table], drawings: Sequence[Drawing]) -> str:
    few = (f"{GRID} on {about.settings.grid}",) if about.settings.grid else ()
    methods = ", ".join((*about.settings.methods, *few))
    parts = [
        "# Evaluation\n",
        f"{about.films} films; {methods}; kneematch {__version__} on {device_name(about.device)}; "
        f"{datetime.now(UTC):%Y-%m-%d}.\n",
    ]
    parts += [f"## {_title(table.name)}\n\n{to_markdown(table)}" for table in tables]
    parts += [
        f"## {_title(drawing.name)}\n\n![{_title(drawing.name)}]({drawing.name}.png)\n\n"
        f"{drawing.caption}\n"
        for drawing in drawings
    ]
    return "\n".join(parts)


def _numbers(about: About, tables: Sequence[Table]) -> dict[str, Any]:
    """What is needed to repeat it, and every table in full."""
    settings = asdict(about.settings)
    recipe = settings.pop("recipe")
    del recipe["method"]
    return {
        "format": FORMAT,
        "command": list(about.command),
        "settings": recipe | settings,
        "versions": versions(),
        "device": device_name(about.device),
        "sha256": replace(about.settings.recipe, method="auto").hashes(),
        "films": about.films,
        "tables": {table.name: _rows(table) for table in tables},
    }


def _files(tables: Sequence[Table], drawings: Sequence[Drawing]) -> list[str]:
    drawn = [f"{drawing.name}.{kind}" for drawing in drawings for kind in ("png", "pdf")]
    return [PAGE, LATEX, NUMBERS, *(f"{table.name}.csv" for table in tables), *drawn]


def _rows(table: Table) -> list[dict[str, Cell]]:
    titles = [column.title for column in table.columns]
    return [dict(zip(titles, map(_plain, row), strict=True)) for row in table.rows]


def _plain(cell: Cell) -> Cell:
    """JSON knows no NaN."""
    return None if isinstance(cell, float) and not math.isfinite(cell) else cell


def _title(name: str) -> str:
    return name.replace("_", " ").capitalize()


def _write(path: Path, text: str) -> None:
    """Names of films need not be UTF-8."""
    with write_aside(path) as aside:
        aside.write_text(text, encoding="utf-8", errors="surrogateescape")
