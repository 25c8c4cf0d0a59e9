"""The README and the other pages: their Python and commands run, their links lead on."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cyclopts import CycloptsError

from kneematch.cli.main import app
from kneematch.films.annotation import load_annotation
from kneematch.knee.decision import Area, Decision
from kneematch.run.config import DetectConfig
from kneematch.run.database import Run
from kneematch.run.pipeline import detect_folder
from kneephantoms import SynthConfig, synthesize

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [*ROOT.glob("[A-Z]*.md"), *(ROOT / "docs").rglob("*.md")]
OTHER_PROGRAMS = {"docker", "pip"}  # to which kneematch is an argument
SHELL_ENDS = {"|", "||", "&&", ">", ";"}  # what follows is another program's
STAND_IN = Path(__file__).with_name("programs_of_pages.py")
# Pages that need nothing but kneematch; tests/test_installation.py runs the one on installing.
RUN = (
    *("README", "index", "tutorial", "web", "measures"),
    *("own-template", "any-part", "review", "one-knee", "onnx"),
)
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


def parse(arguments: list[str]) -> None:
    """Parse a command as the command line does, without running it."""
    app.parse_args(arguments)


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
    drawn = load_annotation(synthesize(tmp_path / "films", SMALL).template)
    shapes, names = [], ("fine", "red", "green")
    for number, name in enumerate(names):
        x0, y0, x1, y1 = getattr(drawn, name)
        shapes.append({"category_id": number, "bbox": [x0, y0, x1 - x0, y1 - y0]})
    categories = [{"id": number, "name": name} for number, name in enumerate(names)]
    coco = {"categories": categories, "annotations": shapes}
    (tmp_path / "coco.json").write_text(json.dumps(coco), encoding="utf-8")
    run([sys.executable, "-c", code], tmp_path)
    made = load_annotation(tmp_path / "template.json")
    for name in names:
        assert getattr(made, name) == pytest.approx(getattr(drawn, name))


@each_page
def test_commands_of_page_parse(page: Path) -> None:
    for arguments in commands(page):
        parse(arguments)


def test_commands_that_do_not_exist_are_noticed() -> None:
    with pytest.raises(CycloptsError):
        parse(["find", "films"])
    with pytest.raises(CycloptsError):
        parse(["detect", "films", "-o", "out", "--readers", "2"])


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


def make_visits(folder: Path) -> None:
    """Make two measured runs of the same patients, and a third with a corrected outline."""
    rows = ["film,patient,visit\n"]
    for visit in ("baseline", "follow-up", "out"):
        synthesize(folder / "films" / visit, SMALL)
        films = sorted((folder / "films" / visit).glob("*.dcm"))
        detect_folder(films, folder / visit, DetectConfig(measure=True, workers=0))
        rows += [f"{film},{film.stem},{visit}\n" for film in films if visit != "out"]
    (folder / "visits.csv").write_text("".join(rows), encoding="utf-8")
    with Run(folder / "out") as run:
        knee = run.record(1).found[0]
        assert knee.measures is not None
        drawn = replace(knee.measures.outlines, corrected=True)
        run.decide(1, knee.side, Decision("corrected", Area.from_detection(knee), outlines=drawn))


@pytest.mark.matrix
@pytest.mark.parametrize("name", RUN)
def test_commands_of_page_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run them as they stand; tests/programs_of_pages.py makes them small."""
    (page,) = (page for page in PAGES if page.stem == name)
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "kneematch"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {STAND_IN} "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    for folder in (Path(sys.executable).parent, program.parent):
        monkeypatch.setenv("PATH", str(folder), prepend=":")
    if name == "web":
        synthesize(tmp_path / "films", SMALL)
    elif name == "measures":
        make_visits(tmp_path)
    elif name == "tutorial":
        (tmp_path / "grade.py").write_text(code_blocks(page, "python")[0], encoding="utf-8")
    for block in (block for block in code_blocks(page, "sh") if not block.startswith("pip")):
        run(["bash", "-eu", "-c", block], tmp_path)
