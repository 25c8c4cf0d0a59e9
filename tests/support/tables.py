"""Tables, read without the code under test."""

import csv
from pathlib import Path


def read_table(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file by column."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
