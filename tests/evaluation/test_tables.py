"""Tables as Markdown, LaTeX and CSV."""

import csv
import io

from kneematch.evaluation.tables import (
    Table,
    numbers,
    p_values,
    texts,
    to_csv,
    to_latex,
    to_markdown,
)

TABLE = Table(
    "losses",
    "100 % of films_a & b",
    (*texts("method"), *numbers(3, "loss"), *p_values("p")),
    (("neural+sharpen", 0.12345678, 0.00001), ("a|b", None, 0.25), (None, 1.0, None)),
)


def test_to_csv_writes_all_digits_and_nothing_for_none() -> None:
    rows = list(csv.reader(io.StringIO(to_csv(TABLE))))
    assert rows[0] == ["method", "loss", "p"]
    assert float(rows[1][1]) == 0.12345678
    assert rows[2] == ["a|b", "", "0.25"]


def test_to_markdown_has_as_many_cells_in_every_row() -> None:
    lines = to_markdown(TABLE).splitlines()
    assert lines[1] == "| --- | ---: | ---: |"
    assert lines[2] == "| neural+sharpen | 0.123 | < 0.001 |"
    assert lines[3] == r"| a\|b | - | 0.250 |"
    assert lines[4] == "|  | 1.000 | - |"
    assert lines[-1] == TABLE.caption


def test_to_latex_escapes_special_characters() -> None:
    text = to_latex(TABLE)
    assert r"\caption{100 \% of films\_a \& b}" in text
    assert r"neural+sharpen & 0.123 & $<$ 0.001 \\" in text
    assert r"\label{tab:losses}" in text
    assert r"\begin{tabular}{lrr}" in text
