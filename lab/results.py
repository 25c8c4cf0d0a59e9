"""Print the figures of README and docs: run the commands that make them, one after the other.

    python lab/results.py [PART ...] [--real FOLDER] [--old FOLDER] [--list]

`make results REAL=FOLDER OLD=FOLDER` does it, and `make results PARTS=large` on a machine with a
GPU and 16 cores. The folder of --real has real films (films.py describes it), that of --old a
checkout of an earlier version; a command that needs one that is not given is left out, with a
line. --list prints the commands only. Each command is printed above its tables; docs/results.md
says which part makes which.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
REAL, OLD, WORK = "REAL", "OLD", "WORK"  # stand for folders in the commands
EVALUATE = "kneematch evaluate REAL/films --truth REAL/labels.csv --quiet"
LARGE = "lab/job.py --size 2494x2048"
JOBS = "detect pictures measure all"
BOTH = "--source OLD/src --source src"
SYNTAXES = "--syntax plain jpeg2000 lossless"
PARTS = {
    "accuracy": ["lab/accuracy.py --films 0 --real REAL", "lab/accuracy.py --films 40"],
    "methods": [
        f"{EVALUATE} -o WORK/built-in",
        "kneematch train REAL/films --template REAL/template.json --quiet -o WORK/own.safetensors",
        f"{EVALUATE} --model WORK/own.safetensors -o WORK/trained",
        f"{EVALUATE} --template REAL/template.json --methods auto,search,sliding -o WORK/drawn",
    ],
    "measures": [
        "lab/measure.py phantoms --films 40",
        "lab/measure.py shafts --films 80",
        *(f"lab/measure.py {what} --real REAL" for what in ("shafts", "missing", "repeat")),
        *(f"lab/measure.py {what} --real REAL" for what in ("masks", "crops")),
    ],
    "landmarks": ["lab/landmarks.py REAL/heads", "lab/landmarks.py REAL/heads --train"],
    "rows": [
        "kneematch synth -n 60 -o WORK/phantoms",
        *(
            command.format(films=films, name=name)
            for films, name in (("REAL/films", "f"), ("REAL/kinds", "k"), ("WORK/phantoms", "p"))
            for command in (
                "PYTHONPATH=OLD/src kneematch detect {films} --quiet -o WORK/old-{name}",
                "kneematch detect {films} --quiet -o WORK/new-{name}",
                "lab/rows.py WORK/old-{name} WORK/new-{name}",
            )
        ),
    ],
    "time": [
        f"lab/job.py --cores 2 --turns 3 --jobs {JOBS} {BOTH}",
        f"{LARGE} --cores 2 --distinct 20 --jobs {JOBS} {BOTH}",
        f"{LARGE} --cores 2 --turns 3 --distinct 20 --jobs detect {SYNTAXES}",
        f"{LARGE} --parts --distinct 24 --syntax plain jpeg2000",
    ],
    "sizes": [
        "lab/code_size.py",
        "ls -l src/kneematch/models",
    ],
    "reliability": [
        "lab/faults.py detect resume apply others --every 40",
        "lab/soak.py --films 1000 --distinct 20",
        "lab/soak.py --films 200 --distinct 20 --senders 1 --most-waiting 1",
        "lab/soak.py --films 100 --distinct 20 --senders 1 --most-waiting 1 --workers 1",
        "lab/soak.py --films 300 --distinct 40 --kills 8",
        "lab/fuzz.py --inputs 100000 --seed 3034",
    ],
    "large": [
        f"{LARGE} --cores 16 --films 1024 --jobs {JOBS} {BOTH}",
        f"{LARGE} --cores 1 2 4 8 16 --films 512 --jobs detect",
        f"{LARGE} --cores 16 --films 512 --distinct 16 --jobs detect {SYNTAXES}",
        *(
            f"{LARGE} --cores 16 --films {films} --jobs detect --device cuda {BOTH}"
            for films in (1024, 4096)
        ),
    ],
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    small = [part for part in PARTS if part != "large"]
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--real", type=Path, help="folder of real films")
    parser.add_argument("--old", type=Path, help="checkout of an earlier version")
    parser.add_argument("--list", action="store_true", help="print the commands only")
    args = parser.parse_args()
    unknown = sorted({*args.parts} - {*PARTS})
    if unknown:
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    failed = 0
    with tempfile.TemporaryDirectory() as work:
        given = {REAL: args.real, OLD: args.old, WORK: Path(work)}
        folders = {name: path.resolve() for name, path in given.items() if path}
        for part in args.parts or small:
            print(f"\n## {part}\n", flush=True)
            for command in PARTS[part]:
                failed += show(command, folders, args.list)
    return 1 if failed else 0


def show(command: str, folders: dict[str, Path], only_list: bool) -> int:
    """Print a command, run it if all its folders are given; return 1 if it failed."""
    if OLD not in folders:  # the present version alone
        command = command.replace("--source OLD/src ", "")
    print(f"$ {command}", flush=True)
    missing = [name for name in (REAL, OLD) if name in command and name not in folders]
    if only_list:
        return 0
    if missing:
        print(f"Left out, since {' and '.join(missing)} is not given.\n", flush=True)
        return 0
    named = re.compile("|".join(folders))
    words = [named.sub(lambda name: str(folders[name[0]]), word) for word in shlex.split(command)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if words[0].startswith("PYTHONPATH="):
        environment["PYTHONPATH"] = words.pop(0).partition("=")[2]
    if words[0] != "ls":
        python = ["-m", words[0]] if words[0] == "kneematch" else [words[0]]
        words[:1] = [sys.executable, *python]
    code = subprocess.run(words, cwd=ROOT, env=environment, check=False).returncode
    if "evaluate" in words:
        print((Path(words[-1]) / "evaluation.md").read_text("utf-8"), flush=True)
    print(f"exit code {code}\n" if code else "", flush=True)
    # Rows may differ, and `kneematch` says by 1 that some films were not used.
    return int(code > (1 if "kneematch" in words or "lab/rows.py" in words else 0))


if __name__ == "__main__":
    sys.exit(main())
