"""`kneematch detect`: both knee joint areas of every film."""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kneematch.commands.terminal import SOME_FAILED, complain, progress, shown, writing

if TYPE_CHECKING:
    from PIL import Image

    from kneematch.detection.detection import Detection
    from kneematch.detector import Detector, Outcome

TABLE: Final = "detections.csv"
FAILURES: Final = "failures.csv"
OVERLAYS: Final = "overlays"
MOST_COMPLAINTS: Final = 10  # on the terminal; failures.csv has all
MOST_COLUMNS: Final = 4  # of a sheet
MOST_ROWS: Final = 12
FAST: Final = 2  # of PNG's compression levels: a tenth larger, three times as fast


class Method(StrEnum):
    """How the template is found."""

    SEARCH = "search"
    SLIDING = "sliding"
    GRID = "grid"


class Device(StrEnum):
    """Where it is computed."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


def detect(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="DICOM, PNG, JPEG, TIFF.")],
    template: Annotated[Path, typer.Option(metavar="JSON", help="The annotated knee.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder to make and fill.")],
    method: Annotated[Method, typer.Option(help="How to search.")] = Method.SEARCH,
    paper: Annotated[
        bool, typer.Option("--paper", help="Lower the energy as printed, not the robust one.")
    ] = False,
    device: Annotated[Device, typer.Option(help="Where to compute.")] = Device.AUTO,
    batch_size: Annotated[int, typer.Option(min=1, help="Films searched at once.")] = 8,
    overlays: Annotated[bool, typer.Option(help="Draw a picture of every film.")] = True,
    sheet: Annotated[
        Path | None, typer.Option(metavar="PNG", help="Draw the first films side by side.")
    ] = None,
) -> None:
    """Find both knee joint areas of films, with a template drawn on one of them."""
    from kneematch.detector import Detector

    detector = Detector.from_template(
        template, method=method.value, paper=paper, device=device.value, batch_size=batch_size
    )
    results = _Results(out, files, overlays=overlays, sheet=sheet)
    _run(detector, files, results.add)
    results.write()
    _tell(results)
    if results.failures:
        raise typer.Exit(SOME_FAILED)


class _Results:
    """What a run has found so far: rows for the tables, and pictures, which are saved at once."""

    def __init__(self, out: Path, files: list[Path], *, overlays: bool, sheet: Path | None) -> None:
        from kneematch.detection.overlay import overlay_names

        self.out, self.sheet = out, sheet
        self.rows: list[tuple[str, Detection]] = []
        self.failures: list[tuple[str, str]] = []
        self.films = 0
        self.pictures: list[Image.Image] = []
        self.names = iter(overlay_names(files)) if overlays else None
        with writing(out):
            (out / OVERLAYS if overlays else out).mkdir(parents=True, exist_ok=True)

    def add(self, path: Path, outcome: "Outcome") -> None:
        """The next film, in the order given."""
        from kneematch.detection.overlay import draw_detections
        from kneematch.outputs.preview import CELL_PX

        name = next(self.names) if self.names is not None else None
        if outcome.film is None:
            self.failures.append((str(path), str(outcome.failure)))
            return
        self.films += 1
        self.rows.extend((str(path), found) for found in outcome.detections)
        if name is not None:
            _save(draw_detections(outcome.film, outcome.detections), self.out / OVERLAYS / name)
        if self.sheet is not None and len(self.pictures) < MOST_COLUMNS * MOST_ROWS:
            self.pictures.append(
                draw_detections(outcome.film, outcome.detections, longest_px=CELL_PX)
            )

    def write(self) -> None:
        """The tables, and the sheet."""
        from kneematch.outputs.preview import contact_sheet
        from kneematch.outputs.table import write_detections, write_failures

        with writing(self.out / TABLE):
            write_detections(self.rows, self.out / TABLE)
        with writing(self.out / FAILURES):
            write_failures(self.failures, self.out / FAILURES)
        if self.sheet is not None and self.pictures:
            # As many as leave the fewest gaps in the last row.
            columns = min(range(MOST_COLUMNS, 1, -1), key=lambda c: -len(self.pictures) % c)
            _save(contact_sheet(self.pictures, columns), self.sheet)


def _run(
    detector: "Detector", files: list[Path], report: "Callable[[Path, Outcome], None]"
) -> None:
    with progress(len(files)) as advance:
        for path, outcome in zip(files, detector.each(files), strict=True):
            report(path, outcome)
            advance()


def _save(picture: "Image.Image", path: Path) -> None:
    from kneematch.files import write_aside

    with writing(path), write_aside(path) as aside:
        picture.save(aside, format="PNG", compress_level=FAST)


def _tell(results: _Results) -> None:
    """What failed on stderr, what was found on stdout."""
    for _, reason in results.failures[:MOST_COMPLAINTS]:
        complain(reason)
    more = len(results.failures) - MOST_COMPLAINTS
    if more > 0:
        complain(f"{more} more films failed: {shown(results.out / FAILURES)}")
    knees = len(results.rows)
    failed = f", {len(results.failures)} failed ({FAILURES})" if results.failures else ""
    typer.echo(
        f"{shown(results.out / TABLE)}: {knees} knee{'s' if knees != 1 else ''} in "
        f"{results.films} film{'s' if results.films != 1 else ''}{failed}"
    )
