"""`kneematch info`, `import-template` and `synth`: films and templates, before a run."""

import json
import math
import re
import sys
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kneematch.cli.options import TemplateFile, config_options
from kneematch.cli.terminal import FAILED, SOME_FAILED, print_error, progress_bar, shown, writing
from kneematch.errors import KneematchError, NotARadiograph, SettingsError
from kneematch.films.files import make_out_folder, refuse_existing
from kneematch.knee.import_config import ImportConfig
from kneematch.options import check_options, force_option, option, workers_option
from kneematch.parallel import choose_workers

if TYPE_CHECKING:
    from kneematch.films.radiograph import Radiograph

NOTHING: Final = "-"  # the file does not say
MOST_COLUMNS: Final = 6  # columns of a contact sheet
PICTURE_DEPTHS: Final = {"L": "8 bits", "I;16": "16 bits", "I;16B": "16 bits", "I": "32 bits"}
FORMATS: Final = ("dicom", "png")  # as kneephantoms has them
FRAMINGS: Final = (
    *("bilateral", "single", "full_leg", "offcentre", "lateral", "other"),
    *("knee", "wide", "leg", "fill", "low", "any"),
)

_films = partial(option, group="Films")


def parse_size(text: str) -> tuple[int, int]:
    """Return the height and width written as HxW."""
    match = re.fullmatch(r"(\d{1,9})[xX](\d{1,9})", text)
    if match is None:
        raise SettingsError(
            f"--size {text}: not a size. Write height and width in pixels as 1024x820."
        )
    return int(match[1]), int(match[2])


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
    from kneematch.films.pictures import check_picture_path, save_picture
    from kneematch.run.outputs.contact_sheet import contact_sheet, draw_split

    if preview is not None:
        check_picture_path(preview, files)
    pictures, facts = [], []
    for path in files:
        try:
            film, found = describe_film(path)
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


def describe_film(path: Path) -> tuple["Radiograph", dict[str, Any]]:
    """Read a film, and return it with what its file stores and where it would be split.

    Raises:
        FilmError: as `read`.
    """
    from kneematch.films.read import read_isolated
    from kneematch.knee.knee_images import film_tensor
    from kneematch.paper.split import split, split_lines

    film = read_isolated(path)
    kind, stored = _storage(path)
    try:
        axis, (left, right) = split_lines(film_tensor(film))
    except NotARadiograph as error:
        raise NotARadiograph(f"{path}: {error}") from error
    halves = split(film_tensor(film), axis=axis)
    scale = float(halves.to_film[0, 1, 1]) * 2 / halves.size[0]
    return film, {
        "kind": kind,  # "DICOM", "PNG", "JPEG" or "TIFF"
        "size_px": list(film.size),
        "stored": stored,  # "12 of 16 bits", "8 bits", ...
        "mm_per_px": film.mm_per_px,
        "spacing_tag": film.spacing_tag,
        "laterality": film.laterality,
        "view": film.view,
        "series": film.series,
        "polarity_tag": film.polarity_tag,
        "axis_x_px": round(axis, 1),
        "left_half_x_px": list(left),
        "right_half_x_px": list(right),
        "film_px_per_half_px": round(scale, 3),  # above 1 the halves hold less detail
    }


def _storage(path: Path) -> tuple[str, str]:
    """Return the kind of a film's file, and the bits of its pixels in words."""
    from PIL import Image

    from kneematch.films.dicom import header_number
    from kneematch.films.radiograph import decoding, silent
    from kneematch.films.read import read_header

    tags = ("BitsStored", "BitsAllocated")
    header = read_header(path, *tags)
    if header is not None:
        bits = (header_number(header, tag) for tag in tags)
        return "DICOM", " of ".join("?" if n is None else f"{n:g}" for n in bits) + " bits"
    with silent(), decoding(path, "picture"), Image.open(path) as image:
        return image.format or "picture", PICTURE_DEPTHS.get(image.mode, image.mode)


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


@dataclass(frozen=True)
class SynthOptions:
    """Options of `kneematch synth`; kneephantoms, which has settings of its own, imports torch."""

    count: int = _films(
        100, flags=("-n", "--count"), metavar="N", minimum=1, help="Number of films."
    )
    format: str = _films("dicom", choices=FORMATS, help="File format.")
    size: tuple[int, int] | None = _films(
        None,
        parser=parse_size,
        metavar="HxW",
        help="Height and width of every film in pixels.",
        default_text="as usual for the kind",
    )
    seed: int = _films(
        0,
        metavar="N",
        minimum=0,
        help="Random seed of the first film; each film has the seed after the previous one.",
    )
    family: int | None = _films(
        None,
        metavar="N",
        minimum=0,
        help="Draw all films from one family N of people with similar bones.",
        default_text="the whole population",
    )
    framing: str = _films(
        "bilateral",
        choices=FRAMINGS,
        help="What the films show: both knees, around the knees (knee), wide, to the ankle "
        "(leg), filling the film (fill) or in low resolution (low), or a mixture of these "
        "(bilateral); one knee (single); hip to ankle (full_leg); a film in a screenshot "
        "(offcentre); a knee from the side, perhaps beside a frontal one (lateral); other "
        "parts of the body (other); or any of all these.",
    )
    turn_deg: float = _films(
        0.0, metavar="DEGREES", help="Turn every film clockwise by this angle."
    )
    mirrored: bool = _films(False, help="Mirror every film, with its letters; the header says so.")
    workers: int | None = workers_option()
    force: bool = force_option()

    def __post_init__(self) -> None:
        """Raise SettingsError for values that an option does not have."""
        check_options(self)


@config_options(SynthOptions)
def synth(
    out: Annotated[
        Path, typer.Option("-o", "--out", metavar="FOLDER", help="Folder for the films.")
    ],
    config: SynthOptions,
) -> None:
    """Write synthetic knee films (phantoms), truth.csv with their knees, and a template.json."""
    from kneephantoms import SynthConfig, synthesize  # which import torch

    settings = asdict(config) | {"workers": choose_workers(config.workers, config.count)}
    try:
        made = SynthConfig(**settings)
    except ValueError as error:
        raise SettingsError(str(error)) from error
    make_out_folder(out)
    if any(out.iterdir()) and not config.force:
        refuse_existing(out, "a folder with files")
    try:
        with writing(out), progress_bar("synthesizing", config.count) as advance:
            result = synthesize(out, made, advance=advance)
    except BrokenProcessPool as error:
        raise SettingsError(
            f"{out}: a worker process ended, perhaps for lack of memory. Choose fewer --workers."
        ) from error
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
