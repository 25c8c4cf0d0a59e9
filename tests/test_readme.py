"""The README and the other pages: their Python runs, their commands parse, their links lead on."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from kneematch.cli.main import app
from kneematch.synthetic.config import SynthConfig
from kneematch.synthetic.dataset import synthesize

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
OTHER_PROGRAMS = {"docker", "pip"}  # to which kneematch is an argument
SHELL_ENDS = {"|", "||", "&&", ">", ";"}  # what follows is another program's


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
    assert named == {"synth", "detect", "annotate", "review", "train", "evaluate"}


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
    rows = re.findall(r"^\|.*\|.*\| (.*) \| (`[\w/]+\.py`.*) \|$", text, re.MULTILINE)
    assert len(rows) > 20
    for code, where in rows:
        files = [ROOT / "src" / "kneematch" / name for name in re.findall(r"`(.*?)`", where)]
        source = "".join(file.read_text(encoding="utf-8") for file in files)
        for named in re.findall(r"`(.*?)`", code):
            for word in re.findall(r"[A-Za-z_]\w+", named):
                assert re.search(rf"\b{word}\b", source), f"{word} in {where}"
    for name in re.findall(r"`([\w/]+\.py)`", text):
        assert (ROOT / "src" / "kneematch" / name).exists(), name
