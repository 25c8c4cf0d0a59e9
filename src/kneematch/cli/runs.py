"""`kneematch detect`, `apply` and `compare`: make runs, and what is done with those that ended."""

import json
import shlex
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kneematch.cli.options import (
    FinishedRun,
    Force,
    OutFolder,
    Quiet,
    Root,
    Workers,
    config_options,
)
from kneematch.cli.terminal import (
    SOME_FAILED,
    choose_messages,
    print_first_errors,
    shown,
    stopping_cleanly,
)
from kneematch.errors import SettingsError
from kneematch.films.files import read_text, writing
from kneematch.films.run_folder import DETECTIONS, FAILURES, REPORT, RUN_DATABASE
from kneematch.options import INPUT, OUTPUT
from kneematch.run.config import DetectConfig

if TYPE_CHECKING:
    from kneematch.run.pipeline import DetectResult

COMMON_SETTINGS: Final = ("crops", "overlays", "measure", "export", "left_is", "workers", "force")
LACKING: Final = "lack a picture, a crop, an export, measures or a correction"
# Parts of the names of the measures whose changes are printed.
PRINTED: Final = ("jsw_medial_minimum", "jsw_lateral_minimum", "jsw_x225", "jsw_x250", "_angle")
MOST_SHOWN: Final = 10  # films and patients that are skipped


def _take_settings(context: typer.Context, path: Path | None) -> Path | None:
    """Let a file's settings take the place of the options' defaults."""
    if path is None:
        return None
    known = {item.name for item in fields(DetectConfig)} - {"force"}
    try:
        text = read_text(path)
        is_run = path.suffix.lower() == ".json"
        given: dict[str, Any] = json.loads(text)["settings"] if is_run else tomllib.loads(text)
        settings = {name: value for name, value in given.items() if value not in (None, [])}
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        kinds = {".json": "not the run.json of a run", ".toml": "not a valid TOML file"}
        kind = kinds.get(path.suffix.lower(), "neither a TOML file nor the run.json of a run")
        raise SettingsError(f"{path} holds no settings: it is {kind}.") from error
    unknown = settings.keys() - known
    if unknown and not is_run:
        raise SettingsError(f"{path}: There is no setting {min(unknown)!r} of detect.")
    several = {item.name for item in fields(DetectConfig) if isinstance(item.default, tuple)}
    taken = {
        name: [value] if name in several and isinstance(value, str) else value
        for name, value in settings.items()
        if name in known
    }
    context.default_map = {**(context.default_map or {}), **taken}
    return path


SettingsFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Take settings from this TOML file or the run.json of a run; options on the command "
        "line override them.",
        is_eager=True,
        callback=_take_settings,
        rich_help_panel="Advanced: input",
    ),
]


@config_options(DetectConfig, common=COMMON_SETTINGS)
def detect(
    films: Annotated[
        list[str],
        typer.Argument(
            metavar="FILMS",
            help="Films (DICOM, PNG, JPEG, TIFF, BMP, ...), folders, patterns such as "
            "'films/*.dcm', or @list.txt.",
        ),
    ],
    out: OutFolder,
    config: DetectConfig,
    config_file: SettingsFile = None,
    quiet: Quiet = False,
) -> None:
    """Find the knee joint areas of films; write tables, a report and pictures.

    \b
    kneematch detect films -o found                      tables and a report
    kneematch detect films -o found --crops --overlays   with pictures of knees and films
    kneematch detect @list.txt -o found --measure        with joint-space widths and angles
    """
    progress = choose_messages(quiet=quiet)
    from kneematch.run.pipeline import detect_folder

    database = out / RUN_DATABASE
    safe = f"What is done is safe in {database}; make room and give the same command again."
    with stopping_cleanly(database, "Continue with the same command."), writing(out, safe):
        result = detect_folder(films, out, config, progress=progress)
    print_summary(result, quiet=quiet)
    if result.no_knee or result.failed or result.missing:
        raise typer.Exit(SOME_FAILED)


def print_summary(result: "DetectResult", *, quiet: bool) -> None:
    """Print what failed on stderr and what was found on stdout."""
    where = f"failed. See {shown(result.out / FAILURES)}."
    print_first_errors(result.reasons, result.failed, where)
    print_first_errors(result.missing_reasons, result.missing, LACKING)
    if not quiet:
        table, page = shown(result.out / DETECTIONS), shlex.quote(shown(result.out / REPORT))
        typer.echo(f"{table}: {_counts(result)}")
        review = f", or run: kneematch review {shlex.quote(shown(result.out))}"
        typer.echo(f"Next: open {page}{review if result.knees else ''}")


def _counts(result: "DetectResult") -> str:
    """Return how many knees were found, and how many films have none or failed."""
    counts = {
        "to review": result.review,
        f"without {'a' if result.noun == 'knee' else 'an'} {result.noun}": result.no_knee,
        "failed": result.failed,
    }
    others = [f", {count:,} {what}" for what, count in counts.items() if count]
    listed = " (failures.csv)" if result.no_knee or result.failed else ""
    found = f"{_number(result.knees, result.noun)} in {_number(result.films, 'film')}"
    return "".join([found, *others, listed])


def apply(
    out: FinishedRun,
    decisions: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Add the decisions of this review.csv first.",
            show_default=False,
        ),
    ] = None,
    root: Root = None,
    workers: Workers = None,
    quiet: Quiet = False,
) -> None:
    """Write the decisions of `kneematch review` to the tables, pictures and exports of a run."""
    from kneematch.run.apply import apply_review

    progress = choose_messages(quiet=quiet)
    with writing(out):
        result = apply_review(
            out, root=root, decisions=decisions, workers=workers, progress=progress
        )
    print_first_errors(result.missing_reasons, result.missing, LACKING)
    if not quiet:
        message = f"{result.decisions}, {result.review:,} to review"
        typer.echo(f"{shown(out / DETECTIONS)}: {message}")
    if result.missing:
        raise typer.Exit(SOME_FAILED)


def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN",
            help="Output folders of `detect --measure`, such as one for each visit.",
        ),
    ],
    visits: Annotated[
        Path,
        typer.Option(
            metavar="TABLE",
            help="CSV with a row per film and the columns film, patient and visit.",
            rich_help_panel=INPUT,
        ),
    ],
    out: Annotated[
        Path,
        typer.Option("-o", "--out", metavar="FILE", help="Table to write.", rich_help_panel=OUTPUT),
    ] = Path("changes.csv"),
    force: Force = False,
) -> None:
    """Compare the measures of the same knees at two or more visits."""
    from kneematch.evaluation.longitudinal import compare_runs

    with writing(out):
        result = compare_runs(runs, out, visits=visits, force=force)
    for each in result.changes:
        if any(name in each.measure for name in PRINTED):
            sd, sdc = ("unknown" if n is None else f"{n:.3f}" for n in (each.sd, each.sdc))
            typer.echo(
                f"{shown(each.visit)}, {each.measure}: mean change {each.mean:+.3f} (standard "
                f"deviation {sd}); {each.beyond:,} of {_number(each.knees, 'knee')} changed more "
                f"than the smallest detectable change, {sdc}"
            )
    typer.echo(f"{shown(out)}: {_number(result.knees, 'change')}")
    reasons = [f"skipped: {reason}" for reason in result.skipped[:MOST_SHOWN]]
    print_first_errors(reasons, len(result.skipped), "skipped", what="films or patients")
    if result.skipped:
        raise typer.Exit(SOME_FAILED)


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' if count != 1 else ''}"
