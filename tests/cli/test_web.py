"""`kneematch annotate` and `kneematch review`, as processes and as errors."""

import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from kneematch.cli import page
from kneematch.cli.main import main
from kneematch.web.serve import open_port


@pytest.mark.parametrize("command", ["annotate", "review"])
def test_the_address_that_is_told_opens_the_page_until_it_is_interrupted(
    command: str, films: list[Path], run_folder: Path
) -> None:
    named = {"annotate": [str(films[0]), "--films", str(films[0].parent)], "review": ["out"]}
    process = subprocess.Popen(
        [sys.executable, "-m", "kneematch", command, *named[command], "--no-browser"],
        cwd=run_folder.parent,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    assert address.startswith("http://127.0.0.1:")
    with urllib.request.urlopen(address, timeout=30) as answer:
        assert answer.status == 200
        assert f"{command}.js" in answer.read().decode()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 0, said
    assert said == "kneematch: open this address in a browser; Ctrl-C ends it\n"


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("kneematch: ")
    assert said.err.count("\n") == 1
    return said.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["annotate", "missing.dcm"],
        ["annotate", "FILM", "-o", "no/such/folder/template.json"],
        ["annotate", "FILM", "--films", "*.xyz"],
        ["annotate", "FILM", "--port", "99999"],
        ["review", "missing"],
        ["review", "."],
    ],
)
def test_what_cannot_be_shown_is_one_line_and_code_2(
    arguments: list[str],
    films: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    given = [str(films[0]) if word == "FILM" else word for word in arguments]
    assert main(given) == 2
    one_line(capsys)
    assert list(tmp_path.iterdir()) == []


def test_a_port_that_is_taken_is_told(
    films: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    with open_port() as own:
        port = str(own.getsockname()[1])
        assert main(["annotate", str(films[0]), "--port", port]) == 2
    assert "expected a free one" in one_line(capsys)


def test_without_the_extra_the_user_is_told_what_to_install(
    films: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(page, "find_spec", lambda name: None)
    assert main(["annotate", str(films[0])]) == 2
    assert "pip install 'kneematch[web]'" in one_line(capsys)
