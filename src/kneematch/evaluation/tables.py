"""Tables of results, written as Markdown, LaTeX and CSV."""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

Cell = str | int | float | None

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


def texts(*titles: str) -> tuple[Column, ...]:
    """Return columns of text."""
    return tuple(Column(title) for title in titles)


def numbers(digits: int, *titles: str) -> tuple[Column, ...]:
    """Return columns of numbers with `digits` digits after the point."""
    return tuple(Column(title, digits) for title in titles)


def p_values(*titles: str) -> tuple[Column, ...]:
    """Return columns of p-values."""
    return tuple(Column(title, digits=3, p_value=True) for title in titles)


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
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(column.title for column in table.columns)
    writer.writerows(table.rows)
    return file.getvalue()


def to_markdown(table: Table) -> str:
    """Write a table as Markdown, numbers aligned to the right, the caption below."""
    rules = ["---" if column.digits is None else "---:" for column in table.columns]
    lines = [[column.title for column in table.columns], rules, *table.shown()]
    rows = "\n".join(f"| {' | '.join(_escape_markdown(line))} |" for line in lines)
    return f"{rows}\n\n{table.caption}\n"


def to_latex(table: Table) -> str:
    """Write a table as a LaTeX table environment in the style of booktabs."""
    sides = "".join("l" if column.digits is None else "r" for column in table.columns)
    lines = [[column.title for column in table.columns], *table.shown()]
    head, *rows = (" & ".join(map(_escape_latex, line)) + r" \\" for line in lines)
    body = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_escape_latex(table.caption)}}}",
        rf"\label{{tab:{table.name}}}",
        rf"\begin{{tabular}}{{{sides}}}",
        r"\toprule",
        head,
        r"\midrule",
        *rows,
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(body) + "\n"


def _escape_markdown(line: Sequence[str]) -> list[str]:
    return [cell.replace("|", r"\|").replace("\n", " ") for cell in line]


def _escape_latex(plain: str) -> str:
    safe = LATEX_SPECIAL.sub(lambda found: LATEX.get(found[0], "\\" + found[0]), plain)
    return re.sub(r"[<>]", lambda found: f"${found[0]}$", safe)
