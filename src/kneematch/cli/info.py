"""`kneematch info`: show what is read from films, and where they are split."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kneematch.cli.terminal import FAILED, complain, shown, writing
from kneematch.errors import KneematchError

if TYPE_CHECKING:
    from PIL import Image
    from rich.table import Table

    from kneematch.detection.describe import Description

FIELDS = (
    "film",
    "kind",
    "size_px",
    "stored",
    "mm_per_px",
    "spacing_tag",
    "laterality",
    "view",
    "series",
    "polarity_tag",
    "axis_x_px",
    "left_half_x_px",
    "right_half_x_px",
    "film_px_per_half_px",
)
NOTHING = "-"  # the file does not say
MOST_COLUMNS = 6  # of a contact sheet


def info(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILES", help="DICOM, PNG, JPEG or TIFF files.")
    ],
    preview: Annotated[
        Path | None,
        typer.Option(
            metavar="PNG", help="Draw the films with the lines along which they are split."
        ),
    ] = None,
) -> None:
    """Show what is read from films, and where they are split."""
    from kneematch.detection.describe import describe

    pictures: list[Image.Image] = []
    shown_films = 0
    for path in files:
        try:
            found = describe(path)
        except KneematchError as error:
            complain(str(error))
            continue
        _print(dict(zip(FIELDS, _values(path, found), strict=True)), first=shown_films == 0)
        shown_films += 1
        if preview is not None:
            pictures.append(_picture(path, found))
    if preview is not None and pictures:
        _save(pictures, preview)
    if shown_films < len(files):
        raise typer.Exit(FAILED)


def _values(path: Path, found: "Description") -> tuple[str, ...]:
    film = found.film
    values = (
        shown(path),
        found.kind,
        f"{film.size[0]}x{film.size[1]}",
        found.stored,
        film.mm_per_px and f"{film.mm_per_px:.6g}",
        film.spacing_tag,
        film.laterality,
        film.view,
        film.series,
        film.polarity_tag,
        f"{found.axis_px:.1f}",
        *(f"{x0}-{x1}" for x0, x1 in found.halves),
        f"{found.film_px_per_half_px:.3f}",
    )
    return tuple(value or NOTHING for value in values)


def _print(values: dict[str, str], *, first: bool) -> None:
    from rich.console import Console

    console = Console()
    if console.is_terminal:
        console.print(_table(values))
    else:  # one line per film, for grep and cut
        if first:
            typer.echo("\t".join(values))
        typer.echo("\t".join(values.values()))


def _table(values: dict[str, str]) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in values.items():
        # As Text, since a header may hold what rich would read as markup.
        table.add_row(name, Text(value, style="bold" if name == "film" else ""))
    table.add_row()
    return table


def _picture(path: Path, found: "Description") -> "Image.Image":
    from kneematch.export.contact_sheet import draw_split

    return draw_split(found.film, title=shown(path.name))


def _save(pictures: "list[Image.Image]", path: Path) -> None:
    from kneematch.export.contact_sheet import contact_sheet
    from kneematch.io.atomic import write_aside

    columns = min(math.ceil(math.sqrt(len(pictures))), MOST_COLUMNS)
    with writing(path), write_aside(path) as aside:
        contact_sheet(pictures, columns).save(aside, format="PNG")
