"""The README and the other pages: their Python and commands run, their links lead on."""

import os
import re
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from kneematch.cli.main import app
from kneematch.films.annotation import load_annotation, save_annotation
from kneematch.films.read import read
from kneematch.films.shapes import write_markups, write_points
from kneematch.run.config import DetectConfig
from kneematch.run.pipeline import detect_folder
from kneephantoms import phantom
from kneephantoms.config import SynthConfig
from kneephantoms.dataset import synthesize
from kneephantoms.files import write_dicom, write_png16

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
OTHER_PROGRAMS = {"docker", "pip"}  # to which kneematch is an argument
SHELL_ENDS = {"|", "||", "&&", ">", ";"}  # what follows is another program's

PROGRAMS = Path(__file__).with_name("programs_of_pages.py")
NAMES = ("kneematch", "docker", "apptainer", "srun", "torchrun", "python", "pip", "make", "pytest")
OAI_SERIES = "Bilateral PA Fixed Flexion Knee"
# Pages whose commands begin with films that are there, and not with `kneematch synth`.
WITH_FILMS = ("web.md", "cluster.md", "container.md")
WITH_STUDIES = ("reproduce.md", "oai.md")


def code_blocks(page: Path, language: str) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


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
    group: Any = typer.main.get_command(app)
    if arguments[0].startswith("-"):  # an option of the program itself
        assert arguments[0] in {name for option in group.params for name in option.opts}
        return
    command = group.commands[arguments[0]]
    command.make_context(arguments[0], arguments[1:])


def test_readme_is_short() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 150


def test_readme_python_runs(tmp_path: Path) -> None:
    (code,) = code_blocks(README, "python")
    synthesize(tmp_path / "films", SynthConfig(count=2, size=(600, 500), framing="knee"))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "left R" in done.stdout
    assert "right L" in done.stdout
    assert "4 knees" in done.stdout
    assert {path.name for path in tmp_path.glob("*.png")} >= {"left.png", "right.png"}
    assert (tmp_path / "found-python" / "coco.json").exists()
    assert (tmp_path / "mine.safetensors").exists()
    assert (tmp_path / "compared-python" / "evaluation.md").exists()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_page_parse(page: Path) -> None:
    for arguments in commands(page):
        try:
            parse(arguments)
        except typer.BadParameter.__base__ as error:  # type: ignore[misc]
            pytest.fail(f"kneematch {shlex.join(arguments)}: {error}")


def test_readme_names_every_entry_point() -> None:
    named = {arguments[0] for arguments in commands(README)}
    assert named == {"synth", "detect", "annotate", "review", "apply", "train", "evaluate"}


def test_commands_that_do_not_exist_are_noticed() -> None:
    with pytest.raises(KeyError):
        parse(["find", "films"])
    with pytest.raises(typer.BadParameter.__base__):  # type: ignore[arg-type]
        parse(["detect", "films", "-o", "out", "--readers", "2"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_page_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_paper_page_names_what_exists() -> None:
    text = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\|.*\| (.*) \| (`[\w/]+\.py`) \|$", text, re.MULTILINE)
    assert len(rows) == 10
    for code, where in rows:
        files = [ROOT / "src" / "kneematch" / name for name in re.findall(r"`(.*?)`", where)]
        source = "".join(file.read_text(encoding="utf-8") for file in files)
        for named in re.findall(r"`(.*?)`", code):
            for word in re.findall(r"[A-Za-z_]\w+", named):
                assert re.search(rf"\b{word}\b", source), f"{word} in {where}"
    for name in re.findall(r"`([\w/]+\.py)`", text):
        assert (ROOT / "src" / "kneematch" / name).exists(), name


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, and the stand-ins on the path."""
    programs, work = tmp_path / "bin", tmp_path / "work"
    programs.mkdir()
    work.mkdir()
    for name in NAMES:
        script = programs / name
        command = shlex.join([sys.executable, str(PROGRAMS), name])
        script.write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
        script.chmod(0o755)
    settings = {"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    jobs = {"ARRAY_TASK_ID": "0", "ARRAY_TASK_COUNT": "2", "CPUS_PER_TASK": "2"}
    for name, text in {**settings, **{f"SLURM_{key}": text for key, text in jobs.items()}}.items():
        monkeypatch.setenv(name, text)
    return work


def make_films(folder: Path) -> None:
    """What a reader of these pages has: films, a template, and an archive."""
    config = SynthConfig(count=4, size=(600, 500), framing="knee", workers=0)
    synthesize(folder / "films", config)
    synthesize(folder / "archive" / "knees", config)
    save_annotation(load_annotation(folder / "films" / "template.json"), folder / "template.json")


def make_studies(folder: Path) -> None:
    """Phantoms laid out as OAI and MOST are, one series of them packed."""
    for k in range(5):
        pixels = phantom(k, size=(480, 480), framing="knee").pixels
        series = folder / f"OAI/00m/0.C.2/{9_000_001 + k}/20040909/0042960{3 + k}"
        series.mkdir(parents=True)
        write_dicom(
            series / "001",
            pixels,
            mm_per_px=0.3,
            laterality="B",
            series="Bilateral PA Fixed Flexion Knee",
        )
        view = folder / f"MOST/M{1000 + k}_ABCD/V0/1{k}608/PA10"
        view.mkdir(parents=True)
        write_dicom(view / f"1{k}6081", pixels, mm_per_px=0.3, laterality="B")
    with tarfile.open(series.with_suffix(".tar.gz"), "w:gz") as archive:
        archive.add(series / "001", "001")
    (series / "001").unlink()


def make_drawings(folder: Path) -> None:
    """Landmarks drawn with other programs on the first phantom that the page makes."""
    synthesize(folder / "same", SynthConfig(count=1, size=(600, 500), framing="knee", workers=0))
    drawn = load_annotation(folder / "same" / "template.json")
    write_points(folder / "drawn.pts", drawn.landmarks)
    write_markups(folder / "drawn.mrk.json", drawn.landmarks, read(drawn.film).mm_per_px)


def make_visits(folder: Path) -> None:
    """Two measured runs with the films of the same patients, and a joint space that was drawn."""
    make_films(folder)
    for visit in ("baseline", "follow-up"):
        detect_folder(folder / "films", folder / visit, DetectConfig(measure=True, workers=0))
    names = [path.name for path in sorted((folder / "films").glob("*.dcm"))]
    pairs = ["before,after", *(f"{name},{name}" for name in names)]
    (folder / "pairs.csv").write_text("\n".join(pairs), encoding="utf-8")
    mask = np.zeros((256, 256), np.float32)
    mask[120:135, 40:216] = 1
    (folder / "drawn").mkdir()
    write_png16(folder / "drawn" / "0-mask.png", mask)
    write_png16(folder / "drawn" / "0.png", 0.8 - 0.5 * mask)


@pytest.mark.matrix
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_page_run(page: Path, folder: Path) -> None:
    """Run them as they stand; tests/programs_of_pages.py stands in for what cannot run here."""
    blocks = code_blocks(page, "sh")
    if not blocks or page.name == "install.md":
        pytest.skip("no commands, or those of tests/test_installation.py")
    if page.name == "measures.md":
        make_visits(folder)
    if page.name in WITH_FILMS:
        make_films(folder)
    if page.name in WITH_STUDIES:
        make_studies(folder)
    if page.name == "CONTRIBUTING.md":
        (folder / ".venv" / "bin").mkdir(parents=True)
        (folder / ".venv" / "bin" / "activate").touch()
    if page.name == "own-template.md":
        make_drawings(folder)
    if page.name == "tutorial.md":
        (folder / "grade.py").write_text(code_blocks(page, "python")[0], encoding="utf-8")
    for block in blocks:
        done = subprocess.run(
            ["bash", "-eu", "-c", block.replace("/archive", str(folder / "archive"))],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{block}\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}"
