"""Tables as Markdown and CSV, and the files of an evaluation."""

import csv
import io
import json
from pathlib import Path

from kneematch.evaluation.config import EvaluateConfig
from kneematch.evaluation.tables import (
    Table,
    columns,
    remove_evaluation,
    to_csv,
    to_markdown,
    write_evaluation,
)

TABLE = Table(
    "losses",
    "100 % of films_a & b",
    columns("method", "loss:3", "p:p"),
    (("neural+sharpen", 0.12345678, 0.00001), ("a|b", None, 0.25), (None, 1.0, None)),
)


ODD = Table("losses", "A caption.", columns("film", "loss:2"), (("\udcff.dcm", 0.5),))


def test_to_csv_writes_all_digits_and_nothing_for_none() -> None:
    rows = list(csv.reader(io.StringIO(to_csv(TABLE))))
    assert rows[0] == ["method", "loss", "p"]
    assert float(rows[1][1]) == 0.12345678
    assert rows[2] == ["a|b", "", "0.25"]


def test_to_csv_neutralises_formulas_but_not_numbers() -> None:
    table = Table("failures", "", columns("film", "loss:2"), (("=cmd.png", -1e-9), ("a\rb", -2)))
    assert to_csv(table) == 'film,loss\n\'=cmd.png,-1e-09\n"a\rb",-2\n'


def test_to_markdown_has_as_many_cells_in_every_row() -> None:
    lines = to_markdown(TABLE).splitlines()
    assert lines[1] == "| --- | ---: | ---: |"
    assert lines[2] == "| neural+sharpen | 0.123 | < 0.001 |"
    assert lines[3] == r"| a\|b | - | 0.250 |"
    assert lines[4] == "|  | 1.000 | - |"
    assert lines[-1] == TABLE.caption


def write(out: Path, *tables: Table) -> None:
    config = EvaluateConfig(grid=2, methods=("neural",))
    facts = {"films": 3, "device": "cpu", "sha256": {"model": "abc"}}
    write_evaluation(out, config, facts, tables, {"figure": "Areas."})


def test_write_evaluation_writes_names_that_are_not_utf8(tmp_path: Path) -> None:
    write(tmp_path / "new", ODD)
    assert b"\xff.dcm" in (tmp_path / "new" / "losses.csv").read_bytes()
    page = (tmp_path / "new" / "evaluation.md").read_bytes()
    assert b"| \xff.dcm | 0.50 |" in page
    assert b"3 films; neural, grid on 2; kneematch " in page
    assert b"![Figure](figure.png)\n\nAreas." in page


def test_write_evaluation_keeps_settings_and_hashes(tmp_path: Path) -> None:
    write(tmp_path, ODD)
    numbers = json.loads((tmp_path / "evaluation.json").read_text())
    assert numbers["settings"]["grid"] == 2
    assert numbers["settings"]["out"] == str(tmp_path)
    assert numbers["sha256"] == {"model": "abc"}
    assert numbers["films"] == 3


def test_remove_evaluation_removes_its_own_files_and_nothing_else(
    tmp_path: Path,
) -> None:
    write(tmp_path, ODD)
    (tmp_path / "figure.png").touch()
    (tmp_path / "notes.csv").touch()
    remove_evaluation(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.csv"]
    remove_evaluation(tmp_path)


def test_remove_evaluation_leaves_files_of_other_folders(tmp_path: Path) -> None:
    kept, out = tmp_path / "kept.csv", tmp_path / "out"
    kept.touch()
    out.mkdir()
    (out / "evaluation.json").write_text(json.dumps({"files": ["../kept.csv", str(kept)]}))
    remove_evaluation(out)
    assert kept.exists()
