"""The direction of imports, the source tree of docs/architecture.md, and the public names."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import kneematch

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


def part(module: str) -> str:
    """kneematch.films.read -> films."""
    return module.split(".")[1]


def modules() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def name_of(path: Path) -> str:
    return ".".join(["kneematch", *path.relative_to(SOURCE).with_suffix("").parts])


def imported(text: str, module: str) -> Iterator[str]:
    """The kneematch modules that a module imports, wherever in it."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("kneematch."))
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: a relative import"
            if node.module == "kneematch":
                inside = [f"kneematch.{alias.name}" for alias in node.names]
                yield from (name for name in inside if part(name) != "__version__")
            elif (node.module or "").startswith("kneematch."):
                yield str(node.module)


def wrong_imports(text: str, module: str) -> list[str]:
    own = part(module)
    return [
        f"{module} imports {other}"
        for other in imported(text, module)
        if part(other) != own and not LEVELS[part(other)] < LEVELS[own]
    ]


def test_every_module_belongs_to_a_room() -> None:
    assert len(modules()) > 20
    assert {part(name_of(path)) for path in modules()} == set(LEVELS)


@pytest.mark.parametrize("room", sorted(set(LEVELS) - {"__main__"}))
def test_a_room_imports_itself_or_rooms_above_it(room: str) -> None:
    paths = [path for path in modules() if part(name_of(path)) == room]
    assert paths
    texts = ((path.read_text(encoding="utf-8"), name_of(path)) for path in paths)
    assert [line for text, name in texts for line in wrong_imports(text, name)] == []


def test_an_import_upwards_or_sideways_is_noticed() -> None:
    module = "kneematch.films.read"
    assert wrong_imports("from kneematch.knee.detector import x", module)
    assert wrong_imports("def f():\n    import kneematch.cli.main", module)
    assert wrong_imports("from kneematch.evaluation import x", "kneematch.web.page")
    assert not wrong_imports("from kneematch.films import write", module)
    assert not wrong_imports("from kneematch.errors import FilmError", module)


def test_nothing_below_the_command_line_prints_or_exits() -> None:
    for path in modules():
        if LEVELS[part(name_of(path))] < LEVELS["cli"]:
            called = {
                ast.unparse(node.func)
                for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
                if isinstance(node, ast.Call)
            }
            assert not called & {"print", "sys.exit", "exit", "typer.echo"}, path


def test_page_names_every_room_in_order() -> None:
    (tree,) = re.findall(r"^src/kneematch/\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)
    named = re.findall(r"^  (\w+)(?:/|\.py)", tree, re.M)
    assert set(named) == set(LEVELS) - {"__main__"}
    assert [LEVELS[name] for name in named] == sorted(LEVELS[name] for name in named)


def test_public_names_are_these() -> None:
    assert set(kneematch.__all__) == {
        *("DetectConfig", "DetectResult", "Detection", "Detector", "EvaluateConfig"),
        *("KneematchError", "Radiograph", "SynthConfig", "TrainConfig", "__version__"),
        *("apply", "compare", "detect_folder", "evaluate", "read", "synth", "train"),
    }
    assert all(hasattr(kneematch, name) for name in kneematch.__all__)
    assert not hasattr(kneematch, "anything_else")
