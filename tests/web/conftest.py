"""A browser, films, a finished run, and servers that last for one test."""

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi import FastAPI
from playwright.sync_api import Browser, Page, expect, sync_playwright

from kneematch.cli.main import main
from kneematch.connections import open_port
from kneematch.films.annotation import Annotation, annotate, save_annotation
from kneematch.films.read import read
from kneematch.knee.quality import ATYPICAL, DISAGREE
from kneematch.run.database import Run
from kneematch.web.annotate import SplitFilm, detected_annotation
from kneematch.web.review import ReviewSession, review_app
from kneematch.web.server import Credentials, make_server
from kneephantoms import phantom
from kneephantoms.files import write_dicom
from pages import Open, Serve
from phantom_films import radiograph

CHROMIUM = Path("/usr/bin/chromium")
TIMEOUT_MS = 90_000  # for a busy machine
expect.set_options(timeout=TIMEOUT_MS)
# Larger films, and more of them, for the pictures of the docs.
FOR_DOCS = bool(os.environ.get("KNEEMATCH_DOCS"))
SIZE = (1200, 1100) if FOR_DOCS else (512, 512)
SEEDS = (0, 1, 10, 4, 2, 5, 6, 8, 12, 14, 15, 21) if FOR_DOCS else (0, 1, 10, 4)
VIEWPORT = (1280, 800)
REASONS = {4: (DISAGREE, ATYPICAL), 7: (ATYPICAL,)}  # by the row of the page


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Debian's Chromium. Without it tests are skipped, but fail in CI, which must run them."""
    if not CHROMIUM.exists():
        missing = f"There is no {CHROMIUM}. Install it with: apt-get install chromium"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    with sync_playwright() as play:
        # In a container there are no user namespaces; the pages are our own.
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser: Browser, serve: Serve) -> Iterator[Open]:
    """Open a page as the user does; an error fails the test, unless it has the allowed text.

    Pages are closed before their server stops (they would miss it), hence the fixture `serve`.
    """
    errors: list[str] = []
    expected: list[str] = []
    with ExitStack() as stack:

        def open_url(
            credentials: Credentials, size: tuple[int, int] = VIEWPORT, allowed: str = "409"
        ) -> Page:
            expected.append(allowed)
            context = browser.new_context(viewport={"width": size[0], "height": size[1]})
            stack.callback(context.close)
            page = context.new_page()
            page.set_default_timeout(TIMEOUT_MS)
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.on("console", lambda each: errors.extend([each.text] * (each.type == "error")))
            page.goto(credentials.new_url())
            page.wait_for_selector("body[data-ready]")
            return page

        yield open_url
    assert [error for error in errors if not any(text in error for text in expected)] == []


@contextmanager
def _served(app: FastAPI) -> Iterator[Credentials]:
    """Serve an app on a port of its own for the duration of a block."""
    with open_port() as listening:
        credentials = Credentials(listening.getsockname()[1])
        server = make_server(app, credentials)
        thread = threading.Thread(target=lambda: server.run(sockets=[listening]))
        thread.start()
        try:
            yield credentials
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serve apps until the test is over."""
    with ExitStack() as stack:
        yield lambda app: stack.enter_context(_served(app))


@pytest.fixture
def open_review(serve: Serve, open_page: Open) -> Open:
    """Open the review page of a run's folder."""
    return lambda out, **options: open_page(
        serve(review_app(ReviewSession(out, Path()))), **options
    )


@pytest.fixture(scope="session")
def served() -> Callable[[FastAPI], AbstractContextManager[Credentials]]:
    return _served


@pytest.fixture(scope="session")
def films(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Phantoms as DICOM files; the first one is easy to draw a template on."""
    folder = tmp_path_factory.mktemp("films")
    paths = []
    for seed in SEEDS:
        path = folder / f"film-{seed}.dcm"
        film = radiograph(phantom(seed, size=SIZE))
        spacing = film.mm_per_px if FOR_DOCS else 256 / SIZE[1]
        write_dicom(path, film.pixels, mm_per_px=spacing, laterality="B")
        paths.append(path)
    return paths


@pytest.fixture(scope="session")
def finished_run(films: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run, which tests must not change; two of its knees are doubtful."""
    folder = tmp_path_factory.mktemp("run")
    knee = phantom(SEEDS[0], size=SIZE).knees[1]
    drawn = annotate(films[0], knee.side, knee.plateau_left, knee.plateau_right)
    save_annotation(drawn, folder / "template.json")
    template = str(folder / "template.json")
    named = [str(path) for path in films]
    search = [] if FOR_DOCS else ["--template", template, "--method", "search"]
    where = ["--device", "cpu", "--workers", "0", "-o", str(folder / "out"), "--quiet"]
    assert main(["detect", *named, *search, *where]) == 0
    if not FOR_DOCS:
        with Run(folder / "out") as run:
            for film in list(run.records()):
                doubts = REASONS.get(2 * film.id - 1, ()), REASONS.get(2 * film.id, ())
                knees = tuple(
                    replace(knee, needs_review=bool(reasons), reasons=reasons)
                    for knee, reasons in zip(film.found, doubts, strict=True)
                )
                run.save([replace(film, found=knees, knees=knees)])
        assert main(["detect", *named, *search, *where]) == 0
    return folder / "out"


@pytest.fixture
def run_folder(finished_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished_run, tmp_path / "out"))


@pytest.fixture(scope="session")
def model_annotation(films: list[Path]) -> Annotation | None:
    """What the built-in model finds on the first film."""
    return detected_annotation(SplitFilm.from_film(films[0], read(films[0])))


@pytest.fixture
def model_already_run(model_annotation: Annotation | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Save a test the seconds in which the model would run again."""
    monkeypatch.setattr("kneematch.web.annotate.detected_annotation", lambda film: model_annotation)
