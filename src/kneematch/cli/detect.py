"""`kneematch detect`: find the knee joint areas of films."""

import json
import os
import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from kneematch.cli.options import Log, OutFolder, Quiet, config_options
from kneematch.cli.terminal import (
    SOME_FAILED,
    choose_messages,
    print_first_errors,
    print_result,
    shown,
    stopping_cleanly,
    writing,
)
from kneematch.films.run_folder import DETECTIONS, FAILURES, REPORT, RUN_DATABASE
from kneematch.run.config import DetectConfig

if TYPE_CHECKING:
    from kneematch.run.pipeline import DetectResult


@config_options(DetectConfig)
def detect(
    films: Annotated[
        list[str],
        typer.Argument(
            metavar="FILMS",
            help="Films (DICOM, PNG, JPEG, TIFF), folders, patterns, @list.txt, a CSV with a "
            "column of paths, or - for a list on stdin.",
        ),
    ],
    out: OutFolder,
    config: DetectConfig,
    quiet: Quiet = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", metavar="", help="Print how films are searched.")
    ] = False,
    log: Log = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", metavar="", help="Print a summary of the run as JSON on stdout."),
    ] = False,
) -> None:
    """Find the knee joint areas of films; write tables, a report and pictures."""
    progress = choose_messages(quiet=quiet, verbose=verbose, log=log)
    from kneematch.run.pipeline import detect_folder

    database = out / RUN_DATABASE
    safe = f"What is done is safe in {database}; make room and give the same command again."
    with stopping_cleanly(database, "continue with the same command"), writing(out, safe):
        result = detect_folder(films, out, config, progress=progress)
    _print_summary(result, quiet=quiet or as_json)
    if as_json:
        typer.echo(json.dumps(asdict(result), default=os.fspath))
    if result.no_knee or result.failed or result.missing:
        raise typer.Exit(SOME_FAILED)


def _print_summary(result: "DetectResult", *, quiet: bool) -> None:
    """Print what failed on stderr and what was found on stdout."""
    where = f"failed: {shown(result.out / FAILURES)}"
    print_first_errors(result.reasons, result.failed, where)
    lacking = "lack a picture, a crop, an export or measures"
    print_first_errors(result.missing_reasons, result.missing, lacking)
    if not quiet:
        table, page = shown(result.out / DETECTIONS), shlex.quote(shown(result.out / REPORT))
        print_result(f"{table}: {_counts(result)}")
        review = f"; kneematch review {shlex.quote(shown(result.out))}" if result.knees else ""
        print_result(f"next: open {page}{review}")


def _counts(result: "DetectResult") -> str:
    """Return how many knees were found, and how many films have none or failed."""
    without = {" without a knee": result.no_knee, " failed": result.failed}
    listed = " (failures.csv)" if any(without.values()) else ""
    if not result.knees:
        others = [_number(count, "film") + what for what, count in without.items() if count]
        return "; ".join(["no knees", *others]) + listed
    counts = {" to review": result.review, **without}
    others = [f"{count:,}{what}" for what, count in counts.items() if count]
    found = f"{_number(result.knees, 'knee')} in {_number(result.films, 'film')}"
    return ", ".join([found, *others]) + listed


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' if count != 1 else ''}"
