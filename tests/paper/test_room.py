"""The room of the paper stands by itself: it imports nothing of ours but the sampling of images."""

import ast
import sys
from pathlib import Path

import kneematch.paper

ROOM = Path(kneematch.paper.__path__[0])
ALLOWED = {"torch", "numpy", "skimage", *sys.stdlib_module_names}
OURS = ("kneematch.paper", "kneematch.sampling")


def strangers(text: str) -> set[str]:
    """The modules that a module imports, wherever in it, and should not."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add("." * node.level + (node.module or ""))
    return {
        name for name in found if name.split(".")[0] not in ALLOWED and not name.startswith(OURS)
    }


def test_room_imports_nothing_of_ours_but_sampling() -> None:
    for path in ROOM.glob("*.py"):
        assert strangers(path.read_text(encoding="utf-8")) == set(), path
    text = "def f():\n    from kneematch.films import read\n    import scipy, torch.nn\n"
    assert strangers(text) == {"kneematch.films", "scipy"}


def test_room_is_one_flat_folder_of_at_most_1080_lines() -> None:
    files = list(ROOM.rglob("*.py"))
    assert {path.parent for path in files} == {ROOM}
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files) <= 1080
