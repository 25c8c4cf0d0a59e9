"""`kneematch evaluate` on phantoms that no training has seen, or on labelled real films.

    python benchmarks/algorithms.py --device cuda -o paper.safetensors
    python benchmarks/evaluate.py --work FOLDER --kind knee --model paper.safetensors --paper
    python benchmarks/evaluate.py --work FOLDER --kind leg --model paper.safetensors --paper
    python benchmarks/evaluate.py --work FOLDER --real FOLDER [--model MODEL]

The models of benchmarks/algorithms.py are trained on phantoms framed as knee films; those from knee
to ankle (leg) are another domain, as MOST's films are to OAI's. Real films come with a template of
their own. It prints the tables; figures, and what a run that was stopped needs to go on, stay in
the folder to work in.
"""

import argparse
from pathlib import Path

from kneematch.batch.recipe import Recipe
from kneematch.evaluation.config import METHODS, Settings
from kneematch.evaluation.run import evaluate
from kneematch.evaluation.tables import to_markdown
from kneematch.synthetic.config import SynthConfig
from kneematch.synthetic.dataset import TRUTH, synthesize

SEEDS = {"knee": 600_000, "leg": 700_000}  # apart from those of any training
TOLD = ("losses", "pairs", "accuracy", "reliability", "loss_and_error", "error_by_loss")
ALSO_TOLD = ("lower_loss", "uniformity")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder for films and results")
    parser.add_argument("--model", type=Path, help="else the one in the box")
    parser.add_argument("--kind", choices=list(SEEDS), default="knee", help="of phantoms")
    parser.add_argument("--films", type=int, default=400, help="phantoms")
    parser.add_argument("--real", type=Path, help="folder of labelled real films instead")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--paper", action="store_true", help="lower the energy as printed")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--tables", default=",".join((*TOLD, *ALSO_TOLD)))
    asked = parser.parse_args()
    folder, truth = films_of(asked)
    model = None if asked.model is None else str(asked.model)
    name = f"out-{'real' if asked.real else asked.kind}-{Path(model or 'box').stem}"
    template = str(asked.real / "template.json") if asked.real else None
    settings = Settings(
        asked.work / name,
        Recipe(model, template, paper=asked.paper, device=asked.device),
        methods=tuple(asked.methods.split(",")),
        truth=truth,
        resume=True,
    )
    films = sorted(str(path) for path in folder.iterdir() if path.suffix in (".dcm", ".jpg"))
    done = evaluate(settings, films)
    for table in done.tables:
        if table.name in asked.tables.split(","):
            print(to_markdown(table))


def films_of(asked: argparse.Namespace) -> tuple[Path, Path]:
    """The folder of films, made if need be, and their labels."""
    if asked.real:
        return asked.real / "films", asked.real / "labels.csv"
    folder = asked.work / asked.kind
    if not (folder / TRUTH).exists():
        seed = SEEDS[asked.kind]
        synthesize(folder, SynthConfig(asked.films, seed=seed, kind=asked.kind, force=True))
    return folder, folder / TRUTH


if __name__ == "__main__":
    main()
