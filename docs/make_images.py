"""Draw the pictures of the README from phantoms: python docs/make_images.py."""

import tempfile
from pathlib import Path

from PIL import Image

from kneematch.detection.detector import Detector
from kneematch.detection.overlay import draw_detections
from kneematch.export.contact_sheet import CELL_PX, contact_sheet, draw_split
from kneematch.io.write import write_png16
from kneematch.synthetic.annotation import annotate
from kneematch.synthetic.phantom import phantom

IMAGES = Path(__file__).parent / "images"
SPLIT_SEEDS = (0, 2, 6)
TEMPLATE_SEED = 0
DETECTED_SEEDS = (2, 7, 21)


def main() -> None:
    """Draw where three films are split, and the knees detected on three others."""
    IMAGES.mkdir(exist_ok=True)
    _save([draw_split(phantom(seed).radiograph) for seed in SPLIT_SEEDS], "split.png")
    films = [phantom(seed).radiograph for seed in DETECTED_SEEDS]
    found = _detector().detect(films)
    pictures = [
        draw_detections(film, knees, longest_px=CELL_PX)
        for film, knees in zip(films, found, strict=True)
    ]
    _save(pictures, "detections.png")


def _detector() -> Detector:
    """Return a detector with a template from the right knee of a phantom."""
    made = phantom(TEMPLATE_SEED)
    knee = made.knees[1]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "phantom.png"
        write_png16(path, made.radiograph.pixels)
        drawn = annotate(path, knee.side, knee.plateau_left, knee.plateau_right)
        return Detector.from_template(drawn)


def _save(pictures: list[Image.Image], name: str) -> None:
    contact_sheet(pictures, len(pictures)).save(IMAGES / name, optimize=True)


if __name__ == "__main__":
    main()
