"""Table: numbers with names, as Markdown, LaTeX and CSV."""

import csv
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

Cell = str | int | float | None

LATEX: Final = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
LATEX_SPECIAL: Final = re.compile(r"[\\~^&%$#_{}]")


def words(cell: Cell) -> str:
    """As it is; nothing for None."""
    return "" if cell is None else str(cell)


def digits(count: int) -> Callable[[Cell], str]:
    """A number with so many digits after the point; a dash for None."""

    def show(cell: Cell) -> str:
        return "-" if cell is None else f"{cell:.{count}f}"

    return show


def chance(cell: Cell) -> str:
    """A p-value."""
    if cell is None:
        return "-"
    return "< 0.001" if float(cell) < 0.001 else f"{cell:.3f}"


@dataclass(frozen=True, slots=True)
class Column:
    """One kind of value, and how it is shown; CSV has it in full."""

    title: str
    show: Callable[[Cell], str] = words


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells under columns."""

    name: str  # of its file and its LaTeX label
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def shown(self) -> list[list[str]]:
        """The cells as text."""
        return [
            [column.show(cell) for column, cell in zip(self.columns, row, strict=True)]
            for row in self.rows
        ]


def to_csv(table: Table) -> str:
    """All digits; nothing for None."""
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(column.title for column in table.columns)
    out.writerows(table.rows)
    return text.getvalue()


def to_markdown(table: Table) -> str:
    """The caption below the rows; all columns but those of words are to the right."""
    rules = ["---" if column.show is words else "---:" for column in table.columns]
    lines = [[column.title for column in table.columns], rules, *table.shown()]
    rows = "\n".join(f"| {' | '.join(_in_a_cell(line))} |" for line in lines)
    return f"{rows}\n\n{table.caption}\n"


def to_latex(table: Table) -> str:
    """A table environment in the style of booktabs."""
    sides = "".join("l" if column.show is words else "r" for column in table.columns)
    lines = [[column.title for column in table.columns], *table.shown()]
    head, *rows = (" & ".join(map(_escaped, line)) + r" \\" for line in lines)
    body = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_escaped(table.caption)}}}",
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


def _in_a_cell(line: Sequence[str]) -> list[str]:
    return [text.replace("|", r"\|").replace("\n", " ") for text in line]


def _escaped(text: str) -> str:
    """For LaTeX; a sign of comparison goes into mathematics."""
    safe = LATEX_SPECIAL.sub(lambda found: LATEX.get(found[0], "\\" + found[0]), text)
    return re.sub(r"[<>]", lambda found: f"${found[0]}$", safe)
