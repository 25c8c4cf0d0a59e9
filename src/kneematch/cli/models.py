"""`kneematch train`, `evaluate` and `export-onnx`: make, compare and export models."""

import shlex
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter

from kneematch.cli.terminal import (
    SOME_FAILED,
    Quiet,
    choose_messages,
    print_first_errors,
    shown,
    stopping_cleanly,
)
from kneematch.evaluation import RUNS, EvaluateConfig
from kneematch.films.files import writing
from kneematch.settings import Films, Force, ModelFile, Out
from kneematch.training import TrainConfig

MOST_REASONS: Final = 10


def train(
    films: Films,
    /,
    *,
    template: Annotated[Path, Parameter(metavar="FILE")],
    out: Annotated[Path, Parameter(alias="-o", metavar="FILE")],
    settings: TrainConfig = TrainConfig(),
    quiet: Quiet = False,
) -> int | None:
    """Train both networks on films without labels to find the boxes of a template.

    Training pays where `detect --template` with the built-in model is off on your films. Take 50
    films or more that look like those to come and show both knees, since each half of a film is
    taken for a knee.

    For a template of another part of the body, only its landmarks are learnt, from films of that
    part, with no other option than --force. Give the file to `detect` with --model, beside
    --template.

    NAME.metrics.csv shows the progress. A checkpoint is kept beside it until the training ends; the
    same command continues from it.

    Parameters
    ----------
    template
        Annotation written by `kneematch annotate`.
    out
        Model file to write, NAME.safetensors.
    """
    progress = choose_messages(quiet=quiet)
    from kneematch.training.trainer import checkpoint_path
    from kneematch.training.trainer import train as run

    with stopping_cleanly(checkpoint_path(out)):
        result = run(films, template, out, settings, progress=progress)
    if not quiet:
        left_out = f", {len(result.failures)} left out" if result.failures else ""
        print(f"{shown(out)}: trained on {result.films} films{left_out}")
        beside = [] if result.epochs else ["--template", str(template)]  # landmarks alone
        model = shlex.join([*beside, "--model", str(out)])
        print(f"Next: kneematch detect FILMS {shown(model)} -o found")
    return SOME_FAILED if result.failures else None


def evaluate(
    films: Films,
    /,
    *,
    out: Out,
    settings: EvaluateConfig = EvaluateConfig(),
    quiet: Quiet = False,
) -> int | None:
    """Compare methods on films: their losses and, with labels, their accuracy.

    evaluation.md has all tables, which are also written as CSV. runs/METHOD has the files of
    `kneematch detect`, or detections.csv of one of the paper's methods. The film of --template is
    left out. What was interrupted is continued, but for the paper's methods.
    """
    from kneematch.evaluation import run

    progress = choose_messages(quiet=quiet)
    with stopping_cleanly(out / RUNS), writing(out):
        result = run.evaluate(films, out, settings, progress=progress)
    reasons = list(result.failed.values())
    print_first_errors(reasons[:MOST_REASONS], len(reasons), f"failed. See {shown(result.page)}.")
    if not quiet:
        for table in result.tables:
            print(f"{run.to_markdown(table)}\n")
        print(shown(result.page))
    return SOME_FAILED if result.failed else None


def export_onnx(*, out: Out, model: ModelFile = None, force: Force = False) -> None:
    """Write the networks as ONNX files, and run_onnx.py, which runs them without PyTorch.

    They find what `kneematch detect` finds by default when it computes in float32.
    """
    from kneematch.knee import onnx_export

    with writing(out):
        for path in onnx_export.export_onnx(out, model, force=force):
            print(shown(path))
