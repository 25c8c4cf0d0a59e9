"""Where the pages' own files are, and which files may be written."""

from importlib.resources import files
from pathlib import Path
from typing import Final

from kneematch.errors import SettingsError

STATIC: Final = Path(str(files("kneematch.web"))) / "static"


def within(folder: Path, name: str) -> Path:
    """A path in a folder, even where links lead elsewhere.

    Raises:
        SettingsError: it lies outside.
    """
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise SettingsError(
            f"{path}: a link that leads out of {folder}; expected a file in it; remove the link"
        )
    return path
