"""Pictures of films with the lines along which they are split, and contact sheets of pictures."""

import io
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

from kneematch.films.pictures import LEFT_COLOUR, RIGHT_COLOUR, to_grey8
from kneematch.films.radiograph import Radiograph
from kneematch.knee.knee_images import film_tensor
from kneematch.knee.overlay import draw_detections
from kneematch.paper.split import split_lines
from kneematch.run.film_record import FilmRecord

LONGEST_PX: Final = 1024  # longest side of a drawn film
CELL_PX: Final = 480  # longest side of a picture in a contact sheet
GAP_PX: Final = 8

AXIS_COLOUR: Final = (255, 255, 255)
PAPER: Final = (24, 24, 24)
INK: Final = (225, 225, 225)


def draw_split(film: Radiograph, *, title: str = "") -> Image.Image:
    """Draw the film with frames around its left and right half and the symmetry axis dashed.

    The halves overlap. Their black padding, which reaches past the film, is not drawn. The title
    stands below the film.
    """
    height, width = film.size
    scale = min(1.0, LONGEST_PX / max(height, width))
    size = max(1, round(scale * width)), max(1, round(scale * height))
    picture = Image.fromarray(to_grey8(film.pixels)).resize(size, Image.Resampling.BOX)
    picture = picture.convert("RGB")
    draw = ImageDraw.Draw(picture)
    line = max(1, max(size) // 300)
    axis, spans = split_lines(film_tensor(film))
    insets = 0, 2 * line  # so that both frames are visible where the halves overlap
    for inset, (x0, x1), colour in zip(insets, spans, (LEFT_COLOUR, RIGHT_COLOUR), strict=True):
        box = (scale * x0, inset, scale * x1 - 1, size[1] - 1 - inset)
        draw.rectangle(box, outline=colour, width=line)
    dash = 6 * line
    for y in range(0, size[1], 2 * dash):
        draw.line((scale * axis, y, scale * axis, y + dash), fill=AXIS_COLOUR, width=line)
    return _with_title(picture, title) if title else picture


def draw_thumbnail(film: FilmRecord, picture: bytes) -> Image.Image:
    """Draw the knees of a film on its thumbnail, as WebP."""
    with Image.open(io.BytesIO(picture), formats=["WEBP"]) as image:
        pixels = np.asarray(image.convert("L"), np.float32) / np.float32(255)
    factor = pixels.shape[1] / (film.size or (1, 1))[1]
    shrink = np.diag([factor, factor, 1.0])
    knees = [
        replace(
            knee,
            to_film=shrink @ knee.to_film,
            landmarks={name: (factor * x, factor * y) for name, (x, y) in knee.landmarks.items()},
            measures=None,
        )
        for knee in film.kept
    ]
    return draw_detections(Radiograph(pixels), knees, longest_px=CELL_PX, thumbnail=True)


def contact_sheet(pictures: Sequence[Image.Image], columns: int) -> Image.Image:
    """Return one or more pictures in rows of equal cells; a single picture keeps its size."""
    if len(pictures) == 1:
        return pictures[0].copy()
    cells = [
        ImageOps.contain(picture.convert("RGB"), (CELL_PX, CELL_PX), Image.Resampling.LANCZOS)
        for picture in pictures
    ]
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


def _with_title(picture: Image.Image, title: str) -> Image.Image:
    """Add a strip with the title below the picture; a title that is too long is cut."""
    size = max(10, math.ceil(max(picture.size) / 36))
    strip = math.ceil(size * 1.6)
    whole = ImageOps.expand(picture, (0, 0, 0, strip), PAPER)
    place = size * 0.4, picture.height + strip / 2
    ImageDraw.Draw(whole).text(
        place, title, fill=INK, font=ImageFont.load_default(size), anchor="lm"
    )
    return whole
