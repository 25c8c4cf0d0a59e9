"""Stand-ins for the programs that pages call: python tests/programs_of_pages.py PROGRAM ARGUMENTS.

`kneematch` is the real one, with fewer and smaller films and shorter trainings, and without what
needs the internet or a cluster; pages in the browser are opened, read and ended. Containers run the
real program, too. Programs that set up environments or run for hours only check their arguments.
"""

import os
import re
import subprocess
import sys
import urllib.request
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parent.parent
REAL = [sys.executable, "-m", "kneematch"]
NOT_HERE = {"--start": "imagenet", "--ray-address": "auto"}  # a download; a running cluster
MOST_FILMS = 4
SMALLER = {
    "synth": {"--size": "600x500"},
    "train": {"--epochs": "1"},
}
REPRODUCTION = "lab/paper.py"
VALUES = {"docker": {"-v", "-w", "--tmpfs", "--network", "--user"}, "apptainer": {"--bind"}}


def kneematch(arguments: list[str]) -> int:
    """Run kneematch; end a page when it has answered, and save a template for `annotate`."""
    name, *given = arguments
    leave_out(given)
    if name == "synth" and "-n" in given:
        count = given.index("-n") + 1
        given[count] = str(min(int(given[count]), MOST_FILMS))
    add(given, SMALLER.get(name, {}))
    if name == "train" and "--masks" in given:
        return tune(given)
    if name not in ("annotate", "review"):
        return subprocess.run([*REAL, name, *given], check=False).returncode
    visit([*REAL, name, *given, *(() if "--no-browser" in given else ("--no-browser",))])
    if name == "annotate":
        save_template(Path(given[0]), Path(given[given.index("-o") + 1]))
    return 0


def leave_out(given: list[str]) -> None:
    """Remove what cannot run here."""
    for option, value in NOT_HERE.items():
        if option in given and given[given.index(option) + 1] == value:
            del given[given.index(option) : given.index(option) + 2]


def add(given: list[str], options: dict[str, str]) -> None:
    """Add options that are not given."""
    for option, value in options.items():
        if option not in given:
            given += [option, value]


def reproduce(given: list[str]) -> int:
    """Run the reproduction on few films, and briefly."""
    leave_out(given)
    add(given, {"--films": "2", "--test-films": "2"})
    shorter = ["--", "--epochs", "1", "--rounds", "1"]
    return subprocess.run(
        [sys.executable, str(ROOT / REPRODUCTION), *given, *shorter], check=False
    ).returncode


def tune(given: list[str]) -> int:
    """Run `kneematch train --masks` for two steps."""
    from kneematch.cli.main import main as run
    from kneematch.training import outline_training

    few = partial(outline_training.OutlineConfig, steps=2, batch=2, phantoms=2)
    outline_training.OutlineConfig = few  # type: ignore[assignment, misc]
    return run(["train", *given])


def visit(command: list[str]) -> None:
    """Start a page, read it at the address that is printed, and end it."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as run:
        assert run.stdout is not None
        printed = ""
        for line in run.stdout:
            printed += line
            if address := re.search(r"http://127\.0\.0\.1:\d+\S*", line):
                with urllib.request.urlopen(address[0]) as answer:
                    assert b"<html" in answer.read().lower()
                run.terminate()
                return
    sys.exit(f"{command}: no address: {printed}")


def save_template(film: Path, out: Path) -> None:
    """Save what a user of the page would who accepts the boxes that are drawn already."""
    from kneematch.films.annotation import save_annotation
    from kneematch.films.read import read
    from kneematch.web.annotation_session import SplitFilm, initial_annotation

    save_annotation(initial_annotation(SplitFilm.from_film(film, read(film)), out)[0], out)


def container(program: str, arguments: list[str]) -> int:
    """Run what would run in a container; building one checks that its recipe is there."""
    action, *rest = arguments
    if action == "build":
        assert (ROOT / ("Dockerfile" if program == "docker" else rest[-1])).exists()
        return 0
    if action == "compose":
        return kneematch(["review", os.environ["FOUND"], "--no-browser", "--port", "8765"])
    while rest[0].startswith("-"):  # options before the image
        del rest[: 2 if rest[0] in VALUES[program] else 1]
    return kneematch(rest[1:])


def main() -> int:
    program, *arguments = sys.argv[1:]
    if program == "kneematch":
        return kneematch(arguments)
    if program in ("docker", "apptainer"):
        return container(program, arguments)
    if program == "srun":
        return subprocess.run(arguments, check=False).returncode
    if program == "torchrun":
        return kneematch(arguments[arguments.index("kneematch") + 1 :])
    if program == "python" and arguments[0].endswith(REPRODUCTION):
        return reproduce(arguments[1:])
    if program == "python" and arguments[0].startswith("lab/"):
        return int(not (ROOT / arguments[0]).exists())
    if program == "python":
        return subprocess.run([sys.executable, *arguments], check=False).returncode
    assert program in ("pip", "make", "pytest"), program
    return 0


if __name__ == "__main__":
    sys.exit(main())
