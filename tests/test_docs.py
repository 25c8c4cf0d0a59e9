"""The documentation site: it builds without warnings, its examples run, and it names everything."""

import doctest
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import nbformat
import pytest
import yaml
from nbclient import NotebookClient

import kneematch
from kneematch.evaluation.labels import LABEL_COLUMNS
from kneematch.knee import measure, quality
from kneematch.run import decisions
from kneematch.run.config import EXPORTS
from kneematch.run.outputs import measurements, tables, write
from kneephantoms import SynthConfig, synthesize

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def text(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def names(page: str) -> set[str]:
    """Return what a page names as code."""
    return set(re.findall(r"`([\w.]+)`", text(page)))


def test_site_builds_without_a_warning_and_has_the_generated_parts(tmp_path: Path) -> None:
    settings = os.environ | {"KNEEMATCH_RUN_NOTEBOOK": "false", "NO_MKDOCS_2_WARNING": "1"}
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", tmp_path]
    subprocess.run(build, cwd=ROOT, env=settings, check=True)
    commands = (tmp_path / "reference" / "commands.html").read_text("utf-8")
    assert all(part in commands for part in ("--crop-spacing", 'id="annotate"'))
    python = (tmp_path / "reference" / "python.html").read_text("utf-8")
    assert all(f'id="kneematch.{name}"' in python for name in kneematch.__all__ if name[0] != "_")
    for page in tmp_path.rglob("*.html"):  # nothing is loaded from other servers
        loaded = r'<(?:script|img|link)[^>]+(?:src|href)="(https?://[^"]+)'
        assert all("kneematch.example" in url for url in re.findall(loaded, page.read_text()))


def test_notebook_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    notebook = nbformat.read(DOCS / "notebooks" / "tutorial.ipynb", as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells)  # they would go out of date
    client = NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 3
    assert len(list(tmp_path.glob("*/found/crops/*.png"))) == 12
    assert len(list(tmp_path.glob("*/compared/evaluation.md"))) == 1


def test_examples_of_the_python_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = str(DOCS / "reference" / "python.md")
    failed, tried = doctest.testfile(
        page, module_relative=False, encoding="utf-8", optionflags=doctest.ELLIPSIS
    )
    assert tried > 10
    assert failed == 0


def test_columns_and_files_are_described(tmp_path: Path) -> None:
    crop_map = {"xx", "xy", "x0", "yx", "yy", "y0"}  # described by their formula
    corners = {f"{axis}{k}_px" for axis in "xy" for k in (1, 2)}  # between the first and the last
    columns = {*tables.COLUMNS, *tables.CROP_COLUMNS} - crop_map - corners
    assert columns <= names("docs/outputs.md")
    assert {*write.RESULT_FILES} <= names("docs/outputs.md") | names("docs/measures.md")
    assert {*EXPORTS} <= set(re.findall(r"`(?:--export )?(\w+)`", text("docs/outputs.md")))
    assert crop_map <= set(re.findall(r"\w+", text("docs/outputs.md")))
    assert {*LABEL_COLUMNS, "flag", "source"} <= names("docs/reference/inputs.md")
    assert f"Columns: `{', '.join(decisions.COLUMNS)}`" in text("docs/web.md")
    made = synthesize(tmp_path, SynthConfig(count=1, size=(400, 320), workers=0))
    with made.truth.open(encoding="utf-8") as file:
        assert set(file.readline().strip().split(",")) <= names("docs/data-card.md")


def test_columns_of_measurements_are_described() -> None:
    patterns = [name.replace("...", r"\w+") for name in names("docs/measures.md")]
    ranges = r"`(jsw_x\d+)_pct` to `(jsw_x\d+)_pct`"
    for first, last in re.findall(ranges, text("docs/measures.md")):
        patterns += [f"{name}_pct" for name in measure.UNITS if first <= name <= last]
    for column in measurements.COLUMNS:
        assert any(re.fullmatch(pattern, column) for pattern in patterns), column


def test_reasons_to_review_are_described() -> None:
    outputs = text("docs/outputs.md")
    reasons = ("ATYPICAL", "DISAGREE", "SIDES_DIFFER", "CUT", "METAL", "NEGATIVE")
    reasons += ("GROWTH_PLATES",)
    others = (quality.WRONG_TAG, measure.CROSSING, measure.UNCLEAR, measure.WRONG_SIZE)
    for reason in (*(getattr(quality, name) for name in reasons), *others):
        assert f"`{reason}`" in outputs
    assert f"more than {quality.MAX_SCALE_DIFFERENCE:.0%}".replace("%", " %") in outputs
    assert f"more than {quality.MAX_HEIGHT_DIFFERENCE} of an area's width" in outputs


def test_version_is_the_same_everywhere() -> None:
    version = kneematch.__version__
    assert "version" in tomllib.loads(text("pyproject.toml"))["project"]["dynamic"]
    assert yaml.safe_load(text("CITATION.cff"))["version"] == version
    assert re.search(rf"^## {re.escape(version)} ", text("CHANGELOG.md"), re.M)
    for page in (ROOT / "README.md", *DOCS.rglob("*.md")):
        assert {*re.findall(r"kneematch-([\d.]+)-py3", page.read_text("utf-8"))} <= {version}, page


def test_every_promise_names_tests_that_exist() -> None:
    promises = text("docs/reliability.md").split("## Promises")[1].split("\n## ")[0]
    rows = [line for line in promises.splitlines() if line.startswith("| ")][1:]
    sources = "".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    defined = set(re.findall(r"^def (test_\w+)", sources, re.MULTILINE))
    assert len(rows) > 20
    for row in rows:
        named = set(re.findall(r"`(test_\w+)`", row))
        assert named, row
        assert named <= defined, named - defined
