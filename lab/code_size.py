"""Measure the size of a source tree, how much of it one film runs, and how often it decodes.

    python lab/code_size.py src/kneematch
    python lab/code_size.py OLD/src/kneematch --python OLD/.venv/bin/python

The first table has, for all .py files of the tree: lines, files, the longest file, and functions of
more than 30 lines.

The second table traces `kneematch detect FILM -o OUT` on one phantom (PNG): the files and functions
of the tree that run, in the main process and in all processes together. A file counts if one of its
functions runs; that it is imported is not enough. Functions that run while modules are imported are
counted; comprehensions, class bodies and the methods that dataclasses generate are not.

The third table counts, in all processes, how often one DICOM film is decoded (calls of the function
`unit_range`, through which the pixels of every file go) by `detect` with crops, overlays, measures
and DICOM objects, by the same command again, and by `apply` after a decision about one knee and
again, when there is nothing to do but to write tables and report.

With --python, the trace runs in that interpreter, which must have the tree's requirements.
"""

import argparse
import ast
import csv
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

LONG_FUNCTION = 30  # lines
DECODE = "unit_range"  # the function that turns any file's values into a film's pixels
OUTPUTS = ("--crops", "--overlays", "--measure", "--export", "dicom")
DECISION_COLUMNS = (  # of review.csv
    *("time", "film", "side", "decision", "centre_x_px", "centre_y_px", "width_px", "rotation_deg"),
    *("loss", "laterality", "landmarks", "height_px", "outlines"),
)

# Imported by every Python process that finds it on its path. Each function is written down when it
# first runs, since worker processes may be killed before they end.
TRACER = """
import os, sys, threading
_source, _out, _seen = os.environ["TRACE_SOURCE"], os.environ["TRACE_OUT"], set()
os.environ.setdefault("TRACE_MAIN", str(os.getpid()))

def _profile(frame, event, argument):
    code = frame.f_code
    if event != "call" or (code in _seen and code.co_name != os.environ["TRACE_EACH"]):
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
    parser.add_argument("--python", default=sys.executable, help="interpreter of the trace")
    parser.add_argument("--no-trace", action="store_true", help="only the first table")
    options = parser.parse_args()
    source = options.source.resolve()
    texts = {
        module_name(path, source): path.read_text(encoding="utf-8")
        for path in sorted(source.rglob("*.py"))
    }
    print_table(("measure", str(options.source)), size_rows(texts))
    if not options.no_trace:
        traced, decodes = trace(source, options.python)
        print_table(("trace of one PNG", "files", "functions"), trace_rows(traced))
        print_table(("command", "films decoded"), decodes)


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


def trace(source: Path, python: str) -> tuple[dict[str, set[Function]], list[tuple[str, str]]]:
    """Return the functions that `kneematch detect` runs, by process, and how often films decode."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        (work / "sitecustomize.py").write_text(TRACER)
        plain = dict(os.environ, PYTHONPATH=str(source.parent))
        traced = dict(plain, TRACE_SOURCE=str(source), TRACE_EACH=DECODE)
        traced["PYTHONPATH"] = f"{work}{os.pathsep}{source.parent}"

        def calls(*arguments: str) -> list[tuple[str, Function]]:
            (work / "trace").write_text("")
            run(python, arguments, dict(traced, TRACE_OUT=str(work / "trace")))
            lines = [line.split("\t") for line in (work / "trace").read_text().splitlines()]
            return [(process, (file, int(at), name)) for process, file, at, name in lines]

        for kind, suffix in (("png", "png"), ("dicom", "dcm")):
            made = ("synth", "-n", "1", "--format", kind, "-o", str(work / suffix))
            run(python, made, plain)
        found: dict[str, set[Function]] = {"main": set(), "other": set()}
        png = work / "png" / "phantom-00000.png"
        for process, function in calls("detect", str(png), "-o", str(work / "out")):
            found[process].add(function)
        decodes: list[tuple[str, str]] = []
        out, review = str(work / "outputs"), work / "review.csv"
        detect = ("detect", str(work / "dcm" / "phantom-00000.dcm"), "-o", out, *OUTPUTS)
        decide = ("apply", out, "--decisions", str(review))
        for command in (detect, detect, decide, ("apply", out)):
            count = sum(name == DECODE for _, (_, _, name) in calls(*command))
            words = [word for word in command if not word.startswith(folder) and word != "-o"]
            again = ", again" if words in [row[0].split() for row in decodes] else ""
            decodes.append((" ".join(words) + again, str(count)))
            if not review.exists():
                reject_first_knee(work / "outputs", review)
        return found, decodes


def reject_first_knee(out: Path, review: Path) -> None:
    """Write a table of decisions that rejects the first knee of a run."""
    with (out / "detections.csv").open(newline="", encoding="utf-8") as file:
        row = next(csv.DictReader(file))
    kept = ("film", "side", "centre_x_px", "centre_y_px", "width_px", "rotation_deg", "loss")
    cells = {"time": "2026-01-01", **{name: row[name] for name in kept}, "decision": "rejected"}
    with review.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, DECISION_COLUMNS)
        table.writeheader()
        table.writerow(cells)


def run(python: str, arguments: tuple[str, ...], environment: dict[str, str]) -> None:
    command = [python, "-m", "kneematch", *arguments]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)


def trace_rows(traced: dict[str, set[Function]]) -> list[tuple[str, str, str]]:
    every = traced["main"] | traced["other"]
    return [
        (name, str(len({file for file, _, _ in functions})), str(len(functions)))
        for name, functions in (("main process", traced["main"]), ("all processes", every))
    ]


if __name__ == "__main__":
    main()
