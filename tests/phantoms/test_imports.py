"""kneephantoms stands by itself."""

import ast
from pathlib import Path

import kneephantoms

SOURCE = Path(kneephantoms.__file__).parent


def test_kneephantoms_imports_nothing_of_kneematch() -> None:
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.split(".")[0] == "kneematch" for name in names), path.name
