"""`kneematch evaluate`: how good each method is on films of one's own."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kneematch.batch.config import DetectorSource
from kneematch.cli.options import (
    BatchSize,
    Device,
    Force,
    Limit,
    ModelFile,
    OutFolder,
    Paper,
    Quiet,
    Series,
    TemplateFile,
    Workers,
)
from kneematch.cli.terminal import (
    SOME_FAILED,
    complain,
    print_table,
    progress_bar,
    shown,
    stopping_cleanly,
    writing,
)
from kneematch.errors import SettingsError
from kneematch.evaluation.config import Settings

if TYPE_CHECKING:
    from kneematch.evaluation.run import Evaluation

RUNS: Final = "runs"
# Tables, and the columns of them that a terminal has room for; the page has all.
PRINTED: Final = {
    "losses": ("method", "films", "left + right loss", "standard error", "ms a film"),
    "accuracy": ("method", "source", "knees", "mean IoU", "recall at 0.75", "margins, median %"),
    "templates": ("template", "round trip, median %", "triangles, median %", "mean IoU"),
}
MOST_REASONS: Final = 10  # the page has all
SETTINGS: Final = Settings(Path())
RECIPE: Final = SETTINGS.recipe


def evaluate(
    out: OutFolder,
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILMS...", help="Films, folders, patterns or @list.txt."),
    ] = None,
    model: ModelFile = RECIPE.model,
    template: TemplateFile = RECIPE.template,
    methods: Annotated[
        str, typer.Option(metavar="NAMES", help="Which to compare, with commas between.")
    ] = ",".join(SETTINGS.methods),
    grid: Annotated[
        int, typer.Option(min=0, metavar="N", help="Films for the grid search: slow.")
    ] = SETTINGS.grid,
    truth: Annotated[
        Path | None,
        typer.Option(metavar="CSV", help="Known plateaus: id, knee, x1, y1, x2, y2[, flag]."),
    ] = SETTINGS.truth,
    templates: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Instead, rank the annotated knees of a folder."),
    ] = None,
    paper: Paper = RECIPE.paper,
    device: Device = RECIPE.device,
    workers: Workers = SETTINGS.workers,
    batch_size: BatchSize = RECIPE.batch_size,
    series: Series = SETTINGS.series,
    limit: Limit = SETTINGS.limit,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an evaluation that ended.")
    ] = SETTINGS.resume,
    force: Force = SETTINGS.force,
    quiet: Quiet = False,
) -> None:
    """Compare methods on films: loss, time, uniformity and, where it is known, the truth.

    Tables as Markdown, LaTeX and CSV, and figures; evaluation.md has all of it. Every method's own
    run, as of `kneematch detect`, is in runs/METHOD.
    """
    settings = Settings(
        out,
        DetectorSource(model, template, paper=paper, device=device, batch_size=batch_size),
        methods=tuple(name.strip() for name in methods.split(",") if name.strip()),
        grid=grid,
        truth=truth,
        workers=workers,
        series=series,
        limit=limit,
        resume=resume,
        force=force,
    )
    if templates is None and not paths:
        raise SettingsError("no films; expected files, folders or lists of them; name some")
    if templates is not None:
        given = {"--model": model, "--template": template, "--grid": grid, "--resume": resume}
        _refuse([name for name, value in given.items() if value])
    from kneematch.io.discovery import select_films

    with stopping_cleanly(out / RUNS):
        films = select_films(paths, series=series, limit=limit, leave_out=[out]) if paths else []
        with writing(out):
            evaluation = _evaluate(settings, films, templates, quiet=quiet)
    _tell(evaluation, quiet=quiet)
    if evaluation.failed:
        raise typer.Exit(SOME_FAILED)


def _refuse(options: list[str]) -> None:
    if options:
        raise SettingsError(
            f"--templates with {' and '.join(options)}; expected one or the other: to rank "
            "templates, or to compare methods; leave one out"
        )


def _evaluate(
    settings: Settings, films: list[str], templates: Path | None, *, quiet: bool
) -> "Evaluation":
    from kneematch.evaluation.method_runs import unheard
    from kneematch.evaluation.run import evaluate, evaluate_templates
    from kneematch.progress import no_progress

    say = unheard if quiet else complain
    if templates is not None:
        return evaluate_templates(settings, templates, films, say, sys.argv)
    return evaluate(settings, films, no_progress if quiet else progress_bar, say, sys.argv)


def _tell(evaluation: "Evaluation", *, quiet: bool) -> None:
    """What failed on stderr, the main tables on stdout."""
    reasons = list(evaluation.failed.values())
    for reason in reasons[:MOST_REASONS]:
        complain(reason)
    if len(reasons) > MOST_REASONS:
        complain(f"{len(reasons) - MOST_REASONS} more films failed: {shown(evaluation.page)}")
    if quiet:
        return
    for name, titles in PRINTED.items():
        table = evaluation.table(name)
        if table is not None:
            print_table(table, titles)
    typer.echo(shown(evaluation.page))
