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
from kneematch.evaluation.ground_truth import LABEL_COLUMNS
from kneematch.knee import measure, quality
from kneematch.run import decisions as log
from kneematch.run.outputs import measurements
from kneematch.run.outputs.tables import COLUMNS, CROP_COLUMNS
from kneematch.run.results import ARTIFACTS
from kneephantoms.config import SynthConfig
from kneephantoms.dataset import synthesize

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
TEXTS = [*DOCS.rglob("*.md"), ROOT / "README.md"]


def built(folder: Path, config: Path) -> subprocess.CompletedProcess[str]:
    """Build the site strictly, without running the notebook, which another test does."""
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", config, "-d", folder],
        env=os.environ | {"KNEEMATCH_RUN_NOTEBOOK": "false", "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_site_builds_without_a_warning_and_has_the_generated_parts(tmp_path: Path) -> None:
    done = built(tmp_path / "site", ROOT / "mkdocs.yml")
    assert done.returncode == 0, done.stderr[-3000:]
    commands = (tmp_path / "site" / "reference" / "commands.html").read_text("utf-8")
    assert "--crop-spacing" in commands
    assert 'id="import-template"' in commands
    python = (tmp_path / "site" / "reference" / "python.html").read_text("utf-8")
    for name in set(kneematch.__all__) - {"__version__"}:
        assert f'id="kneematch.{name}"' in python
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 15
    for page in pages:  # nothing is loaded from other servers
        loaded = re.findall(
            r'<(?:script|img|link)[^>]+(?:src|href)="(https?://[^"]+)', page.read_text()
        )
        assert [url for url in loaded if "kneematch.example" not in url] == [], page.name


def test_notebook_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    notebook = nbformat.read(DOCS / "notebooks" / "tutorial.ipynb", as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells)  # they would go out of date
    client = NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    pictures = [
        output
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]
    assert len(pictures) == 3
    assert len(list(tmp_path.glob("*/found/crops/*.png"))) == 12
    assert len(list(tmp_path.glob("*/compared/evaluation.md"))) == 1


def test_examples_of_the_python_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = str(DOCS / "reference" / "python.md")
    failed, tried = doctest.testfile(page, module_relative=False, encoding="utf-8")
    assert tried > 10
    assert failed == 0


def test_columns_of_every_table_are_described(tmp_path: Path) -> None:
    outputs = (DOCS / "outputs.md").read_text("utf-8")
    named = set(re.findall(r"`(\w+)`", outputs))
    crop_map = {"xx", "xy", "x0", "yx", "yy", "y0"}  # described by their formula
    corners = {f"{axis}{k}_px" for axis in "xy" for k in (1, 2)}  # between the first and the last
    assert {*COLUMNS, *CROP_COLUMNS} - crop_map - corners <= named
    assert crop_map <= set(re.findall(r"\w+", outputs))

    inputs = set(re.findall(r"`(\w+)`", (DOCS / "reference" / "inputs.md").read_text("utf-8")))
    assert {*LABEL_COLUMNS, "flag", "source"} <= inputs

    made = synthesize(tmp_path, SynthConfig(count=1, size=(400, 320), workers=0))
    with made.truth.open(encoding="utf-8") as file:
        columns = file.readline().strip().split(",")
    card = (DOCS / "data-card.md").read_text("utf-8")
    described = set(re.findall(r"`([\w.]+)`", card))
    assert set(columns) <= described


def test_columns_of_measurements_are_described() -> None:
    text = (DOCS / "measures.md").read_text("utf-8")
    named = set(re.findall(r"`([\w.]+)`", text))
    patterns = [name.replace("...", r"\w+") for name in named]
    for first, last in re.findall(r"`(jsw_x\d+)_pct` to `(jsw_x\d+)_pct`", text):
        patterns += [f"{name}_pct" for name in measure.UNITS if first <= name <= last]
    for column in measurements.COLUMNS:
        assert any(re.fullmatch(pattern, column) for pattern in patterns), column


def test_columns_of_reviews_are_described() -> None:
    assert f"Columns: `{', '.join(log.COLUMNS)}`" in (DOCS / "web.md").read_text("utf-8")
    assert f"`{ARTIFACTS}`" in (DOCS / "outputs.md").read_text("utf-8")


def test_reasons_to_review_are_described() -> None:
    outputs = (DOCS / "outputs.md").read_text("utf-8")
    for name in ("ATYPICAL", "NO_KNEE", "DISAGREE", "SIDES_DIFFER", "CUT", "METAL", "NEGATIVE"):
        assert f"`{getattr(quality, name)}`" in outputs
    for reason in (quality.WRONG_TAG, measure.CROSSING, measure.UNCLEAR, measure.WRONG_SIZE):
        assert f"`{reason}`" in outputs
    assert f"more than {quality.MAX_SCALE_DIFFERENCE:.0%}".replace("%", " %") in outputs
    assert f"more than {quality.MAX_HEIGHT_DIFFERENCE} of an area's width" in outputs


def test_version_is_the_same_everywhere() -> None:
    version = kneematch.__version__
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert "version" in project["dynamic"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["version"] == version
    assert re.search(
        rf"^## {re.escape(version)} ", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M
    )
    for page in TEXTS:
        wheels = set(re.findall(r"kneematch-(\d+\.\d+\.\d+)-py3", page.read_text("utf-8")))
        assert wheels <= {version}, page


def test_model_card_holds_the_measured_tables() -> None:
    card = (DOCS / "model-card.md").read_text("utf-8")
    source = (DOCS / "model-card.in.md").read_text("utf-8")
    names = re.findall(r"^\{\{([a-z0-9-]+)\}\}$", source, re.MULTILINE)
    assert len(names) >= 3
    for name in names:
        assert (DOCS / "measured" / f"{name}.md").read_text("utf-8").strip() in card, (
            "run python benchmarks/results.py write"
        )


def test_issue_templates_ask_for_the_installation_and_never_for_films() -> None:
    folder = ROOT / ".github" / "ISSUE_TEMPLATE"
    for name in ("bug.yml", "accuracy.yml"):
        text = (folder / name).read_text("utf-8")
        assert "kneematch info --json" in text
        assert "Never attach films" in text
    for path in folder.glob("*.yml"):
        assert yaml.safe_load(path.read_text("utf-8"))
