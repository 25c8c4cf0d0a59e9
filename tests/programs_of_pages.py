"""Stands in for `kneematch` where the commands of pages are run: python tests/programs_of_pages.py.

It runs the real program on fewer and smaller films and trains it briefly; pages in the browser are
opened, read and ended, and `annotate` then writes the template that a user would have saved.
"""

import re
import subprocess
import sys
import urllib.request
from pathlib import Path

from kneematch.films.annotation import (
    KNEES,
    PLATEAU_MARGINS,
    annotate,
    load_annotation,
    save_annotation,
)

REAL = [sys.executable, "-m", "kneematch"]


def run(name: str, *arguments: str) -> int:
    """Run a command of kneematch."""
    words = list(arguments)
    if name == "synth":
        words = [re.sub(r"^\d\d+$", "4", word) for word in words]
        words += [] if "--size" in words else ["--size", "600x500"]
    if name == "train":
        words += brief(words)
    if name not in ("annotate", "review"):
        return subprocess.run([*REAL, name, *words], check=False).returncode
    open_page([*REAL, name, *words, *(() if "--no-browser" in words else ("--no-browser",))])
    return save_template(words[0], words[words.index("-o") + 1]) if name == "annotate" else 0


def brief(words: list[str]) -> list[str]:
    """Return the options that make a training short; that of another part has none, and is."""
    annotation = load_annotation(words[words.index("--template") + 1])
    return ["--epochs", "1"] if annotation.find == KNEES else []


def open_page(command: list[str]) -> None:
    """Start a page, read it at the address that is printed, and end it."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as page:
        for line in page.stdout or ():
            if address := re.search(r"http://127\.0\.0\.1:\d+\S*", line):
                with urllib.request.build_opener(urllib.request.HTTPCookieProcessor()).open(
                    address[0]
                ) as answer:
                    assert b"<html" in answer.read().lower()
                page.terminate()
                return
    sys.exit(f"{command}: no address")


def save_template(film: str, out: str) -> int:
    """Write a template around the first knee that is detected."""
    from kneematch import Detector

    knee = Detector.load().detect(film)[0]
    ends = sorted(knee.landmarks[name] for name in PLATEAU_MARGINS)
    save_annotation(annotate(Path(film), knee.side, *ends), out)
    return 0


if __name__ == "__main__":
    sys.exit(run(*sys.argv[1:]))
