"""Make the pictures of the README, from phantoms only: python docs/make_images.py."""

from pathlib import Path

from kneematch.outputs.preview import contact_sheet, draw_split
from kneematch.radiograph.phantom import phantom

IMAGES = Path(__file__).parent / "images"
SEEDS = (0, 2, 6)


def main() -> None:
    """Three films, and where each is split."""
    IMAGES.mkdir(exist_ok=True)
    films = [draw_split(phantom(seed).radiograph) for seed in SEEDS]
    contact_sheet(films, len(films)).save(IMAGES / "split.png", optimize=True)


if __name__ == "__main__":
    main()
