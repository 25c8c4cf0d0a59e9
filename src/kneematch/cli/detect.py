"""`kneematch detect`: both knee joint areas of every film."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kneematch.batch.config import Selection, Settings
from kneematch.batch.recipe import Recipe
from kneematch.cli.films import named_films
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
    progress,
    shown,
    stopping_cleanly,
    writing,
)
from kneematch.errors import SettingsError
from kneematch.parallel.forkserver import start_early
from kneematch.parallel.malloc import keep_memory

if TYPE_CHECKING:
    from kneematch.batch.run import Summary

TABLE: Final = "detections.csv"
FAILURES: Final = "failures.csv"
LEDGER: Final = "ledger.jsonl"
SETTINGS: Final = Settings(Path())
RECIPE: Final = SETTINGS.recipe
SELECTION: Final = SETTINGS.selection


class Method(StrEnum):
    """How knees are found."""

    AUTO = "auto"
    SLIDING = "sliding"
    GRID = "grid"
    SEARCH = "search"
    NEURAL = "neural"
    NEURAL_SHARPEN = "neural+sharpen"


class Export(StrEnum):
    """For other programs."""

    COCO = "coco"
    DICOM = "dicom"


class Engine(StrEnum):
    """Who does the work."""

    LOCAL = "local"
    RAY = "ray"


METHOD: Final = Method(RECIPE.method)
ENGINE: Final = Engine(SETTINGS.engine)


def detect(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH...",
            help="Films (DICOM, PNG, JPEG, TIFF), folders, patterns, @list.txt, a CSV with a "
            "column of paths, or - for a list on stdin.",
        ),
    ],
    out: OutFolder,
    model: ModelFile = RECIPE.model,
    template: TemplateFile = RECIPE.template,
    method: Annotated[
        Method,
        typer.Option(
            help="auto: neural+sharpen; search if the networks see no knee on the template."
        ),
    ] = METHOD,
    paper: Paper = RECIPE.paper,
    device: Device = RECIPE.device,
    batch_size: BatchSize = RECIPE.batch_size,
    workers: Workers = SETTINGS.workers,
    series: Series = SELECTION.series,
    limit: Limit = SELECTION.limit,
    num_parts: Annotated[int, typer.Option(min=1, help="Of a job array.")] = SELECTION.num_parts,
    part_id: Annotated[
        int, typer.Option(min=0, help="From 0: every num-parts-th film.")
    ] = SELECTION.part_id,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue a run that ended.")
    ] = SETTINGS.resume,
    force: Force = SETTINGS.force,
    overlays: Annotated[
        bool, typer.Option(help="Draw a picture of every film.")
    ] = SETTINGS.overlays,
    crops: Annotated[
        bool, typer.Option("--crops", help="Cut every knee out, upright, in 16 bits.")
    ] = SETTINGS.crops,
    crop_mm: Annotated[
        float | None, typer.Option(metavar="MM", help="Side of a crop; else 140.")
    ] = SETTINGS.crop_mm,
    crop_spacing: Annotated[
        float | None, typer.Option(metavar="MM", help="Of a crop's pixels; else 0.3.")
    ] = SETTINGS.crop_spacing,
    crop_px: Annotated[
        int | None, typer.Option(metavar="PX", help="Side of a crop where the film has no spacing.")
    ] = SETTINGS.crop_px,
    mirror: Annotated[
        bool, typer.Option("--mirror", help="Crops that all look like the picture's right side.")
    ] = SETTINGS.mirror,
    export: Annotated[
        list[Export] | None, typer.Option(help="Results for other programs; may be repeated.")
    ] = None,
    sheet: Annotated[
        Path | None, typer.Option(metavar="PNG", help="Draw the first films side by side.")
    ] = SETTINGS.sheet,
    engine: Annotated[Engine, typer.Option(help="This machine, or a Ray cluster.")] = ENGINE,
    ray_address: Annotated[
        str | None, typer.Option(metavar="ADDR", help="Of a cluster that runs; else a new one.")
    ] = SETTINGS.ray_address,
    quiet: Quiet = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say more.")] = False,
) -> None:
    """Find both knee joint areas of films."""
    if quiet and verbose:
        raise SettingsError("--quiet and --verbose; expected one of them; leave one out")
    recipe = Recipe(model, template, method.value, paper, device, batch_size)
    settings = Settings(
        out,
        recipe,
        workers=workers,
        engine=engine.value,
        ray_address=ray_address,
        resume=resume,
        force=force,
        selection=Selection(series, limit, num_parts, part_id),
        overlays=overlays,
        crops=crops,
        crop_mm=crop_mm,
        crop_spacing=crop_spacing,
        crop_px=crop_px,
        mirror=mirror,
        export=tuple(item.value for item in export or ()),
        sheet=sheet,
    )
    with stopping_cleanly(out / LEDGER):
        films = _films(paths, settings.selection, out, quiet=quiet)
        summary = _run(settings, films, quiet=quiet, verbose=verbose)
    _tell(summary, out, quiet=quiet)
    if summary.failed or summary.undrawn:
        raise typer.Exit(SOME_FAILED)


def _films(paths: list[str], selection: Selection, out: Path, *, quiet: bool) -> list[str]:
    from kneematch.batch.products import PRODUCT_FOLDERS

    ours = [out, *(out / folder for folder in PRODUCT_FOLDERS)]
    return named_films(paths, selection, ours, quiet=quiet)


def _run(settings: Settings, films: list[str], *, quiet: bool, verbose: bool) -> "Summary":
    keep_memory()
    if settings.engine == ENGINE and settings.workers != 0 and len(films) > 1:
        start_early("kneematch.batch.reader")
    from kneematch.batch.run import run, silent

    if verbose:
        complain(
            f"{len(films)} films, {settings.recipe.method}, batches of "
            f"{settings.recipe.batch_size}, engine {settings.engine}"
        )
    with writing(settings.out):
        return run(settings, films, silent if quiet else progress, sys.argv)


def _tell(summary: "Summary", out: Path, *, quiet: bool) -> None:
    """What failed on stderr, what was found on stdout."""
    for reason in summary.reasons:
        complain(reason)
    more = summary.failed - len(summary.reasons)
    if more > 0:
        complain(f"{more} more films failed: {shown(out / FAILURES)}")
    for reason in summary.why_undrawn:
        complain(reason)
    more = summary.undrawn - len(summary.why_undrawn)
    if more > 0:
        complain(f"{more} more films lack a picture, a crop or an export")
    if quiet:
        return
    failed = f", {summary.failed} failed ({FAILURES})" if summary.failed else ""
    typer.echo(
        f"{shown(out / TABLE)}: {summary.knees} knee{'s' if summary.knees != 1 else ''} in "
        f"{summary.films} film{'s' if summary.films != 1 else ''}{failed}"
    )
