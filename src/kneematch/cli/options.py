"""Options that mean the same to several commands."""

from pathlib import Path
from typing import Annotated

import typer

OutFolder = Annotated[Path, typer.Option("-o", "--out", help="Folder to make and fill.")]
ModelFile = Annotated[str | None, typer.Option(metavar="FILE", help="What `kneematch train` made.")]
TemplateFile = Annotated[str | None, typer.Option(metavar="JSON", help="The annotated knee.")]
Paper = Annotated[
    bool, typer.Option("--paper", help="Lower the energy as printed, not the robust one.")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")]
BatchSize = Annotated[int | None, typer.Option(min=1, help="Films searched at once.")]
Workers = Annotated[
    int | None, typer.Option(min=0, help="Processes that read films; else by the cores.")
]
Series = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Only DICOM of a series so described.")
]
Limit = Annotated[int | None, typer.Option(min=1, help="Only the first films.")]
Force = Annotated[bool, typer.Option("--force", help="Start over in the same folder.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say only what failed.")]
