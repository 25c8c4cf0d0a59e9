"""Measure the size of a source tree, and how much of it one film runs.

    python lab/code_size.py src/kneematch

The first table has, for all .py files of the tree: lines, files, the longest file, and functions of
more than 30 lines.

The second table traces `kneematch detect FILM -o OUT` on one phantom (PNG): the files and functions
of the tree that run, in the main process and in all processes together. A file counts if one of its
functions runs; that it is imported is not enough. Functions that run while modules are imported are
counted; comprehensions, class bodies and the methods that dataclasses generate are not.
"""

import argparse
import ast
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

LONG_FUNCTION = 30  # lines

# Imported by every Python process that finds it on its path. Each function is written down when it
# first runs, since worker processes may be killed before they end.
TRACER = """
import os, sys, threading
_source, _out, _seen = os.environ["TRACE_SOURCE"], os.environ["TRACE_OUT"], set()
os.environ.setdefault("TRACE_MAIN", str(os.getpid()))

def _profile(frame, event, argument):
    code = frame.f_code
    if event != "call" or code in _seen:
        return
    _seen.add(code)
    path = code.co_filename
    if not path.startswith(_source) or not path.endswith(".py"):  # Jinja templates are code, too
        return
    if not code.co_flags & 1:  # CO_OPTIMIZED, which modules and class bodies lack
        return
    if code.co_name.startswith("<") and code.co_name != "<lambda>":
        return  # a comprehension
    process = "main" if os.getpid() == int(os.environ["TRACE_MAIN"]) else "other"
    fields = process, path, str(code.co_firstlineno), code.co_name
    file = os.open(_out, os.O_WRONLY | os.O_APPEND)
    os.write(file, ("\\t".join(fields) + "\\n").encode())
    os.close(file)

sys.setprofile(_profile)
threading.setprofile(_profile)
"""

Function = tuple[str, int, str]  # file, line and name


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("source", type=Path, help="folder of the package, such as src/kneematch")
    parser.add_argument("--no-trace", action="store_true", help="only the first table")
    options = parser.parse_args()
    source = options.source.resolve()
    texts = {
        module_name(path, source): path.read_text(encoding="utf-8")
        for path in sorted(source.rglob("*.py"))
    }
    print_table(("measure", str(options.source)), size_rows(texts))
    if not options.no_trace:
        print_table(("trace of one PNG", "files", "functions"), trace_rows(trace(source)))


def print_table(titles: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    for row in (titles, ("---", *["---:"] * (len(titles) - 1)), *rows):
        print("|" + "|".join(f" {cell} " for cell in row) + "|")
    print()


def module_name(path: Path, source: Path) -> str:
    """Return the dotted name of a module's file; a package's is that of its folder."""
    parts = [source.name, *path.relative_to(source).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def size_rows(texts: dict[str, str]) -> list[tuple[str, str]]:
    lines = {name: len(text.splitlines()) for name, text in texts.items()}
    longest = max(lines, key=lambda name: lines[name])
    long_functions = sum(size > LONG_FUNCTION for text in texts.values() for size in lengths(text))
    return [
        ("lines", f"{sum(lines.values()):,}"),
        ("files", str(len(texts))),
        ("longest file", f"{lines[longest]} ({longest})"),
        (f"functions of more than {LONG_FUNCTION} lines", str(long_functions)),
    ]


def lengths(text: str) -> Iterator[int]:
    """Yield the lines of every function, its docstring included."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (node.end_lineno or node.lineno) - node.lineno + 1


def trace(source: Path) -> dict[str, set[Function]]:
    """Return the functions that `kneematch detect` runs, by process."""
    found: dict[str, set[Function]] = {"main": set(), "other": set()}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        (work / "sitecustomize.py").write_text(TRACER)
        (work / "trace").write_text("")
        plain = dict(os.environ, PYTHONPATH=str(source.parent))
        traced = dict(plain, TRACE_SOURCE=str(source), TRACE_OUT=str(work / "trace"))
        traced["PYTHONPATH"] = f"{work}{os.pathsep}{source.parent}"
        run(("synth", "-n", "1", "--format", "png", "-o", str(work / "png")), plain)
        film = work / "png" / "phantom-00000.png"
        run(("detect", str(film), "-o", str(work / "out")), traced)
        for line in (work / "trace").read_text().splitlines():
            process, file, at, name = line.split("\t")
            found[process].add((file, int(at), name))
    return found


def run(arguments: tuple[str, ...], environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "kneematch", *arguments]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)


def trace_rows(traced: dict[str, set[Function]]) -> list[tuple[str, str, str]]:
    every = traced["main"] | traced["other"]
    return [
        (name, str(len({file for file, _, _ in functions})), str(len(functions)))
        for name, functions in (("main process", traced["main"]), ("all processes", every))
    ]


if __name__ == "__main__":
    main()
