"""How much a run that another process works on has saved."""

from pathlib import Path

EMPTY_BYTES = 8192  # of a database without thumbnails


def saved_bytes(out: Path) -> int:
    """The size of the thumbnails, which grows with every batch that a run has saved."""
    path = out / "thumbnails.sqlite"
    return path.stat().st_size if path.exists() else 0
