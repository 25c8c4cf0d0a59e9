"""`kneematch import-template`: a template from boxes or landmarks drawn with other programs."""

from pathlib import Path
from typing import Annotated

import typer

from kneematch.cli.options import TemplateFile, config_options
from kneematch.cli.terminal import shown, writing
from kneematch.detection.config import ImportConfig


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
    from kneematch.detection import template_import

    with writing(out):
        drawn = template_import.import_template(file, film, out, config)
    landmarks = ", ".join(drawn.landmarks) or "none"
    typer.echo(f"{shown(out)}: knee in the {drawn.side} half; landmarks: {shown(landmarks)}")
