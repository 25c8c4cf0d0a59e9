"""Run `kneematch evaluate` on phantoms that no training has seen, or on labelled real films.

    python benchmarks/train.py --device cuda -o paper.safetensors
    python benchmarks/evaluate.py --work FOLDER --kind knee --model paper.safetensors --paper
    python benchmarks/evaluate.py --work FOLDER --kind leg --model paper.safetensors --paper
    python benchmarks/evaluate.py --work FOLDER --real FOLDER [--model MODEL]

The models of benchmarks/train.py are trained on phantoms framed as knee films; those from knee to
ankle (leg) are another domain, as MOST's films are to OAI's. Real films come with a template of
their own. Prints the tables of `kneematch evaluate`; figures, and what an interrupted run needs to
resume, stay in the work folder.
"""

import argparse
from pathlib import Path

from kneematch.evaluation.config import METHODS, EvaluateConfig
from kneematch.evaluation.run import evaluate
from kneematch.evaluation.tables import to_markdown
from kneephantoms.config import SynthConfig
from kneephantoms.dataset import TRUTH, synthesize

SEEDS = {"knee": 600_000, "leg": 700_000}  # disjoint from those of any training
TOLD = ("losses", "pairs", "accuracy", "reliability")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder for films and results")
    parser.add_argument("--model", type=Path, help="default: the built-in model")
    parser.add_argument("--kind", choices=list(SEEDS), default="knee", help="kind of phantoms")
    parser.add_argument("--films", type=int, default=400, help="number of phantoms")
    parser.add_argument("--real", type=Path, help="folder of labelled real films instead")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--paper", action="store_true", help="minimise the paper's energy")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--tables", default=",".join(TOLD))
    args = parser.parse_args()
    folder, truth = films_of(args)
    model = None if args.model is None else str(args.model)
    name = f"out-{'real' if args.real else args.kind}-{Path(model or 'built-in').stem}"
    template = str(args.real / "template.json") if args.real else None
    config = EvaluateConfig(
        truth=truth,
        model=model,
        template=template,
        methods=tuple(args.methods.split(",")),
        paper=args.paper,
        resume=True,
        device=args.device,
    )
    films = sorted(str(path) for path in folder.iterdir() if path.suffix in (".dcm", ".jpg"))
    done = evaluate(films, args.work / name, config)
    for table in done.tables:
        if table.name in args.tables.split(","):
            print(to_markdown(table))


def films_of(args: argparse.Namespace) -> tuple[Path, Path]:
    """Return the folder of films, written if missing, and the path of their labels."""
    if args.real:
        return args.real / "films", args.real / "labels.csv"
    folder = args.work / args.kind
    if not (folder / TRUTH).exists():
        seed = SEEDS[args.kind]
        synthesize(folder, SynthConfig(args.films, seed=seed, framing=args.kind, force=True))
    return folder, folder / TRUTH


if __name__ == "__main__":
    main()
