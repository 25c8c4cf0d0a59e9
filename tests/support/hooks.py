"""Code that every Python process of a test runs at its start."""

import os
from pathlib import Path


def with_hook(folder: Path, code: str) -> str:
    """Write such code into a folder; return the PYTHONPATH with which processes run it."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(code)
    return os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
