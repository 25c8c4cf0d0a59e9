"""Draw pictures of the README and the site from phantoms.

PYTHONPATH=lab/networks python docs/make_images.py
"""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

from kneematch.films.radiograph import Radiograph
from kneematch.knee.detector import Detector
from kneematch.knee.measure import COMPARTMENTS, FIXED, Array, landmarks
from kneematch.knee.measuring import measure_knees
from kneematch.knee.overlay import draw_detections
from kneephantoms import phantom
from kneephantoms.film_plan import plan_film
from phantom_outlines import true_outlines

ORANGE, BLUE, YELLOW, WHITE, BLACK = "#ff9a3c", "#4aa8ff", "#ffe14d", "#ffffff", "#000000"
IMAGES = Path(__file__).parent / "images"
DETECTED_SEEDS = (2, 156, 21)
CELL_PX, GAP_PX = 560, 8  # longest side of a film among others, and the gap between them
MEASURED_SEED = 23
MEASURED_PX = 1000  # side of the picture of measures


def main() -> None:
    """Draw three films with what was found, measured on the first; and the measures of another."""
    IMAGES.mkdir(exist_ok=True)
    films = [film_of(seed) for seed in DETECTED_SEEDS]
    found = Detector.load().detect(films)
    found[0] = measure_knees(films[0], found[0])
    pictures = [
        draw_detections(film, knees, longest_px=CELL_PX)
        for film, knees in zip(films, found, strict=True)
    ]
    cells = [ImageOps.contain(picture, (CELL_PX, CELL_PX)) for picture in pictures]
    sheet = Image.new("RGB", (3 * (CELL_PX + GAP_PX), max(cell.height for cell in cells)))
    for column, cell in enumerate(cells):
        sheet.paste(cell, (column * (CELL_PX + GAP_PX), 0))
    sheet.save(IMAGES / "detections.png", optimize=True)
    draw_measures().resize((760, 760)).save(IMAGES / "measures.png", optimize=True)


def film_of(seed: int) -> Radiograph:
    """Return a phantom as kneematch reads it."""
    made = phantom(seed)
    return Radiograph(made.pixels, made.mm_per_px)


def draw_measures() -> Image.Image:
    """Draw the outlines of a phantom's knee and where it is measured."""
    plan = plan_film(MEASURED_SEED)
    film, outlines = film_of(MEASURED_SEED), true_outlines(plan)[1]
    middle, reach = outlines.tibia[[0, -1]].mean(0), 0.62 * outlines.width_px
    scale = MEASURED_PX / (2 * reach)
    corner = middle - reach
    box = (*corner.tolist(), *(middle + reach).tolist())
    grey = Image.fromarray((255 * film.pixels).astype(np.uint8))
    picture = grey.resize((MEASURED_PX,) * 2, Image.Resampling.BICUBIC, box=box).convert("RGB")
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(22)

    def place(points: Array) -> list[tuple[float, float]]:
        return [(float(x), float(y)) for x, y in scale * (points - corner)]

    for line, colour in ((outlines.femur, ORANGE), (outlines.tibia, BLUE)):
        draw.line(place(line), fill=colour, width=4)
    for sides, colour in ((outlines.femur_sides, ORANGE), (outlines.tibia_sides, BLUE)):
        for side in sides:
            draw.line(place(side), fill=colour, width=2)
    plateau = place(outlines.tibia[[0, -1]])
    draw.line(plateau, fill=WHITE, width=1)
    for x in FIXED:
        ends = outlines.to_film(np.array([[x, y] for y in (-0.11, 0.06)]))
        usual = x in (0.225, 0.25)
        draw.line(place(ends), fill=YELLOW if usual else WHITE, width=3 if usual else 1)
    for (x0, x1), name in zip(COMPARTMENTS.values(), COMPARTMENTS, strict=True):
        ends = place(outlines.to_film(np.array([[x0, 0.09], [x1, 0.09]])))
        draw.line(ends, fill=YELLOW, width=3)
        (ax, ay), (bx, by) = ends
        text = f"{name}, x = {x0} to {x1}"
        at = (ax + bx) / 2, (ay + by) / 2 + 18
        draw.text(at, text, YELLOW, font, anchor="mt", stroke_width=2, stroke_fill=BLACK)
    for (x, y), text in zip(plateau, ("x = 0", "x = 1"), strict=True):
        draw.text((x, y - 12), text, WHITE, font, "mb", stroke_width=2, stroke_fill=BLACK)
    for x, y in place(np.array(list(landmarks(outlines).values()))):
        draw.ellipse((x - 5, y - 5, x + 5, y + 5), outline=WHITE, width=2)
    return picture


if __name__ == "__main__":
    main()
