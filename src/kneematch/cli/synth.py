"""`kneematch synth`: a folder of phantoms and their truth."""

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from kneematch.cli.terminal import progress, shown, writing
from kneematch.errors import SettingsError

TEMPLATE: Final = "template.json"


class Kind(StrEnum):
    """Of framing."""

    KNEE = "knee"
    WIDE = "wide"
    LEG = "leg"
    FILL = "fill"


class Format(StrEnum):
    """Of the files."""

    DICOM = "dicom"
    PNG = "png"


def synth(
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder to make and fill.")],
    count: Annotated[int, typer.Option("-n", "--count", help="How many films.")] = 100,
    format: Annotated[Format, typer.Option(help="Of the films.")] = Format.DICOM,
    size: Annotated[
        str | None, typer.Option(metavar="HxW", help="Of every film; else it varies.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the first film; the next has the next.")] = 0,
    family: Annotated[
        int | None, typer.Option(help="Films of one family share the shape of their bones.")
    ] = None,
    kind: Annotated[
        Kind | None,
        typer.Option(
            help="Around the knees, wide, knee to ankle, or filling the film; else mixed."
        ),
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Processes; else by the cores.")] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the phantoms, and their template, there.")
    ] = False,
) -> None:
    """Write phantoms, truth.csv, which says where the knees are, and a template.json."""
    from kneematch.synthetic.dataset import Recipe, synthesise

    recipe = Recipe(count, format.value, _height_and_width(size), seed, family, kind)
    with writing(out), progress(count) as advance:
        truth = synthesise(out, recipe, workers=workers, force=force, report=lambda path: advance())
        drawn = _write_template(truth)
    films = f"{count} film{'s' if count != 1 else ''}"
    typer.echo(
        f"{shown(out)}: {films}, {truth.name} and {TEMPLATE}"
        if drawn
        else f"{shown(out)}: {films} and {truth.name}; no knee could serve as a template"
    )


def _write_template(truth: Path) -> bool:
    """Annotate one of the phantoms, if one will do; one of an earlier run goes in any case."""
    from kneematch.matching.annotation import save_annotation
    from kneematch.synthetic.annotation import template_from_truth

    target = truth.with_name(TEMPLATE)
    target.unlink(missing_ok=True)
    annotation = template_from_truth(truth)
    if annotation is not None:
        save_annotation(annotation, target)
    return annotation is not None


def _height_and_width(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,9})[xX](\d{1,9})", text)
    if match is None:
        raise SettingsError(
            f"--size {text}: not a size; expected height x width in pixels; write it as 1024x820"
        )
    return int(match[1]), int(match[2])
