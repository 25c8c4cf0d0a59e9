"""`kneematch info` and `synth`: films, before a run."""

import json
import re
from collections.abc import Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from cyclopts import Parameter, Token
from cyclopts.validators import Number

from kneematch.cli.terminal import FAILED, SOME_FAILED, print_error, progress_bar, shown
from kneematch.errors import KneematchError, SettingsError
from kneematch.films.files import make_out_folder, refuse_existing, writing
from kneematch.parallel import choose_workers
from kneematch.settings import Force, Out, Seed, Workers

NOTHING: Final = "-"  # the file does not say


def info(
    films: tuple[Path, ...] = (),
    /,
    *,
    as_json: Annotated[bool, Parameter(name="--json")] = False,
) -> int | None:
    """Show what is read from films, or describe the installation.

    Parameters
    ----------
    films
        Films to describe; without any, the installation: versions, extras, devices and built-in
        models.
    as_json
        Print JSON.
    """
    if not films:
        from kneematch.run.outputs.run_file import describe_environment

        found = describe_environment()
        print(json.dumps(found, indent=1) if as_json else _lines(found))
        return None
    from kneematch.films.read import read_isolated

    described = []
    for path in films:
        try:
            film = read_isolated(path)
        except KneematchError as error:
            print_error(error.message)
            continue
        names = [each.name for each in fields(film) if each.name != "pixels"]
        facts = {"film": shown(path), "size_px": list(film.size)}
        described.append(facts | {name: getattr(film, name) for name in names})
        if not as_json:
            print(f"{_lines(described[-1])}\n")
    if as_json:
        print(json.dumps(described, indent=1))
    if len(described) < len(films):
        return SOME_FAILED if described else FAILED
    return None


def _lines(found: Mapping[str, Any]) -> str:
    """Return names and values as text, a line each."""
    texts = {name: NOTHING if value is None else value for name, value in found.items()}
    for name, value in found.items():
        if isinstance(value, dict):
            texts[name] = ", ".join(f"{key} {each}" for key, each in value.items())
        elif isinstance(value, list):
            texts[name] = ", ".join(map(str, value))
    return "\n".join(f"{name}: {text}" for name, text in texts.items())


def _parse_size(kind: object, tokens: Sequence[Token]) -> tuple[int, int]:
    """Return the height and width written as HxW."""
    match = re.fullmatch(r"(\d{1,9})[xX](\d{1,9})", tokens[0].value)
    if match is None:
        raise ValueError("It is height and width in pixels, such as 1024x820.")
    return int(match[1]), int(match[2])


def synth(
    *,
    out: Out,
    count: Annotated[
        int, Parameter(name=("--count", "-n"), metavar="N", validator=Number(gte=1))
    ] = 100,
    file_format: Annotated[Literal["dicom", "png"], Parameter(name="--format")] = "dicom",
    size: Annotated[
        tuple[int, int] | None,
        Parameter(
            converter=_parse_size, n_tokens=1, metavar="HxW", show_default="as usual for the kind"
        ),
    ] = None,
    seed: Seed = 0,
    framing: Annotated[str, Parameter(metavar="NAME")] = "bilateral",
    workers: Workers = None,
    force: Force = False,
) -> None:
    """Write synthetic knee films (phantoms), truth.csv with their knees, and a template.json.

    Parameters
    ----------
    count
        Number of films. Each has the random seed after that of the previous one.
    file_format
        File format.
    size
        Height and width of every film in pixels.
    framing
        What the films show: both knees, around the knees (knee), wide, to the ankle (leg), filling
        the film (fill) or in low resolution (low), or a mixture of these (bilateral); one knee
        (single); hip to ankle (full_leg); a film in a screenshot (offcentre); a knee from the side,
        perhaps beside a frontal one (lateral); other parts of the body (other); or any of all
        these.
    """
    from kneephantoms import SynthConfig, synthesize  # which take time to import

    try:
        config = SynthConfig(
            count=count,
            format=file_format,
            size=size,
            seed=seed,
            framing=framing,
            workers=choose_workers(workers, count),
            force=force,
        )
    except ValueError as error:
        raise SettingsError(str(error)) from error
    make_out_folder(out)
    if any(out.iterdir()) and not force:
        refuse_existing(out, "a folder with files")
    try:
        with writing(out), progress_bar("synthesizing", count) as advance:
            result = synthesize(out, config, advance=advance)
    except BrokenProcessPool as error:
        raise SettingsError(
            f"{out}: a worker process ended, perhaps for lack of memory. Choose fewer --workers."
        ) from error
    films = f"{count} film{'s' if count != 1 else ''}"
    print(
        f"{shown(out)}: {films}, {result.truth.name} and {result.template.name}"
        if result.template
        else f"{shown(out)}: {films} and {result.truth.name}, no template: that needs a film "
        "of two knees, one of them healthy"
    )
