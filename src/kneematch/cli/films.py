"""`kneematch info`, `import-template` and `synth`: films and templates, before a run."""

import json
import math
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from kneematch.cli.options import TemplateFile, config_options
from kneematch.cli.terminal import FAILED, SOME_FAILED, print_error, progress_bar, shown, writing
from kneematch.errors import KneematchError
from kneematch.knee.import_config import ImportConfig
from kneephantoms.config import SynthConfig

NOTHING = "-"  # the file does not say
MOST_COLUMNS = 6  # columns of a contact sheet


def info(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILES",
            help="DICOM, PNG, JPEG or TIFF files. Without any, the installation is described: "
            "versions, extras, devices and the built-in model.",
        ),
    ] = None,
    preview: Annotated[
        Path | None,
        typer.Option(
            metavar="PNG", help="Draw the films with the lines along which they are split."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", metavar="", help="Print JSON.")] = False,
) -> None:
    """Show what is read from films, and where they are split; or describe the installation."""
    if not files:
        _print_environment(as_json=as_json)
        return
    from kneematch.films.write import check_picture_path, save_picture
    from kneematch.knee.describe import describe
    from kneematch.run.outputs.contact_sheet import contact_sheet, draw_split

    if preview is not None:
        check_picture_path(preview, files)
    pictures, facts = [], []
    for path in files:
        try:
            film, found = describe(path)
        except KneematchError as error:
            print_error(str(error))
            continue
        facts.append({"film": shown(path), **found})
        if not as_json:
            _print(_texts(facts[-1]), first=len(facts) == 1)
        if preview is not None:
            pictures.append(draw_split(film, title=shown(path.name)))
    if as_json:
        typer.echo(json.dumps(facts, indent=1))
    if preview is not None and pictures:
        columns = min(math.ceil(math.sqrt(len(pictures))), MOST_COLUMNS)
        with writing(preview):
            save_picture(contact_sheet(pictures, columns), preview)
    if len(facts) < len(files):
        raise typer.Exit(SOME_FAILED if facts else FAILED)


@config_options(ImportConfig)
def import_template(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="COCO (also of CVAT) or VIA (.json), 3D Slicer (.mrk.json), or .pts.",
        ),
    ],
    film: Annotated[Path, typer.Option(metavar="FILM", help="The film that was drawn on.")],
    config: ImportConfig,
    out: TemplateFile = Path("template.json"),
) -> None:
    """Make a template.json of boxes or landmarks that were drawn with another program.

    Boxes are called fine, red, green and, if drawn, coarse. Without boxes, two points whose names
    begin with plateau_ (the margins of the tibial plateau) place them.
    """
    from kneematch.knee import template_import

    with writing(out):
        drawn = template_import.import_template(file, film, out, config)
    landmarks = ", ".join(drawn.landmarks) or "none"
    typer.echo(f"{shown(out)}: knee in the {drawn.side} half; landmarks: {shown(landmarks)}")


@config_options(SynthConfig)
def synth(
    out: Annotated[
        Path, typer.Option("-o", "--out", metavar="FOLDER", help="Folder for the films.")
    ],
    config: SynthConfig,
) -> None:
    """Write synthetic knee films (phantoms), truth.csv with their knees, and a template.json."""
    from kneephantoms.dataset import synthesize

    with writing(out):
        result = synthesize(out, config, progress=progress_bar)
    films = f"{config.count} film{'s' if config.count != 1 else ''}"
    typer.echo(
        f"{shown(out)}: {films}, {result.truth.name} and {result.template.name}"
        if result.template
        else f"{shown(out)}: {films} and {result.truth.name}; no template.json, since it "
        "needs a healthy joint inside one half of a film, as films of two knees have"
    )


def _print_environment(*, as_json: bool) -> None:
    from kneematch.run.outputs.run_file import describe_environment

    found = describe_environment()
    if as_json:
        typer.echo(json.dumps(found, indent=1))
        return
    for name, value in found.items():
        texts = value if isinstance(value, list) else [str(value)]
        if isinstance(value, dict):
            texts = [f"{key} {each}" for key, each in value.items()]
        typer.echo(f"{name}: {', '.join(texts)}")


def _texts(facts: dict[str, Any]) -> dict[str, str]:
    """Return the values as a table shows them."""
    height, width = facts["size_px"]
    changed = {
        "size_px": f"{height}x{width}",
        "mm_per_px": facts["mm_per_px"] and f"{facts['mm_per_px']:.6g}",
        **{name: "-".join(map(str, facts[name])) for name in ("left_half_x_px", "right_half_x_px")},
        "film_px_per_half_px": f"{facts['film_px_per_half_px']:.3f}",
    }
    return {name: str(value or NOTHING) for name, value in (facts | changed).items()}


def _print(values: dict[str, str], *, first: bool) -> None:
    if sys.stdout.isatty():
        lines = [f"{name:<20} {value}" for name, value in values.items()]
        typer.echo("\n".join([*lines, ""]))
        return
    if first:  # then one line per film, for grep and cut
        typer.echo("\t".join(values))
    typer.echo("\t".join(values.values()))
