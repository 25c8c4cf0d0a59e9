"""`kneematch annotate` and `kneematch review`, as processes and as errors."""

import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from kneematch import errors
from kneematch.cli.main import main


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("films")
    assert main(["synth", "-n", "1", "-o", str(folder), "--size", "512x512"]) == 0
    return folder / "phantom-00000.dcm"


@pytest.fixture(scope="module")
def out(film: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "out"
    template = ["--template", str(film.parent / "template.json"), "--method", "search"]
    assert main(["detect", str(film), *template, "--device", "cpu", "-o", str(folder)]) == 0
    return folder


@pytest.mark.parametrize("command", ["annotate", "review"])
def test_annotate_and_review_serve_a_page_until_interrupted(
    command: str, film: Path, out: Path
) -> None:
    named = {"annotate": [str(film), "--films", str(film.parent)], "review": ["out"]}
    process = subprocess.Popen(
        [sys.executable, "-m", "kneematch", command, *named[command], "--no-browser"],
        cwd=out.parent,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    assert address.startswith("http://127.0.0.1:")
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    with browser.open(address, timeout=120) as answer:
        assert answer.status == 200
        assert f"{command}.js" in answer.read().decode()
    process.send_signal(signal.SIGINT)
    _, printed = process.communicate(timeout=120)
    assert process.returncode == 0, printed
    assert printed == "kneematch: Open this address in a browser. Ctrl-C ends the page.\n"


def test_annotate_reports_the_missing_extra(
    film: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(errors, "find_spec", lambda name: None)
    assert main(["annotate", str(film)]) == 2
    message = capsys.readouterr().err
    assert message.startswith("kneematch: ")
    assert message.count("\n") == 1
    assert "uvicorn. Install the extra web: pip install 'kneematch[web]'" in message
    assert "in a checkout: pip install '.[web]'" in message
