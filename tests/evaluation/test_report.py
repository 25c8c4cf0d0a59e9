"""Files of an evaluation."""

import json
from pathlib import Path

from kneematch.evaluation.config import EvaluateConfig
from kneematch.evaluation.report import Drawing, Setting, remove_report, write_report
from kneematch.evaluation.tables import Table, numbers, texts

TABLE = Table("losses", "A caption.", (*texts("film"), *numbers(2, "loss")), (("\udcff.dcm", 0.5),))


def write(out: Path, *tables: Table) -> None:
    config = EvaluateConfig(grid=2, methods=("neural",))
    setting = Setting(config, 3, "cpu", {"model": "abc"})
    write_report(out, setting, tables, [Drawing("figure", "Areas.")])


def test_write_report_writes_names_that_are_not_utf8(tmp_path: Path) -> None:
    write(tmp_path / "new", TABLE)
    assert b"\xff.dcm" in (tmp_path / "new" / "losses.csv").read_bytes()
    page = (tmp_path / "new" / "evaluation.md").read_bytes()
    assert b"| \xff.dcm | 0.50 |" in page
    assert b"3 films; neural, grid on 2; kneematch " in page
    assert b"![Figure](figure.png)\n\nAreas." in page


def test_write_report_keeps_settings_hashes_and_tables_without_nan(tmp_path: Path) -> None:
    broken = Table("failures", "", numbers(1, "a", "b"), ((float("nan"), 1.5),))
    write(tmp_path, TABLE, broken)
    numbers_ = json.loads((tmp_path / "evaluation.json").read_text(), parse_constant=None)
    assert numbers_["settings"]["grid"] == 2
    assert numbers_["settings"]["out"] == str(tmp_path)
    assert numbers_["sha256"] == {"model": "abc"}
    assert numbers_["films"] == 3
    assert numbers_["tables"]["failures"] == [{"a": None, "b": 1.5}]


def test_remove_report_removes_what_write_report_wrote_and_nothing_else(tmp_path: Path) -> None:
    write(tmp_path, TABLE)
    (tmp_path / "figure.png").touch()
    (tmp_path / "notes.csv").touch()
    remove_report(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.csv"]
    remove_report(tmp_path)


def test_remove_report_leaves_files_of_other_folders(tmp_path: Path) -> None:
    kept, out = tmp_path / "kept.csv", tmp_path / "out"
    kept.touch()
    out.mkdir()
    (out / "evaluation.json").write_text(json.dumps({"files": ["../kept.csv", str(kept)]}))
    remove_report(out)
    assert kept.exists()
