"""The direction of imports, and the source tree of docs/architecture.md."""

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "kneematch"
PAGE = ROOT / "docs" / "architecture.md"

# A room imports only rooms above it, or itself; those in one line may not import each other.
ORDER = (
    ("errors", "progress"),
    ("connections", "devices", "parallel", "settings"),
    ("sampling",),
    ("paper",),
    ("films",),
    ("search",),
    ("models",),
    ("knee",),
    ("run",),
    ("training",),
    ("evaluation", "serve", "web"),
    ("cli",),
    ("__main__",),
)
LEVELS = {name: level for level, names in enumerate(ORDER) for name in names}
PAPER = {"torch", "numpy", "skimage", "kneematch.paper", "kneematch.sampling"}
FILES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def imported(text: str) -> set[str]:
    """The modules that a module imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import"
            inside = node.module == "kneematch"
            found |= {
                f"kneematch.{each.name}" if inside else str(node.module) for each in node.names
            }
    return found - {"kneematch.__version__"}


def wrong_imports(text: str, room: str) -> set[str]:
    """The rooms that are imported against the order."""
    rooms = {name.split(".")[1] for name in imported(text) if name.startswith("kneematch.")}
    return {other for other in rooms - {room} if LEVELS[other] >= LEVELS[room]}


def test_every_module_belongs_to_a_room_and_imports_rooms_above_it() -> None:
    assert {room_of(path) for path in FILES} == set(LEVELS)
    for path in FILES:
        assert not wrong_imports(path.read_text(encoding="utf-8"), room_of(path)), path


def test_an_import_upwards_or_sideways_is_noticed() -> None:
    assert wrong_imports("def f():\n    import kneematch.cli.main", "films") == {"cli"}
    assert wrong_imports("from kneematch.evaluation import x", "web") == {"evaluation"}
    assert wrong_imports("from kneematch import __version__, run", "films") == {"run"}
    assert not wrong_imports("from kneematch.films import x\nimport kneematch.errors", "films")


def test_room_of_the_paper_is_small_and_stands_by_itself() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (SOURCE / "paper").rglob("*.py")]
    for name in set.union(*map(imported, texts)):
        parts = name.split(".")
        assert parts[0] in PAPER | sys.stdlib_module_names or ".".join(parts[:2]) in PAPER, name
    assert sum(len(text.splitlines()) for text in texts) <= 1080


def test_kneephantoms_imports_nothing_of_kneematch() -> None:
    for path in (ROOT / "src" / "kneephantoms").rglob("*.py"):
        names = imported(path.read_text(encoding="utf-8"))
        assert not any(name.split(".")[0] == "kneematch" for name in names), path


def test_nothing_below_the_command_line_prints_or_exits() -> None:
    for path in FILES:
        if LEVELS[room_of(path)] < LEVELS["cli"]:
            called = {
                ast.unparse(node.func)
                for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
                if isinstance(node, ast.Call)
            }
            assert not called & {"print", "sys.exit", "exit"}, path


def test_page_names_every_room_in_order() -> None:
    (tree,) = re.findall(r"^src/kneematch/\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)
    named = re.findall(r"^  (\w+)(?:/|\.py)", tree, re.M)
    assert set(named) == set(LEVELS) - {"__main__"}
    assert [LEVELS[name] for name in named] == sorted(LEVELS[name] for name in named)
