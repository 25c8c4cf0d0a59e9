"""The README and the other pages: their Python and commands run, their links lead on."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cyclopts import CycloptsError

from kneematch.cli.main import app
from kneematch.films.annotation import load_annotation
from kneephantoms import SynthConfig, synthesize

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [*ROOT.glob("[A-Z]*.md"), *(ROOT / "docs").rglob("*.md")]
OTHER_PROGRAMS = {"docker", "pip"}  # to which kneematch is an argument
SHELL_ENDS = {"|", "||", "&&", ">", ";"}  # what follows is another program's
# Pages that need nothing but kneematch; tests/test_installation.py runs those for new users.
RUN = "README", "index", "own-template", "any-part", "review", "one-knee", "onnx"
# There is no browser here: tests/cli/test_pages.py and tests/web open the pages.
STAND_IN = """
kneematch() {
  case "$1" in
    annotate) sed 's|phantom|films/phantom|' films/template.json > "${@: -1}" ;;
    review) ;;
    *) python -m kneematch "$@" ;;
  esac
}
"""
SMALL = SynthConfig(count=4, size=(600, 500), framing="knee", workers=0)

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def code_blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.M)


def commands(page: Path) -> Iterator[list[str]]:
    """Yield the arguments of every `kneematch` command in a page's shell blocks."""
    for block in code_blocks(page, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if "kneematch" in words and words[0] not in OTHER_PROGRAMS:
                after = words[words.index("kneematch") + 1 :]
                end = next((k for k, word in enumerate(after) if word in SHELL_ENDS), len(after))
                # Shell variables stand for numbers and names.
                yield [re.sub(r"\$\{?\w+\}?", "1", word) for word in after[:end]]


def run(command: list[str], folder: Path) -> str:
    """Run a command, which must succeed, and return what it prints."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}"
    return done.stdout


def test_readme_is_short_and_names_every_entry_point() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 170
    named = {arguments[0] for arguments in commands(README)}
    assert named == {"synth", "detect", "annotate", "review", "apply", "train", "evaluate"}


def test_readme_python_runs(tmp_path: Path) -> None:
    (code,) = code_blocks(README, "python")
    synthesize(tmp_path / "films", SynthConfig(count=2, size=(600, 500), framing="knee"))
    printed = run([sys.executable, "-c", code.replace("epochs=6", "epochs=1")], tmp_path)
    assert all(words in printed for words in ("left R", "right L", "4 knees"))
    made = ("left.png", "right.png", "found-python/coco.json", "mine.safetensors")
    assert all((tmp_path / name).exists() for name in (*made, "compared-python/evaluation.md"))


def test_own_template_python_takes_boxes_of_other_programs(tmp_path: Path) -> None:
    (page,) = (page for page in PAGES if page.stem == "own-template")
    (code,) = code_blocks(page, "python")
    synthesize(tmp_path / "films", SMALL)
    boxes = {
        "fine": (320, 100, 420, 200),
        "red": (325, 120, 350, 180),
        "green": (380, 120, 410, 180),
    }
    coco: dict[str, list[Any]] = {"categories": [], "annotations": []}
    for number, (name, (x0, y0, x1, y1)) in enumerate(boxes.items()):
        coco["categories"].append({"id": number, "name": name})
        coco["annotations"].append({"category_id": number, "bbox": [x0, y0, x1 - x0, y1 - y0]})
    (tmp_path / "coco.json").write_text(json.dumps(coco), encoding="utf-8")
    run([sys.executable, "-c", code], tmp_path)
    made = load_annotation(tmp_path / "template.json")
    assert {name: getattr(made, name) for name in boxes} == boxes


@each_page
def test_commands_of_page_parse(page: Path) -> None:
    for arguments in commands(page):
        app.parse_args(arguments)


def test_commands_that_do_not_exist_are_noticed() -> None:
    for wrong in (["find", "films"], ["detect", "films", "-o", "out", "--readers", "2"]):
        with pytest.raises(CycloptsError):
            app.parse_args(wrong)


@each_page
def test_links_and_files_of_page_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        assert "://" in target or (page.parent / target).exists(), target
    if page.stem not in ("CHANGELOG", "results"):  # which may name what was there
        for name in re.findall(r"`((?:src|tests|lab|scripts)/[\w./-]*)`", text):
            assert (ROOT / name).exists(), name


def test_paper_page_names_what_exists() -> None:
    text = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\|.*\| (.*) \| `([\w/]+\.py)` \|$", text, re.MULTILINE)
    assert len(rows) == 10
    for code, name in (*rows, *(("", name) for name in re.findall(r"`([\w/]+\.py)`", text))):
        source = (ROOT / "src" / "kneematch" / name).read_text(encoding="utf-8")
        for word in re.findall(r"[A-Za-z_]\w+", " ".join(re.findall(r"`(.*?)`", code))):
            assert re.search(rf"\b{word}\b", source), f"{word} in {name}"


@pytest.mark.matrix
@pytest.mark.parametrize("name", RUN)
def test_commands_of_page_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run them on fewer and smaller films, and train for one epoch."""
    (page,) = (page for page in PAGES if page.stem == name)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    for block in (block for block in code_blocks(page, "sh") if not block.startswith("pip")):
        small = re.sub(r"-n \d+", "-n 4", block)
        small = re.sub(r"synth(?!.*--size)", "synth --size 600x500", small)
        small = re.sub(r"train films --template template\.json", r"\g<0> --epochs 1", small)
        run(["bash", "-eu", "-c", STAND_IN + small], tmp_path)
