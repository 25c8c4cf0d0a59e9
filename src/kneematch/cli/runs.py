"""`kneematch detect`, `apply` and `compare`: make runs, and what is done with those that ended."""

import json
import shlex
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import App, ArgumentCollection, Parameter
from cyclopts.config import Dict

from kneematch.cli.terminal import (
    SOME_FAILED,
    FinishedRun,
    Quiet,
    Root,
    choose_messages,
    print_first_errors,
    shown,
    stopping_cleanly,
)
from kneematch.errors import SettingsError
from kneematch.films.files import DETECTIONS, FAILURES, REPORT, RUN_DATABASE, read_text, writing
from kneematch.run.config import DetectConfig
from kneematch.settings import INPUT, Films, Force, Out, Workers

if TYPE_CHECKING:
    from kneematch.run.pipeline import DetectResult

LACKING: Final = "lack a picture, a crop, an export, measures or a correction"
MOST_SHOWN: Final = 10  # films and patients that are skipped


def use_settings_file(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Let the settings in the file of --config take the place of the options' defaults."""
    for argument in arguments:
        if argument.name == "--config" and argument.tokens:
            path = Path(argument.tokens[0].value)
            settings = Dict(_read_settings(path), source=str(path), use_commands_as_keys=False)
            settings(app, commands, arguments)


def _read_settings(path: Path) -> dict[str, Any]:
    """Return the settings in a TOML file, or those of a run from its run.json."""
    try:
        text = read_text(path)
        if path.suffix.lower() != ".json":
            return tomllib.loads(text)
        settings: dict[str, Any] = json.loads(text)["settings"]
        known = {item.name for item in fields(DetectConfig)} - {"force"}
        given = ((name, value) for name, value in settings.items() if name in known)
        return {name: value for name, value in given if value not in (None, [])}
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SettingsError(
            f"{path} holds no settings: it is neither a TOML file nor the run.json of a run."
        ) from error


def detect(
    films: Films,
    /,
    *,
    out: Out,
    settings: DetectConfig = DetectConfig(),
    config: Annotated[Path | None, Parameter(group=INPUT, metavar="FILE")] = None,
    quiet: Quiet = False,
) -> int | None:
    """Find the knee joint areas of films; write tables, a report and pictures.

    ```
    kneematch detect films -o found                      tables and a report
    kneematch detect films -o found --crops --overlays   with pictures of knees and films
    kneematch detect @list.txt -o found --measure        with joint-space widths and angles
    ```

    Parameters
    ----------
    config
        Take settings from this TOML file or the run.json of a run; options on the command line
        override them.
    """
    progress = choose_messages(quiet=quiet)
    from kneematch.run.pipeline import detect_folder

    database = out / RUN_DATABASE
    safe = f"What is done is safe in {database}; make room and give the same command again."
    with stopping_cleanly(database), writing(out, safe):
        result = detect_folder(films, out, settings, progress=progress)
    print_summary(result, quiet=quiet)
    return SOME_FAILED if result.no_knee or result.failed or result.missing else None


def print_summary(result: "DetectResult", *, quiet: bool) -> None:
    """Print what failed on stderr and what was found on stdout."""
    where = f"failed. See {shown(result.out / FAILURES)}."
    print_first_errors(result.reasons, result.failed, where)
    print_first_errors(result.missing_reasons, result.missing, LACKING)
    if not quiet:
        table, page = shown(result.out / DETECTIONS), shlex.quote(shown(result.out / REPORT))
        print(f"{table}: {_counts(result)}")
        review = f", or run: kneematch review {shlex.quote(shown(result.out))}"
        print(f"Next: open {page}{review if result.knees else ''}")


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
    run: FinishedRun,
    /,
    *,
    decisions: Annotated[Path | None, Parameter(metavar="FILE")] = None,
    root: Root = None,
    workers: Workers = None,
    quiet: Quiet = False,
) -> int | None:
    """Write the decisions of `kneematch review` to the tables, pictures and exports of a run.

    Parameters
    ----------
    decisions
        Add the decisions of this review.csv first.
    """
    from kneematch.run.apply import apply_review

    progress = choose_messages(quiet=quiet)
    with writing(run):
        result = apply_review(
            run, root=root, decisions=decisions, workers=workers, progress=progress
        )
    print_first_errors(result.missing_reasons, result.missing, LACKING)
    if not quiet:
        message = f"{result.decisions}, {result.review:,} to review"
        print(f"{shown(run / DETECTIONS)}: {message}")
    return SOME_FAILED if result.missing else None


def compare(
    runs: list[Path],
    /,
    *,
    visits: Annotated[Path, Parameter(metavar="TABLE")],
    out: Annotated[Path, Parameter(alias="-o", metavar="FILE")] = Path("changes.csv"),
    force: Force = False,
) -> int | None:
    """Compare the measures of the same knees at two or more visits.

    Parameters
    ----------
    runs
        Output folders of `kneematch detect --measure`, such as one for each visit.
    visits
        CSV with a row per film and the columns film, patient and visit.
    out
        Table to write.
    """
    from kneematch.evaluation.longitudinal import compare_runs

    with writing(out):
        result = compare_runs(runs, out, visits=visits, force=force)
    print(f"{shown(out)}: {_number(result.knees, 'change')}")
    reasons = [f"skipped: {reason}" for reason in result.skipped[:MOST_SHOWN]]
    print_first_errors(reasons, len(result.skipped), "skipped", what="films or patients")
    return SOME_FAILED if result.skipped else None


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' if count != 1 else ''}"
