"""Tables of results, and the files of an evaluation: evaluation.md, .json, tables.tex, *.csv."""

import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from kneematch import __version__
from kneematch.evaluation.config import GRID, EvaluateConfig
from kneematch.films.csv_text import Cell, csv_line
from kneematch.films.files import make_out_folder, write_file
from kneematch.run.outputs.run_file import device_name, versions

FORMAT: Final = "kneematch-evaluation/1"
PAGE: Final = "evaluation.md"
TABLES: Final = "tables.tex"
NUMBERS: Final = "evaluation.json"

LATEX: Final = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
LATEX_SPECIAL: Final = re.compile(r"[\\~^&%$#_{}]")


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


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells under columns."""

    name: str  # of its CSV file and its LaTeX label
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def shown(self) -> list[list[str]]:
        """Return all cells formatted."""
        return [
            [column.show(cell) for column, cell in zip(self.columns, row, strict=True)]
            for row in self.rows
        ]


def to_csv(table: Table) -> str:
    """Write a table as CSV, numbers with all digits, None as an empty field."""
    titles = tuple(column.title for column in table.columns)
    return "".join(map(csv_line, (titles, *table.rows)))


def to_markdown(table: Table) -> str:
    """Write a table as Markdown, numbers aligned to the right, the caption below."""
    rules = ["---" if column.digits is None else "---:" for column in table.columns]
    lines = [[column.title for column in table.columns], rules, *table.shown()]
    cells = ([cell.replace("|", r"\|").replace("\n", " ") for cell in line] for line in lines)
    rows = "\n".join(f"| {' | '.join(line)} |" for line in cells)
    return f"{rows}\n\n{table.caption}\n"


def to_latex(table: Table) -> str:
    """Write a table as a LaTeX table environment in the style of booktabs."""
    sides = "".join("l" if column.digits is None else "r" for column in table.columns)
    lines = [[column.title for column in table.columns], *table.shown()]
    head, *rows = (" & ".join(map(_escape_latex, line)) + r" \\" for line in lines)
    body = "\n".join(["\\toprule", head, "\\midrule", *rows, "\\bottomrule"])
    return rf"""\begin{{table}}
\centering
\caption{{{_escape_latex(table.caption)}}}
\label{{tab:{table.name}}}
\begin{{tabular}}{{{sides}}}
{body}
\end{{tabular}}
\end{{table}}
"""


def _escape_latex(plain: str) -> str:
    safe = LATEX_SPECIAL.sub(lambda found: LATEX.get(found[0], "\\" + found[0]), plain)
    return re.sub(r"[<>]", lambda found: f"${found[0]}$", safe)


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
    films: int,
    device: str,
    hashes: Mapping[str, str],
    tables: Sequence[Table],
    drawings: Mapping[str, str],
    *,
    note: str = "",
) -> None:
    """Write evaluation.md, tables.tex, evaluation.json and TABLE.csv for each table.

    `drawings` has the captions of the figures that are there as NAME.png and NAME.pdf; `note`
    applies to all tables and figures.
    """
    make_out_folder(out)
    for table in tables:
        write_text(out / f"{table.name}.csv", to_csv(table))
    write_text(out / TABLES, "\n".join(map(to_latex, tables)))
    drawn = [f"{name}.{kind}" for name in drawings for kind in ("png", "pdf")]
    numbers = {
        "format": FORMAT,
        "command": sys.argv,
        "settings": {"out": out, **asdict(config)},
        "versions": versions(),
        "device": device_name(device),
        "sha256": dict(hashes),
        "films": films,
        "tables": {table.name: _rows(table) for table in tables},
        "files": [PAGE, TABLES, NUMBERS, *(f"{table.name}.csv" for table in tables), *drawn],
    }
    write_text(out / NUMBERS, json.dumps(numbers, indent=1, default=str) + "\n")
    methods = ", ".join((*config.methods, *((f"{GRID} on {config.grid}",) if config.grid else ())))
    parts = [
        "# Evaluation\n",
        f"{films} films; {methods}; kneematch {__version__} on {device_name(device)}; "
        f"{datetime.now(UTC):%Y-%m-%d}.\n",
        *([f"{note}\n"] if note else []),
        *(f"## {_title(table.name)}\n\n{to_markdown(table)}" for table in tables),
    ]
    for name, caption in drawings.items():
        title = _title(name)
        parts.append(f"## {title}\n\n![{title}]({name}.png)\n\n{caption}\n")
    write_text(out / PAGE, "\n".join(parts))  # last: it marks a complete evaluation


def write_text(path: Path, text: str) -> None:
    """Write a text file at once; names of films in it need not be UTF-8."""
    write_file(path, text.encode("utf-8", "surrogateescape"))


def _rows(table: Table) -> list[dict[str, Cell]]:
    """Return the rows by column; None for NaN, which JSON does not have."""
    titles = [column.title for column in table.columns]
    cells = (
        [None if isinstance(x, float) and not math.isfinite(x) else x for x in row]
        for row in table.rows
    )
    return [dict(zip(titles, row, strict=True)) for row in cells]


def _title(name: str) -> str:
    return name.replace("_", " ").capitalize()
