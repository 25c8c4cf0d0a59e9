"""Write docs/results.md and docs/model-card.md from what the benchmarks printed.

    python benchmarks/results.py measure NAME... [--real FOLDER] [--work FOLDER] [--other PYTHON]
    python benchmarks/results.py write

`measure` runs benchmarks and stores what they print, with command, date, hardware, load before and
after, and commit, in docs/measured/NAME.md. `write` inserts these into docs/PAGE.in.md, where a
line `{{NAME}}` stands for one of them, and writes docs/PAGE.md. Every figure in the results was
thus printed by a command in this folder, and each part can be measured again, on a suitable
machine, without the others.
"""

import argparse
import os
import platform
import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
MEASURED = ROOT / "docs" / "measured"
PAGES = ("results", "model-card")
PAPER = "evaluate.py --work WORK --model WORK/paper.safetensors --paper"
DEFAULT = "evaluate.py --work WORK --model WORK/default.safetensors"
OURS = "--methods neural,neural+sharpen,search --tables losses,accuracy"

COMMANDS = {
    "box-phantoms": "neural.py --films 200 --threads 2",
    "box-real": "neural.py --films 0 --real REAL --threads 2",
    "template-transfer": "template_transfer.py --real REAL --threads 2",
    "evaluate-real": "evaluate.py --work WORK --real REAL",
    "located-real": "evaluate.py --work WORK --real REAL --methods locator,neural+sharpen "
    "--tables losses,accuracy",
    "paper-real": "evaluate.py --work WORK --real REAL --paper --methods sliding "
    "--tables losses,accuracy",
    "own-real": "neural.py --films 0 --real REAL --model WORK/real.safetensors --threads 2 "
    "--methods sliding,neural,neural+sharpen,neural+gauss_newton,search",
    "train-paper": "train.py --device cuda --workers 16 -o WORK/paper.safetensors",
    "replication": "replication.py --start WORK/resnet18-imagenet-to-layer3.safetensors "
    "--real REAL --device cuda -o WORK/replication",
    "basin": "basin.py --real REAL",
    "train-default": "train.py --device cuda --workers 16 --recipe default "
    "-o WORK/default.safetensors",
    "paper-knee": f"{PAPER} --kind knee --tables losses,pairs,accuracy",
    "paper-leg": f"{PAPER} --kind leg",
    "default-knee": f"{DEFAULT} --kind knee {OURS}",
    "default-leg": f"{DEFAULT} --kind leg {OURS}",
    "phantoms": "phantoms.py --films 40 --real REAL",
    "kinds": "kinds.py --real REAL --films 0",
    "kinds-phantoms": "kinds.py --films 40",
    "markers": "markers.py --films 600",
    "expected-error": "expected_error.py --films 80 --seed 300 --real REAL",
    "review-flags": "review_flags.py --films 24 --real REAL",
    "inference": "inference.py --real REAL",
    "parts": "parts.py --other OTHER",
    "startup": "startup.py --other OTHER",
    "scaling": "scaling.py --cores 1 2 --size 2048x2494 --films 400 --fewest 200 --turns 3 "
    "--work WORK",
    "scaling-jpeg2000": "scaling.py --cores 1 2 --size 2048x2494 --films 120 --fewest 60 "
    "--turns 3 --jpeg2000 --work WORK",
    "scaling-ray": "scaling.py --cores 1 2 --films 400 --fewest 200 --turns 3 --engine ray "
    "--work WORK",
    "peers": "peers.py --work WORK",
    "memory": "memory.py --work WORK",
    "memory-versions": "memory.py --films 100 --size 2048x2494 --turns 3 --other OTHER --work WORK",
    "scaling-16": "scaling.py --cores 1 2 4 8 16 --size 2048x2494 --films 1600 --fewest 100 "
    "--distinct 160 --work WORK",
    "scaling-gpu": "scaling.py --cores 16 --size 2048x2494 --films 4096 --distinct 160 "
    "--device cuda --work WORK",
    "gpu-workers": "gpu_workers.py --films 2048 --ray --work WORK",
    "gpu-memory": "gpu_memory.py",
    "detect": "detect.py",
    "web": "web.py",
    "search-real": "accuracy.py --films 0 --real REAL --threads 2 --other-templates 5",
    "search-phantoms": "accuracy.py --films 500 --device cuda --batch 64",
    "ablation": "ablation.py --real REAL --device cuda --batch 33",
    "grid": "grid.py --films 6 --device cuda --chunk 8192",
    "sharpening": "sharpening.py --films 200 --real REAL",
    "baselines": "baselines.py --films 12 --threads 2",
    "preprocessing": "preprocessing.py",
    "geometry": "geometry.py",
    "measure-phantoms": "measure.py phantoms --films 120",
    "measure-masks": "measure.py masks --real REAL",
    "measure-repeat": "measure.py repeat --real REAL",
    "measure-speed": "measure.py speed",
    "measure-tuned": "measure.py tuned --real REAL --device cuda",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["measure", "write"])
    parser.add_argument("names", nargs="*", choices=[*COMMANDS, []], metavar="NAME")
    parser.add_argument("--real", default="REAL", help="folder of labelled real films")
    parser.add_argument("--work", default="WORK", help="folder for films and models")
    parser.add_argument("--other", default="OTHER", help="Python with version 0.1.0")
    parser.add_argument("--out", type=Path, default=MEASURED, help="folder for the output")
    args = parser.parse_args()
    if args.what == "write":
        for page in PAGES:
            text = (ROOT / "docs" / f"{page}.in.md").read_text("utf-8")
            (ROOT / "docs" / f"{page}.md").write_text(assembled(text), "utf-8")
        return
    args.out.mkdir(parents=True, exist_ok=True)
    folders = {"REAL": args.real, "WORK": args.work, "OTHER": args.other}
    for name in args.names:
        before = os.getloadavg()[0]
        printed = run(COMMANDS[name], folders)
        load = f"load average {before:.1f} before and {os.getloadavg()[0]:.1f} after"
        text = with_provenance(COMMANDS[name], load, printed)
        (args.out / f"{name}.md").write_text(text, "utf-8")


def run(command: str, folders: dict[str, str]) -> str:
    """Run a benchmark and return its output, with the folders' names replaced."""
    script, *options = shlex.split(command)
    names = re.compile("|".join(folders))
    given = [names.sub(lambda found: folders[found[0]], option) for option in options]
    started = [sys.executable, str(Path(__file__).with_name(script)), *given]
    printed = subprocess.run(started, stdout=subprocess.PIPE, text=True, check=True).stdout
    for name, folder in folders.items():
        printed = printed.replace(folder, name)
    return printed


def with_provenance(command: str, load: str, printed: str) -> str:
    """Return the output below its command, date, hardware, load and commit."""
    cuda = "--device cuda" in command or command.startswith("gpu")
    facts = (
        f"{datetime.now(UTC):%Y-%m-%d}, {hardware(cuda)}, {load}, "
        f"PyTorch {torch.__version__}, {commit()}"
    )
    return f"`python benchmarks/{command}`; {facts}.\n\n{printed.strip()}\n"


def hardware(cuda: bool) -> str:
    if cuda:
        return torch.cuda.get_device_name()
    models = re.findall(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text("ascii"))
    return f"{os.cpu_count()} cores of {models[0] if models else platform.machine()}"


def commit() -> str:
    """Return the measured commit: KNEEMATCH_COMMIT where there is no repository."""
    named = os.environ.get("KNEEMATCH_COMMIT")
    if named is None:
        args = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
        named = subprocess.run(args, capture_output=True, text=True, check=True).stdout.strip()
    return f"commit {named}"


def assembled(text: str) -> str:
    """Replace every line {{NAME}} of a text by the measured output."""

    def measured(found: re.Match[str]) -> str:
        path = MEASURED / f"{found[1]}.md"
        return path.read_text("utf-8").strip() if path.exists() else "Not measured yet."

    return re.sub(r"^\{\{([a-z0-9-]+)\}\}$", measured, text, flags=re.MULTILINE)


if __name__ == "__main__":
    main()
