"""Films that crash their decoder, with a real crash."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import HTTPCookieProcessor, OpenerDirector, build_opener

import pytest

from kneematch.errors import FilmError
from kneematch.films.read import read
from kneematch.run.database import Run
from kneematch.web.server import read_film
from kneephantoms.files import write_png16

# Run at the start of every Python process: a worker process aborts on opening a certain file.
DEADLY = """
import os, sys
def hook(event, args):
    if event == "open" and str(args[0]).endswith("deadly.png"):
        from multiprocessing import parent_process
        if parent_process() is not None:
            os.abort()
sys.addaudithook(hook)
"""


@contextmanager
def page_of(folder: Path, *command: str) -> Iterator[str]:
    """Run a command in a folder with the deadly file in it; yield the address of its page."""
    (folder / "sitecustomize.py").write_text(DEADLY)
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    process = subprocess.Popen(
        [sys.executable, "-m", "kneematch", *command, "--no-browser"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process:
        try:
            yield process.stdout.readline().strip()
        finally:
            process.send_signal(signal.SIGINT)
            _, printed = process.communicate(timeout=120)
    assert process.returncode == 0
    assert printed == "kneematch: Open this address in a browser. Ctrl-C ends the page.\n"


def get(page: OpenerDirector, address: str) -> tuple[int, bytes]:
    """Request an address, as the page does."""
    try:
        with page.open(address, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_read_film_keeps_the_last_films(films: list[Path]) -> None:
    first = read_film(films[0])
    assert read_film(films[0]) is first
    assert (first.pixels == read(films[0]).pixels).all()
    with pytest.raises(FilmError, match="No such file"):
        read_film(films[0].with_name("gone.dcm"))


def test_review_survives_the_crash_of_a_decoder(run_folder: Path, films: list[Path]) -> None:
    folder = run_folder.parent
    for name in ("deadly.png", "healthy.png"):
        write_png16(folder / name, read(films[0]).pixels)
    with Run(run_folder) as run:
        run.store(folder=str(folder))
        for film, path in ((2, "deadly.png"), (3, "healthy.png")):
            run.sql.execute("UPDATE films SET path = ? WHERE id = ?", (path, film))
    page = build_opener(HTTPCookieProcessor())
    with page_of(folder, "review", "out") as address:
        root = page.open(address, timeout=60).url
        for route in ("film/3", "api/areas/3", "film/4"):
            status, content = get(page, root + route)
            assert status == 404
            problem = json.loads(content)["problem"]
            assert problem.startswith(
                "deadly.png: the process that read it ended (killed by SIGABRT)"
            )
        for route in ("film/5", "film/1"):
            status, content = get(page, root + route)
            assert status == 200
            assert content.startswith(b"\xff\xd8")  # a JPEG file
        status, content = get(page, f"{root}thumbnail/2")
        assert (status, content[:2]) == (200, b"\xff\xd8")
