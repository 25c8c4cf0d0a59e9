"""Files of an evaluation: evaluation.md, tables.tex, evaluation.json and a CSV file per table."""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from kneematch import __version__
from kneematch.evaluation.config import GRID, EvaluateConfig
from kneematch.evaluation.tables import Cell, Table, to_csv, to_latex, to_markdown
from kneematch.export.run_file import device_name, versions
from kneematch.io.atomic import write_aside

FORMAT: Final = "kneematch-evaluation/1"
PAGE: Final = "evaluation.md"
LATEX: Final = "tables.tex"
NUMBERS: Final = "evaluation.json"


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure that was written as NAME.png and NAME.pdf."""

    name: str
    caption: str


@dataclass(frozen=True, slots=True)
class Setting:
    """What was evaluated, and on which device."""

    config: EvaluateConfig
    films: int
    device: str
    hashes: Mapping[str, str]  # SHA-256 of the model and the template


def remove_report(out: Path) -> None:
    """Remove the files of an earlier evaluation, as its evaluation.json lists them.

    The runs of its methods stay, and so does every other file.
    """
    try:
        files = json.loads((out / NUMBERS).read_text(encoding="ascii"))["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    for file in files:
        if Path(file).name == file:  # in this folder
            (out / file).unlink(missing_ok=True)


def write_report(
    out: Path, setting: Setting, tables: Sequence[Table], drawings: Sequence[Drawing]
) -> None:
    """Write evaluation.md, tables.tex, evaluation.json and TABLE.csv for each table."""
    out.mkdir(parents=True, exist_ok=True)
    for table in tables:
        write_text(out / f"{table.name}.csv", to_csv(table))
    write_text(out / LATEX, "\n".join(map(to_latex, tables)))
    numbers = _numbers(out, setting, tables) | {"files": _files(tables, drawings)}
    write_text(out / NUMBERS, json.dumps(numbers, indent=1, default=str) + "\n")
    write_text(out / PAGE, _page(setting, tables, drawings))  # last: it marks a complete evaluation


def write_text(path: Path, text: str) -> None:
    """Write a text file at once; names of films in it need not be UTF-8."""
    with write_aside(path) as aside:
        aside.write_text(text, encoding="utf-8", errors="surrogateescape")


def _page(setting: Setting, tables: Sequence[Table], drawings: Sequence[Drawing]) -> str:
    config = setting.config
    methods = ", ".join((*config.methods, *((f"{GRID} on {config.grid}",) if config.grid else ())))
    parts = [
        "# Evaluation\n",
        f"{setting.films} films; {methods}; kneematch {__version__} on "
        f"{device_name(setting.device)}; {datetime.now(UTC):%Y-%m-%d}.\n",
    ]
    parts += [f"## {_title(table.name)}\n\n{to_markdown(table)}" for table in tables]
    parts += [
        f"## {_title(drawing.name)}\n\n![{_title(drawing.name)}]({drawing.name}.png)\n\n"
        f"{drawing.caption}\n"
        for drawing in drawings
    ]
    return "\n".join(parts)


def _numbers(out: Path, setting: Setting, tables: Sequence[Table]) -> dict[str, Any]:
    """Return all that is needed to repeat the evaluation, and every table in full."""
    return {
        "format": FORMAT,
        "command": sys.argv,
        "settings": {"out": out, **asdict(setting.config)},
        "versions": versions(),
        "device": device_name(setting.device),
        "sha256": dict(setting.hashes),
        "films": setting.films,
        "tables": {table.name: _rows(table) for table in tables},
    }


def _files(tables: Sequence[Table], drawings: Sequence[Drawing]) -> list[str]:
    drawn = [f"{drawing.name}.{kind}" for drawing in drawings for kind in ("png", "pdf")]
    return [PAGE, LATEX, NUMBERS, *(f"{table.name}.csv" for table in tables), *drawn]


def _rows(table: Table) -> list[dict[str, Cell]]:
    titles = [column.title for column in table.columns]
    return [dict(zip(titles, map(_finite, row), strict=True)) for row in table.rows]


def _finite(cell: Cell) -> Cell:
    """Return None for NaN, which JSON does not have."""
    return None if isinstance(cell, float) and not math.isfinite(cell) else cell


def _title(name: str) -> str:
    return name.replace("_", " ").capitalize()
