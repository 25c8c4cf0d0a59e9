"""The direction of imports, the source tree of docs/architecture.md, and the public names."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import kneematch

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "kneematch"

# A package imports only packages above it in this list, or itself.
ORDER = (
    ("errors", "progress", "memory"),
    ("devices", "options", "parallel"),
    ("sampling",),
    ("paper",),
    ("films",),
    ("search",),
    ("models",),
    ("knee",),
    ("run",),
    ("training",),
    ("evaluation",),
    ("web",),
    ("cli",),
    ("__main__",),
)
LEVELS = {name: level for level, names in enumerate(ORDER) for name in names}


def part(module: str) -> str:
    """kneematch.films.read -> io."""
    return module.split(".")[1]


def modules() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def name_of(path: Path) -> str:
    return ".".join(["kneematch", *path.relative_to(SOURCE).with_suffix("").parts])


def imported(tree: ast.AST, module: str) -> Iterator[str]:
    """The kneematch modules that a module imports, wherever in it."""
    for node in ast.walk(tree):
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
        for other in imported(ast.parse(text), module)
        if part(other) != own and not LEVELS[part(other)] < LEVELS[own]
    ]


def test_every_module_has_a_level() -> None:
    assert len(modules()) > 20
    assert {part(name_of(path)) for path in modules()} <= set(LEVELS)


def test_nothing_below_the_command_line_prints_or_exits() -> None:
    for path in modules():
        if LEVELS[part(name_of(path))] < LEVELS["cli"]:
            called = {
                ast.unparse(node.func)
                for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
                if isinstance(node, ast.Call)
            }
            assert not called & {"print", "sys.exit", "exit", "typer.echo"}, path


def test_public_names_are_these() -> None:
    assert set(kneematch.__all__) == {
        "DetectConfig",
        "DetectResult",
        "Detection",
        "Detector",
        "EvaluateConfig",
        "KneematchError",
        "Radiograph",
        "TrainConfig",
        "__version__",
        "detect_folder",
        "evaluate",
        "read",
        "train",
    }
    assert all(hasattr(kneematch, name) for name in kneematch.__all__)
    assert not hasattr(kneematch, "anything_else")


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import sys, kneematch; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "numpy", "pydicom", "PIL", "typer"} & set(done.stdout.split())
