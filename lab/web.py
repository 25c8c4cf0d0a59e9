"""Time the web pages in a browser: the gallery of a run, and a large film to annotate.

    python lab/web.py [--films N] [--repeats N]

The run is made by `kneematch detect` on links to 40 phantoms, and both pages are served by their
commands. Columns are seconds: for the review page, until its first cards are filled, until they
have their pictures, and the same after scrolling to a random place (median and slowest); for the
annotation page (12 megapixels in 16 bits), from the command until the film is shown, and until it
is annotated by the model.
"""

import argparse
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from films import table
from kneephantoms import SynthConfig, phantom, synthesize, write_dicom

SIZES = {"1280 x 800": (1280, 800), "2560 x 1440": (2560, 1440)}
FILM = (4000, 3000)
RUN_FILM = (1024, 1247)
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
def served(*arguments: str) -> Iterator[str]:
    """Yield the address of a page that a command serves."""
    command = [sys.executable, "-m", "kneematch", *arguments, "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        try:
            lines = (line.decode() for line in process.stdout or ())
            yield next(found[0] for line in lines if (found := re.search(r"http://\S+", line)))
        finally:
            process.terminate()


def make_run(folder: Path, count: int) -> Path:
    """Run `detect` on links to a few films; return its folder."""
    synthesize(folder / "own", SynthConfig(min(DISTINCT, count), size=RUN_FILM))
    own = sorted((folder / "own").glob("*.dcm"))
    (folder / "films").mkdir()
    for number in range(count):
        (folder / "films" / f"film-{number:06d}.dcm").symlink_to(own[number % len(own)])
    command = ["detect", str(folder / "films"), "-o", str(folder / "out"), "--quiet"]
    subprocess.run([sys.executable, "-m", "kneematch", *command], check=True)
    return folder / "out"


def opened(browser: Browser, address: str, size: tuple[int, int]) -> Page:
    page = browser.new_page(viewport={"width": size[0], "height": size[1]})
    page.set_default_timeout(120_000)
    page.goto(address, wait_until="commit")
    return page


def review(browser: Browser, folder: Path, films: int) -> None:
    """Time the gallery of a run."""
    out, lines = make_run(folder, films), []
    for name, size in SIZES.items():
        with served("review", str(out)) as address:
            start = time.perf_counter()
            page = opened(browser, address, size)
            page.wait_for_selector(".card[data-row]")
            first = time.perf_counter() - start
            _, pictured = page.evaluate(SCROLL, None)
            draw = random.Random(3)
            times = [page.evaluate(SCROLL, draw.random()) for _ in range(PLACES)]
            filled, pictures = zip(*times, strict=True)
            page.close()
        seconds = first, first + pictured, statistics.median(filled), max(filled)
        lines.append([name, *(f"{s:.2f}" for s in (*seconds, statistics.median(pictures)))])
    print(f"A run of {films} films.\n")
    heads = ["window", "first page", "with pictures", "scroll, median", "scroll, slowest"]
    table([*heads, "with new pictures"], lines)


def annotate(browser: Browser, folder: Path, repeats: int) -> None:
    """Time the annotation page of a large film."""
    path, lines = folder / "large.dcm", []
    write_dicom(path, phantom(0, size=FILM).pixels, mm_per_px=0.1, laterality="B", bits=16)
    for name, size in SIZES.items():
        shown, guessed = [], []
        for _ in range(repeats):
            start = time.perf_counter()
            template = str(folder / "template.json")
            with served("annotate", str(path), "-o", template) as address:
                page = opened(browser, address, size)
                page.wait_for_selector("#film[data-ready]")
                shown.append(time.perf_counter() - start)
                page.wait_for_selector("body[data-ready]")
                guessed.append(time.perf_counter() - start)
                page.close()
        lines.append([name, *(f"{statistics.median(times):.2f}" for times in (shown, guessed))])
    print(f"A film of {FILM[1]} x {FILM[0]} pixels, 16 bits.\n")
    table(["window", "on screen", "with initial annotation"], lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--films", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    with sync_playwright() as play, tempfile.TemporaryDirectory() as folder:
        browser = play.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        annotate(browser, Path(folder), args.repeats)
        review(browser, Path(folder), args.films)
        browser.close()


if __name__ == "__main__":
    main()
