"""Tables of results, and the files of an evaluation: evaluation.md, .json, *.csv."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from kneematch import __version__
from kneematch.evaluation.config import GRID, EvaluateConfig
from kneematch.films.csv_text import Cell, csv_line
from kneematch.films.files import make_out_folder, write_file
from kneematch.run.outputs.run_file import device_name, versions

FORMAT: Final = "kneematch-evaluation/2"
PAGE: Final = "evaluation.md"
NUMBERS: Final = "evaluation.json"


@dataclass(frozen=True, slots=True)
class Column:
    """A column's title, and how its cells are formatted; CSV has numbers in full."""

    title: str
    digits: int | None = None  # after the point; None: text
    p_value: bool = False

    def show(self, cell: Cell) -> str:
        """Format a cell; None is a dash, or empty in a column of text."""
        if self.digits is None:
            return "" if cell is None else str(cell)
        if cell is None:
            return "-"
        return "< 0.001" if self.p_value and float(cell) < 0.001 else f"{cell:.{self.digits}f}"


def columns(*titles: str) -> tuple[Column, ...]:
    """Return columns of text, numbers ("loss:3", with three digits) and p-values ("p:p")."""
    made = []
    for each in titles:
        title, _, form = each.partition(":")
        p_value = form == "p"
        made.append(Column(title, 3 if p_value else int(form) if form else None, p_value))
    return tuple(made)


def mean(values: ArrayLike) -> float | None:
    """Return the mean of numbers or flags (N,); None without any."""
    given = np.asarray(values, np.float64)
    return float(given.mean()) if len(given) else None


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells under columns."""

    name: str  # name of its CSV file
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]

    @property
    def titles(self) -> tuple[str, ...]:
        """The titles of the columns."""
        return tuple(column.title for column in self.columns)

    def shown(self) -> list[list[str]]:
        """Return all cells formatted."""
        return [
            [column.show(cell) for column, cell in zip(self.columns, row, strict=True)]
            for row in self.rows
        ]


def to_csv(table: Table) -> str:
    """Write a table as CSV, numbers with all digits, None as an empty field."""
    return "".join(map(csv_line, (table.titles, *table.rows)))


def to_markdown(table: Table) -> str:
    """Write a table as Markdown, numbers aligned to the right, the caption below."""
    rules = ["---" if column.digits is None else "---:" for column in table.columns]
    lines = [table.titles, rules, *table.shown()]
    cells = ([cell.replace("|", r"\|").replace("\n", " ") for cell in line] for line in lines)
    rows = "\n".join(f"| {' | '.join(line)} |" for line in cells)
    return f"{rows}\n\n{table.caption}\n"


def remove_evaluation(out: Path) -> None:
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


def write_evaluation(
    out: Path,
    config: EvaluateConfig,
    facts: Mapping[str, object],
    tables: Sequence[Table],
    drawings: Mapping[str, str],
    note: str = "",
) -> None:
    """Write evaluation.md, evaluation.json and TABLE.csv for each table.

    Args:
        out: folder to write to.
        config: the settings.
        facts: number of `films`, the `device`, and `sha256` of the files used.
        tables: all tables.
        drawings: captions of the figures that are there as NAME.png and NAME.pdf.
        note: what applies to all tables and figures.
    """
    make_out_folder(out)
    for table in tables:
        write_text(out / f"{table.name}.csv", to_csv(table))
    device = device_name(str(facts["device"]))
    drawn = [f"{name}.{kind}" for name in drawings for kind in ("png", "pdf")]
    numbers = {
        "format": FORMAT,
        "command": sys.argv,
        "settings": {"out": out, **asdict(config)},
        "versions": versions(),
        **facts,
        "device": device,
        "files": [PAGE, NUMBERS, *(f"{table.name}.csv" for table in tables), *drawn],
    }
    write_text(out / NUMBERS, json.dumps(numbers, indent=1, default=str) + "\n")
    methods = ", ".join((*config.methods, *((f"{GRID} on {config.grid}",) if config.grid else ())))
    parts = [
        "# Evaluation\n",
        f"{facts['films']} films; {methods}; kneematch {__version__} on {device}; "
        f"{datetime.now(UTC):%Y-%m-%d}.\n",
        *([f"{note}\n"] if note else []),
        *(f"## {_title(table.name)}\n\n{to_markdown(table)}" for table in tables),
    ]
    for name, caption in drawings.items():
        parts.append(f"## {_title(name)}\n\n![{_title(name)}]({name}.png)\n\n{caption}\n")
    write_text(out / PAGE, "\n".join(parts))  # last: it marks a complete evaluation


def write_text(path: Path, text: str) -> None:
    """Write a text file at once; names of films in it need not be UTF-8."""
    write_file(path, text.encode("utf-8", "surrogateescape"))


def _title(name: str) -> str:
    return name.replace("_", " ").capitalize()
