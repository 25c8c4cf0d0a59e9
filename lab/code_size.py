"""Measure the size of the code and of one film's way through it; fail where a limit is exceeded.

    python lab/code_size.py

Lines and files are those of the .py files below a folder. Options are those of all commands of
`kneematch --help`, arguments without a name not counted. One film's way is what
`kneematch detect FILM -o OUT --crops --overlays` runs of src/kneematch, in all processes: its
functions, their files, and how often a call is made in another file than the call before it.
Comprehensions, class bodies and the methods that dataclasses generate are not counted.

LIMITS has the largest size of each that is accepted. A change that needs more removes something
else, or raises the limit in the same commit, with the reason.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from kneematch.cli.main import COMMANDS, app

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCE: Final = ROOT / "src" / "kneematch"
LIMITS: Final = {
    "lines of src/kneematch": 19_400,
    "files of src/kneematch": 112,
    "lines of src/kneephantoms": 2_800,
    "lines of lab and scripts": 5_850,
    "lines of tests": 16_500,
    "lines of docs": 2_500,
    "lines of README.md": 160,
    "commands": 11,
    "options of all commands": 87,
    "functions on one film's way": 440,
    "files on one film's way": 54,
    "changes of file on one film's way": 880,
}

# Python runs a module of this name when it starts. A call is written down at once, since worker
# processes may be killed before they end.
TRACER: Final = """
import os, sys, threading
_source = os.environ["TRACE_SOURCE"]
_out = os.open(os.environ["TRACE_OUT"], os.O_WRONLY | os.O_APPEND)

def _profile(frame, event, argument):
    code = frame.f_code
    path = code.co_filename
    if event != "call" or not path.startswith(_source) or not path.endswith(".py"):
        return
    if not code.co_flags & 1:  # CO_OPTIMIZED, which modules and class bodies lack
        return
    if code.co_name.startswith("<") and code.co_name != "<lambda>":
        return  # a comprehension
    fields = str(os.getpid()), code.co_filename, str(code.co_firstlineno)
    os.write(_out, ("\\t".join(fields) + "\\n").encode())

sys.setprofile(_profile)
threading.setprofile(_profile)
"""

Call = tuple[str, str, str]  # process, file and first line of the function


def main() -> int:
    sizes = {**count_lines(), **count_options(), **measure_way(trace_film())}
    print("| measure | size | limit |\n|---|---:|---:|")
    for name, size in sizes.items():
        print(f"| {name} | {size:,} | {LIMITS[name]:,} |")
    too_large = exceeded(sizes)
    if too_large:
        print(f"Too large: {', '.join(too_large)}.", file=sys.stderr)
    return 1 if too_large else 0


def exceeded(sizes: Mapping[str, int]) -> list[str]:
    """Return the names of sizes that are above their limits."""
    return [name for name, size in sizes.items() if size > LIMITS[name]]


def count_lines() -> dict[str, int]:
    """Return the sizes of the tree, by name."""
    sizes = {"files of src/kneematch": len(list(SOURCE.rglob("*.py")))}
    folders = ("src/kneematch",), ("src/kneephantoms",), ("lab", "scripts"), ("tests",)
    for each in folders:
        paths = [path for name in each for path in (ROOT / name).rglob("*.py")]
        sizes[f"lines of {' and '.join(each)}"] = lines_of(paths)
    sizes["lines of docs"] = lines_of((ROOT / "docs").rglob("*.md"))
    sizes["lines of README.md"] = lines_of([ROOT / "README.md"])
    return {name: sizes[name] for name in LIMITS if name in sizes}


def lines_of(paths: Iterable[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def count_options() -> dict[str, int]:
    """Return the numbers of commands and of their options."""
    names = [command.__name__.replace("_", "-") for command in COMMANDS]
    options = [
        argument.name
        for name in names
        for argument in app[name].assemble_argument_collection(parse_docstring=False)
        if argument.show and argument.name.startswith("-")
    ]
    return {"commands": len(names), "options of all commands": len(options)}


def trace_film() -> list[Call]:
    """Return the calls of `kneematch detect`, in the order in which they were made."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        (work / "sitecustomize.py").write_text(TRACER, encoding="utf-8")
        (work / "trace").touch()
        plain = dict(os.environ, PYTHONPATH=str(SOURCE.parent))
        traced = dict(plain, TRACE_SOURCE=f"{SOURCE}{os.sep}", TRACE_OUT=str(work / "trace"))
        traced["PYTHONPATH"] = f"{work}{os.pathsep}{SOURCE.parent}"
        run(("synth", "-n", "1", "-o", str(work / "films")), plain)
        film = work / "films" / "phantom-00000.dcm"
        run(("detect", str(film), "-o", str(work / "out"), "--crops", "--overlays"), traced)
        lines = (work / "trace").read_text(encoding="utf-8").splitlines()
    calls = [line.split("\t") for line in lines]
    return [(process, file, line) for process, file, line in calls]


def run(arguments: tuple[str, ...], environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "kneematch", *arguments]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)


def measure_way(calls: list[Call]) -> dict[str, int]:
    """Return how many functions and files calls are of, and how often the file changes."""
    changes, last = 0, dict[str, str]()
    for process, file, _ in calls:
        changes += last.get(process) != file
        last[process] = file
    return {
        "functions on one film's way": len({(file, line) for _, file, line in calls}),
        "files on one film's way": len({file for _, file, _ in calls}),
        "changes of file on one film's way": changes,
    }


if __name__ == "__main__":
    raise SystemExit(main())
