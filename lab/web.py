"""Time the web pages in a browser: a run of 50,000 rows, and a film of 12 megapixels in 16 bits.

    python benchmarks/web.py [--rows N]

Columns are seconds: for the review page, until its first cards are filled, until they have their
pictures, and the same after scrolling to a random place (median and slowest); for the annotation
page, until the film is read, shown, and annotated by the model. Targets on two cores: the first
page of a run under 1 s, any other place under 0.5 s after a scroll, a film on screen under 1.5 s.
"""

import argparse
import os
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fastapi import FastAPI
from kneephantoms.phantom import Knee, phantom
from playwright.sync_api import Browser, Page, sync_playwright

from films import table
from kneematch.films.write import write_dicom
from kneematch.knee.detection import YES, Detection
from kneematch.run.outputs.tables import write_tables
from kneematch.sampling import rectangle_to_film
from kneematch.web.annotate import annotate_app
from kneematch.web.review import review_app
from kneematch.web.review_session import ReviewSession
from kneematch.web.server import Credentials, make_server, open_port

CHROMIUM = "/usr/bin/chromium"
SIZES = {"1280 x 800": (1280, 800), "2560 x 1440": (2560, 1440)}
FILM = (4000, 3000)
RUN_FILM = (2494, 2048)
DISTINCT = 40  # different films of the run; the others are links to them
PLACES = 12  # scroll positions
# Seconds from a scroll until all cards in sight are filled, and until all have their pictures.
SCROLL = """async (share) => {
  const place = document.querySelector("#gallery");
  const seen = (card) => {
    const top = card.offsetTop - place.scrollTop;
    return top + card.offsetHeight > 0 && top < place.clientHeight;
  };
  const start = performance.now();
  let filled = null;
  if (share !== null) place.scrollTop = share * place.scrollHeight;
  for (;;) {
    await new Promise(requestAnimationFrame);
    const cards = [...document.querySelectorAll(".card")].filter(seen);
    const now = (performance.now() - start) / 1000;
    if (cards.length && cards.every((card) => card.dataset.row)) filled ??= now;
    if (filled !== null && cards.every((card) => card.querySelector("img")?.naturalWidth)) {
      return [filled, now];
    }
    if (now > 60) return [filled, null];
  }
}"""


@contextmanager
def served(app: FastAPI) -> Iterator[Credentials]:
    """Serve an app while the block runs."""
    with open_port() as own:
        credentials = Credentials(own.getsockname()[1])
        running = make_server(app, credentials)
        thread = threading.Thread(target=lambda: running.run(sockets=[own]))
        thread.start()
        try:
            yield credentials
        finally:
            running.should_exit = True
            thread.join()


def make_run(folder: Path, rows: int) -> Path:
    """Write a run folder: links to a few films, and areas a little off the true ones."""
    out, films = folder / "out", folder / "films"
    out.mkdir()
    films.mkdir()
    draw = random.Random(5)
    knees = []
    for seed in range(DISTINCT):
        made = phantom(seed, size=RUN_FILM)
        write_dicom(
            films / f"own-{seed}.dcm",
            made.radiograph.pixels,
            mm_per_px=0.15,
            laterality="B",
            bits=16,
        )
        knees.append(made.knees)
    detections = []
    for number in range(rows // 2):
        path = films / f"film-{number:06d}.dcm"
        path.symlink_to(films / f"own-{number % DISTINCT}.dcm")
        detections += [(str(path), found(knee, draw)) for knee in knees[number % DISTINCT]]
    write_tables(detections, out)
    return out


def found(knee: Knee, draw: random.Random) -> Detection:
    """Return an area a little off a true one, with a loss at random."""
    half = 0.67 * abs(knee.plateau_right[0] - knee.plateau_left[0])
    x, y = (value + draw.uniform(-9, 9) for value in knee.centre)
    loss = draw.betavariate(2, 9)
    review, reason = (YES, "high loss") if loss > 0.4 else ("", "")
    left = knee.side == "left"
    to_film = rectangle_to_film(x - half, y - half, x + half, y + half, mirrored=left)
    return Detection.from_matrix(
        to_film.numpy(),
        {},
        side=knee.side,
        laterality=knee.laterality,
        energy=2 * loss,
        loss=loss,
        polarity="positive",
        method="by hand",
        mm_per_px=0.15,
        review=review,
        reason=reason,
    )


def opened(browser: Browser, credentials: Credentials, size: tuple[int, int]) -> Page:
    page = browser.new_page(viewport={"width": size[0], "height": size[1]})
    page.set_default_timeout(120_000)
    page.goto(credentials.url, wait_until="commit")
    return page


def review(browser: Browser, folder: Path, rows: int) -> None:
    """Time the gallery of a large run whose thumbnails are not cached."""
    out = make_run(folder, rows)
    start = time.perf_counter()
    run = ReviewSession(out, Path())
    loading = time.perf_counter() - start
    lines = []
    for name, size in SIZES.items():
        with served(review_app(run)) as credentials:
            start = time.perf_counter()
            page = opened(browser, credentials, size)
            page.wait_for_selector(".card[data-row]")
            first = time.perf_counter() - start
            _, pictured = page.evaluate(SCROLL, None)
            first_pictures = first + pictured
            draw = random.Random(3)
            times = [page.evaluate(SCROLL, draw.random()) for _ in range(PLACES)]
            filled, pictures = zip(*times, strict=True)
            again = page.evaluate(SCROLL, 0)
            page.close()
        usual, slowest = statistics.median(filled), max(filled)
        with_pictures = statistics.median(pictures), again[1]
        seconds = first, first_pictures, usual, slowest, *with_pictures
        lines.append([name, *map(_seconds, seconds)])
    run.log.close()
    print(f"{rows} rows; opened in {loading:.2f} s. Load {_load()}. Seconds:\n")
    heads = ["window", "first page", "with pictures", "scroll, median", "scroll, slowest"]
    table([*heads, "with new pictures", "with cached pictures"], lines)


def annotate(browser: Browser, folder: Path, repeats: int) -> None:
    """Time the annotation page of a large film."""
    path = folder / "large.dcm"
    write_dicom(
        path, phantom(0, size=FILM).radiograph.pixels, mm_per_px=0.1, laterality="B", bits=16
    )
    lines = []
    for name, size in SIZES.items():
        shown, guessed, reading = [], [], []
        for _ in range(repeats):
            start = time.perf_counter()
            with served(annotate_app(path, folder / "template.json", [])) as credentials:
                reading.append(time.perf_counter() - start)
                page = opened(browser, credentials, size)
                page.wait_for_selector("#film[data-ready]")
                shown.append(time.perf_counter() - start)
                page.wait_for_selector("body[data-ready]")
                guessed.append(time.perf_counter() - start)
                page.close()
        lines.append([name, *(_seconds(statistics.median(k)) for k in (reading, shown, guessed))])
    print(f"A film of {FILM[1]} x {FILM[0]} pixels, 16 bits. Load {_load()}. Seconds since")
    print("its reading began:\n")
    table(["window", "film read", "on screen", "with initial annotation"], lines)


def _load() -> str:
    """Return the load average, since other programs slow the pages down."""
    return f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


def _seconds(value: float) -> str:
    return f"{value:.2f}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    with sync_playwright() as play, tempfile.TemporaryDirectory() as folder:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        annotate(browser, Path(folder), args.repeats)
        review(browser, Path(folder), args.rows)
        browser.close()


if __name__ == "__main__":
    main()
