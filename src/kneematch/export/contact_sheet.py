"""Pictures for the eye: a film with the lines along which it is split, and sheets of them."""

import math
from collections.abc import Sequence
from typing import Final

from PIL import Image, ImageDraw, ImageFont

from kneematch.detection.describe import split_lines
from kneematch.io.display import LEFT_COLOUR, RIGHT_COLOUR, to_grey8
from kneematch.io.radiograph import Radiograph

LONGEST_PX: Final = 1024  # side of a drawn film
CELL_PX: Final = 480  # side of a film in a contact sheet
GAP_PX: Final = 8

AXIS_COLOUR: Final = (255, 255, 255)
PAPER: Final = (24, 24, 24)
INK: Final = (225, 225, 225)


def draw_split(film: Radiograph, *, title: str = "") -> Image.Image:
    """The film, the columns of its left and right half as frames, and the symmetry axis.

    The halves overlap. Their black padding, which reaches past the film, is not drawn.
    """
    height, width = film.size
    scale = min(1.0, LONGEST_PX / max(height, width))
    size = max(1, round(scale * width)), max(1, round(scale * height))
    picture = Image.fromarray(to_grey8(film.pixels)).resize(size, Image.Resampling.BOX)
    picture = picture.convert("RGB")
    draw = ImageDraw.Draw(picture)
    line = max(1, max(size) // 300)
    axis, spans = split_lines(film)
    for inset, (x0, x1), colour in zip(
        (0, 2 * line), spans, (LEFT_COLOUR, RIGHT_COLOUR), strict=True
    ):
        # The second frame lies within the first one's lines where they overlap.
        box = (scale * x0, inset, scale * x1 - 1, size[1] - 1 - inset)
        draw.rectangle(box, outline=colour, width=line)
    _dashed(draw, scale * axis, size[1], line)
    return _captioned(picture, title) if title else picture


def contact_sheet(images: Sequence[Image.Image], columns: int) -> Image.Image:
    """Pictures side by side, in rows; a single one stays as it is."""
    if not images or columns < 1:
        raise ValueError(f"{len(images)} pictures in {columns} columns; expected one at least")
    if len(images) == 1:
        return images[0].copy()
    cells = [_fitted(image) for image in images]
    columns = min(columns, len(cells))
    rows = [cells[start : start + columns] for start in range(0, len(cells), columns)]
    heights = [max(cell.height for cell in row) for row in rows]
    width = columns * (CELL_PX + GAP_PX) + GAP_PX
    sheet = Image.new("RGB", (width, sum(heights) + GAP_PX * (len(rows) + 1)), PAPER)
    y = GAP_PX
    for row, height in zip(rows, heights, strict=True):
        for column, cell in enumerate(row):
            x = GAP_PX + column * (CELL_PX + GAP_PX) + (CELL_PX - cell.width) // 2
            sheet.paste(cell, (x, y + (height - cell.height) // 2))
        y += height + GAP_PX
    return sheet


def _fitted(image: Image.Image) -> Image.Image:
    """The picture, made smaller or larger to fill a cell."""
    scale = CELL_PX / max(image.size)
    width, height = (max(1, round(scale * side)) for side in image.size)
    return image.convert("RGB").resize((width, height), Image.Resampling.LANCZOS)


def _dashed(draw: ImageDraw.ImageDraw, x: float, height: int, line: int) -> None:
    dash = 6 * line
    for y in range(0, height, 2 * dash):
        draw.line((x, y, x, y + dash), fill=AXIS_COLOUR, width=line)


def _captioned(picture: Image.Image, title: str) -> Image.Image:
    """The picture above its title, which is cut if it is wider."""
    size = max(10, math.ceil(max(picture.size) / 36))
    strip = math.ceil(size * 1.6)
    whole = Image.new("RGB", (picture.width, picture.height + strip), PAPER)
    whole.paste(picture)
    place = size * 0.4, picture.height + strip / 2
    font = ImageFont.load_default(size)
    ImageDraw.Draw(whole).text(place, title, fill=INK, font=font, anchor="lm")
    return whole
