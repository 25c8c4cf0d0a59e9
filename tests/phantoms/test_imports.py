"""kneephantoms stands by itself."""

import ast
import subprocess
import sys
from pathlib import Path

import kneephantoms

SOURCE = Path(kneephantoms.__file__).parent


def test_kneephantoms_imports_nothing_of_kneematch() -> None:
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.split(".")[0] == "kneematch" for name in names), path.name


def test_kneephantoms_has_its_public_names_and_imports_nothing_heavy_for_them() -> None:
    code = "import sys, kneephantoms, kneephantoms.config; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
    for name in kneephantoms.__all__:
        assert getattr(kneephantoms, name).__doc__
