"""`kneematch info` and `synth`: films, before a run."""

import json
import re
from collections.abc import Mapping
from concurrent.futures.process import BrokenProcessPool
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from kneematch.cli.options import Force, Workers
from kneematch.cli.terminal import FAILED, SOME_FAILED, print_error, progress_bar, shown
from kneematch.errors import KneematchError, SettingsError
from kneematch.films.files import make_out_folder, refuse_existing, writing
from kneematch.parallel import choose_workers

NOTHING: Final = "-"  # the file does not say


def info(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILES",
            help="Films to describe; without any, the installation: versions, extras, devices and "
            "built-in models.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", metavar="", help="Print JSON.")] = False,
) -> None:
    """Show what is read from films, or describe the installation."""
    if not files:
        from kneematch.run.outputs.run_file import describe_environment

        found = describe_environment()
        typer.echo(json.dumps(found, indent=1) if as_json else _lines(found))
        return
    from kneematch.films.read import read_isolated

    described = []
    for path in files:
        try:
            film = read_isolated(path)
        except KneematchError as error:
            print_error(error.message)
            continue
        names = [each.name for each in fields(film) if each.name != "pixels"]
        facts = {"film": shown(path), "size_px": list(film.size)}
        described.append(facts | {name: getattr(film, name) for name in names})
        if not as_json:
            typer.echo(f"{_lines(described[-1])}\n")
    if as_json:
        typer.echo(json.dumps(described, indent=1))
    if len(described) < len(files):
        raise typer.Exit(SOME_FAILED if described else FAILED)


def _lines(found: Mapping[str, Any]) -> str:
    """Return names and values as text, a line each."""
    texts = {name: NOTHING if value is None else value for name, value in found.items()}
    for name, value in found.items():
        if isinstance(value, dict):
            texts[name] = ", ".join(f"{key} {each}" for key, each in value.items())
        elif isinstance(value, list):
            texts[name] = ", ".join(map(str, value))
    return "\n".join(f"{name}: {text}" for name, text in texts.items())


def synth(
    out: Annotated[
        Path, typer.Option("-o", "--out", metavar="FOLDER", help="Folder for the films.")
    ],
    count: Annotated[
        int, typer.Option("-n", "--count", metavar="N", min=1, help="Number of films.")
    ] = 100,
    kind: Annotated[
        str, typer.Option("--format", metavar="[dicom|png]", help="File format.")
    ] = "dicom",
    size: Annotated[
        str | None,
        typer.Option(
            metavar="HxW",
            help="Height and width of every film in pixels.",
            show_default="as usual for the kind",
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="Random seed of the first film; each film has the seed after the previous one.",
        ),
    ] = 0,
    framing: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="What the films show: both knees, around the knees (knee), wide, to the ankle "
            "(leg), filling the film (fill) or in low resolution (low), or a mixture of these "
            "(bilateral); one knee (single); hip to ankle (full_leg); a film in a screenshot "
            "(offcentre); a knee from the side, perhaps beside a frontal one (lateral); other "
            "parts of the body (other); or any of all these.",
        ),
    ] = "bilateral",
    turn_deg: Annotated[
        float, typer.Option(metavar="DEGREES", help="Turn every film clockwise by this angle.")
    ] = 0.0,
    workers: Workers = None,
    force: Force = False,
) -> None:
    """Write synthetic knee films (phantoms), truth.csv with their knees, and a template.json."""
    from kneephantoms import SynthConfig, synthesize  # which import torch

    try:
        config = SynthConfig(
            count=count,
            format=kind,
            size=None if size is None else _parse_size(size),
            seed=seed,
            framing=framing,
            turn_deg=turn_deg,
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
    typer.echo(
        f"{shown(out)}: {films}, {result.truth.name} and {result.template.name}"
        if result.template
        else f"{shown(out)}: {films} and {result.truth.name}, no template: that needs a film "
        "of two knees, one of them healthy"
    )


def _parse_size(text: str) -> tuple[int, int]:
    """Return the height and width written as HxW."""
    match = re.fullmatch(r"(\d{1,9})[xX](\d{1,9})", text)
    if match is None:
        raise SettingsError(
            f"--size must be height and width in pixels, such as 1024x820, and not {text}."
        )
    return int(match[1]), int(match[2])
