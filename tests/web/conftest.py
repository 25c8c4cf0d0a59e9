"""A browser, films, and pages that are served for one test."""

import csv
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from kneematch.cli.main import main
from kneematch.io.read import read
from kneematch.io.write import write_dicom
from kneematch.matching.annotation import Annotation, save_annotation
from kneematch.synthetic.annotation import annotate
from kneematch.synthetic.phantom import phantom
from kneematch.web.auth import Door, Guard
from kneematch.web.drawing import Subject
from kneematch.web.initial_annotation import from_model
from kneematch.web.serve import door_of, open_port, server

CHROMIUM = Path("/usr/bin/chromium")
expect.set_options(timeout=20_000)
PATIENCE_MS = 30_000  # on a machine that others use, too
# Larger films, and more of them, for the pictures of the docs.
FOR_DOCS = bool(os.environ.get("KNEEMATCH_DOCS"))
SIZE = (1200, 1100) if FOR_DOCS else (512, 512)
SEEDS = (0, 1, 10, 4, 2, 5, 6, 8, 12, 14, 15, 21) if FOR_DOCS else (0, 1, 10, 4)
VIEWPORT = (1280, 800)
DOUBTS = {3: "low contrast; high loss", 6: "high loss"}  # by row

Build = Callable[[Door], Guard]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Debian's Chromium; without it these tests fail, since nothing else shows that pages work."""
    if not CHROMIUM.exists():
        pytest.fail(f"{CHROMIUM} is not there; expected Chromium; run: apt-get install chromium")
    with sync_playwright() as play:
        # In a container there are no user namespaces; the pages are our own.
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens a page as the user does; errors in its console fail the test."""
    errors: list[str] = []
    with ExitStack() as stack:

        def opened(door: Door, size: tuple[int, int] = VIEWPORT, allowed: str = "409") -> Page:
            context = browser.new_context(viewport={"width": size[0], "height": size[1]})
            stack.callback(context.close)
            page = context.new_page()
            page.set_default_timeout(PATIENCE_MS)
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.on("console", lambda said: errors.extend(_complaint(said, allowed)))
            page.goto(door.address)
            return page

        yield opened
    assert errors == []


def _complaint(said: ConsoleMessage, allowed: str) -> list[str]:
    """Errors, but for answers of the server that are part of the page's work."""
    return [said.text] if said.type == "error" and allowed not in said.text else []


@contextmanager
def _served(build: Build) -> Iterator[Door]:
    """An app on a port of its own, for as long as the block lasts."""
    with open_port() as own:
        door = door_of(own)
        running = server(build(door))
        thread = threading.Thread(target=lambda: running.run(sockets=[own]))
        thread.start()
        try:
            yield door
        finally:
            running.should_exit = True
            thread.join()


@pytest.fixture
def serve() -> Iterator[Callable[[Build], Door]]:
    """Serves apps until the test is over."""
    with ExitStack() as stack:
        yield lambda build: stack.enter_context(_served(build))


@pytest.fixture(scope="session")
def served() -> Callable[[Build], AbstractContextManager[Door]]:
    """Serves an app for a block, so that a test can start it again."""
    return _served


@pytest.fixture(scope="session")
def films(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Phantoms as DICOM; the first one is easy to draw a template on."""
    folder = tmp_path_factory.mktemp("films")
    paths = []
    for seed in SEEDS:
        path = folder / f"film-{seed}.dcm"
        film = phantom(seed, size=SIZE).radiograph
        write_dicom(path, film.pixels, mm_per_px=0.5, laterality="B")
        paths.append(path)
    return paths


@pytest.fixture(scope="session")
def finished_run(films: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run, never to be changed; two of its knees are doubtful."""
    folder = tmp_path_factory.mktemp("run")
    knee = phantom(SEEDS[0], size=SIZE).knees[1]
    drawn = annotate(films[0], knee.side, knee.plateau_left, knee.plateau_right)
    save_annotation(drawn, folder / "template.json")
    template = str(folder / "template.json")
    named = [str(path) for path in films]
    command = ["detect", *named, "--template", template, "--method", "search", "--device", "cpu"]
    assert main([*command, "-o", str(folder / "out"), "--quiet"]) == 0
    table = folder / "out" / "detections.csv"
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for number, row in enumerate(rows):
        reason = DOUBTS.get(number, "")
        row |= {"review": "yes" if reason else "no", "reason": reason}
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return folder / "out"


@pytest.fixture
def run_folder(finished_run: Path, tmp_path: Path) -> Path:
    """A copy of the run."""
    return Path(shutil.copytree(finished_run, tmp_path / "out"))


@pytest.fixture(scope="session")
def model_guess(films: list[Path]) -> Annotation | None:
    """What the model in the box says of the first film."""
    return from_model(Subject.of(films[0], read(films[0])))


@pytest.fixture
def guessed_before(model_guess: Annotation | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spares a test the seconds in which the model is asked again."""
    monkeypatch.setattr("kneematch.web.annotate.from_model", lambda subject: model_guess)
