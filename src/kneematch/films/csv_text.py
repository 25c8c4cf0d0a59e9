"""CSV files whose cells no spreadsheet takes for formulas, and that read back exactly.

A cell that a spreadsheet would evaluate (it starts with =, +, -, @, a tab or a line break, and is
not a plain number) is written with an apostrophe in front. `read_csv` removes it again. A cell
that already starts with apostrophes before such a sign gets one more, so nothing is lost.
"""

import csv
import io
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from kneematch.films.files import atomic_write, open_regular

_SIGNS: Final = frozenset("=+-@\t\r\n＝＋－＠")  # spreadsheets also know the full-width forms
_NUMBER: Final = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?")

Cell = str | float | None
AddRow = Callable[[Iterable[str]], None]


@contextmanager
def write_csv(path: str | os.PathLike[str], columns: Iterable[str]) -> Iterator[AddRow]:
    """Yield a function that adds a row of cells to a CSV file, which appears at `path` at the end.

    Names that are not UTF-8 are written as the bytes they are.
    """
    with (
        atomic_write(path) as temp,
        temp.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file,
    ):

        def add(cells: Iterable[str]) -> None:
            file.write(csv_line(cells))

        add(columns)
        yield add


def csv_line(cells: Iterable[Cell]) -> str:
    """Return one row as text, ended by a line feed; numbers have all digits, None is empty."""
    text = io.StringIO(newline="")
    safe = [f"'{cell}" if isinstance(cell, str) and _is_formula(cell) else cell for cell in cells]
    # csv quotes only the line breaks of its own line ending, so both of them have to be in it.
    csv.writer(text, lineterminator="\r\n").writerow(safe)
    return text.getvalue().removesuffix("\r\n") + "\n"


def read_csv(path: Path) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of a CSV file, as they were before they were written.

    A spreadsheet may have saved it since.

    Raises:
        OSError, ValueError, csv.Error: it cannot be read, is empty, or is not CSV.
    """
    with open_regular(path) as file:
        text = file.read().decode("utf-8-sig", "surrogateescape")
    rows = [
        [cell[1:] if cell[:1] == "'" and _is_formula(cell) else cell for cell in row]
        for row in csv.reader(io.StringIO(text, newline=""))
    ]
    if not rows:
        raise ValueError("it is empty")
    return rows[0], rows[1:]


def _is_formula(cell: str) -> bool:
    """Return whether a cell is a formula, perhaps after apostrophes."""
    if cell[:1].isalnum():  # most cells
        return False
    return cell.lstrip("'")[:1] in _SIGNS and not _NUMBER.fullmatch(cell)
