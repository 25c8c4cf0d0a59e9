"""The direction of imports, the source tree of docs/architecture.md, and the public names."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import kneematch

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "kneematch"
PAGE = ROOT / "docs" / "architecture.md"

LEVELS = {
    "errors": 0,
    "options": 1,
    "progress": 0,
    "memory": 0,
    "devices": 1,
    "parallel": 1,
    "io": 2,
    "geometry": 3,
    "matching": 4,
    "solvers": 5,
    "synthetic": 5,
    "networks": 6,
    "measures": 7,
    "detection": 8,
    "training": 9,
    "review": 9,
    "export": 10,
    "batch": 11,
    "evaluation": 12,
    "web": 12,
    "cli": 13,
    "__main__": 14,
}


def part(module: str) -> str:
    """kneematch.io.read -> io."""
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


def test_a_module_imports_its_own_folder_or_a_lower_number() -> None:
    wrong = [
        line
        for path in modules()
        for line in wrong_imports(path.read_text(encoding="utf-8"), name_of(path))
    ]
    assert wrong == []


def test_an_import_upwards_or_sideways_is_noticed() -> None:
    module = "kneematch.io.read"
    assert wrong_imports("from kneematch.geometry.pose import x", module)
    assert wrong_imports("def f():\n    import kneematch.cli.main", module)
    assert wrong_imports("from kneematch.evaluation import x", "kneematch.web.page")
    assert not wrong_imports("from kneematch.io import write", module)
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


def tree_lines() -> list[tuple[str, str]]:
    """Return the paths of the page's source tree, relative to the package, and their texts."""
    (tree,) = re.findall(r"^src/kneematch/\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)
    lines, folders = [], [""]
    for line in tree.splitlines():
        indent, name, text = re.fullmatch(r"((?:  )+)(\S+) *(.*)", line).groups()  # type: ignore[union-attr]
        folders = folders[: len(indent) // 2]
        lines.append((folders[-1] + name, text))
        if name.endswith("/"):
            folders.append(folders[-1] + name)
    return lines


def test_page_names_every_module() -> None:
    written = {path for path in SOURCE.rglob("*.py") if path.stat().st_size > 0}
    named = {SOURCE / name for name, _ in tree_lines() if name.endswith(".py")}
    assert named == written


def test_page_gives_the_levels_of_the_test() -> None:
    shown = {
        name.removesuffix("/").removesuffix(".py"): int(level[1])
        for name, text in tree_lines()
        if (level := re.search(r"\((\d+)\)$", text))
    }
    assert shown == LEVELS


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
