"""Write folders of phantoms with their ground truth, for demonstrations, tests and training."""

import os
import re
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from kneematch.errors import SettingsError, TemplateError
from kneematch.films.annotation import PLATEAU_MARGINS, Annotation, annotate, save_annotation
from kneematch.films.csv_text import write_csv
from kneematch.films.files import make_out_folder, refuse_existing
from kneematch.films.limits import MAX_PIXELS
from kneematch.films.read import read
from kneematch.films.write import write_dicom, write_png16
from kneematch.knee.knee_images import SMALLEST_FILM
from kneematch.knee.template import cut_template
from kneematch.parallel import WorkerDied, choose_workers, map_in_workers
from kneematch.progress import Progress, no_progress
from kneephantoms.config import SynthConfig
from kneephantoms.phantom import Knee, Phantom, phantom

TRUTH: Final = "truth.csv"
TEMPLATE: Final = "template.json"
SUFFIXES: Final = {"dicom": ".dcm", "png": ".png"}
OWN_FILES: Final = re.compile(r"phantom-\d{5,}\.(dcm|png)|truth\.csv|template\.json")
PREFERRED_GRADE: Final = 2  # the highest KL grade of a typical knee

OPPOSITE: Final = {"L": "R", "R": "L", "F": "H", "H": "F"}  # directions of the patient

POINTS: Final = (*PLATEAU_MARGINS, "centre")
TRUTH_COLUMNS: Final = (
    *("film", "side", "laterality", *(f"{point}_{axis}_px" for point in POINTS for axis in "xy")),
    *("rotation_deg", "mm_per_px", "grade", "negative", "implant"),
)

TruthRow = dict[str, str]


@dataclass(frozen=True, slots=True)
class SynthResult:
    """Files that `synthesize` wrote besides the films."""

    truth: Path
    template: Path | None  # None if no knee can serve as a template


def synthesize(
    out: str | os.PathLike[str],
    config: SynthConfig | None = None,
    *,
    progress: Progress = no_progress,
) -> SynthResult:
    """Write phantoms, their ground truth (a row per frontal knee) and an annotation of one knee.

    Film k is named phantom-0000k and is the phantom of seed + k. The files do not depend on the
    number of workers. Films without a frontal knee have no row.

    Args:
        out: folder, created if missing; must be empty unless `config.force`, which replaces the
            files of an earlier run and keeps all others.
        config: what to write.
        progress: display of the films that are done.

    Raises:
        SettingsError: the folder is not empty, or the films would be too small or too large.
    """
    out, config = Path(out), config or SynthConfig()
    _check_size(config.size)
    _prepare_folder(out, force=config.force)
    films = _write_films(out, config, progress)
    truth, rows = out / TRUTH, [row for index in sorted(films) for row in films[index]]
    with write_csv(truth, TRUTH_COLUMNS) as add:
        for row in rows:
            add(row[column] for column in TRUTH_COLUMNS)
    annotation = find_template(out, rows)
    if annotation is None:
        return SynthResult(truth, None)
    save_annotation(annotation, out / TEMPLATE)
    return SynthResult(truth, out / TEMPLATE)


def find_template(folder: Path, rows: Sequence[TruthRow]) -> Annotation | None:
    """Annotate the first knee of a truth.csv that can serve as a template, best a typical one.

    Returns None if all films are negatives or show implants, or if the boxes of every knee leave
    its half of the film.
    """
    typical = [row for row in rows if row["negative"] == "0" and not row["implant"]]
    for row in sorted(typical, key=lambda row: int(row["grade"]) > PREFERRED_GRADE):
        left, right = sorted(
            (float(row[f"{name}_x_px"]), float(row[f"{name}_y_px"])) for name in PLATEAU_MARGINS
        )
        annotation = annotate(folder / row["film"], row["side"], left, right)
        try:
            film = read(annotation.film)
            for box in ("fine", "coarse"):
                cut_template(film, annotation, box)
        except TemplateError:
            continue
        return annotation
    return None


def _check_size(size: tuple[int, int] | None) -> None:
    if size is None:
        return
    height, width = size
    if min(height, width) < SMALLEST_FILM or height * width > MAX_PIXELS:
        raise SettingsError(
            f"films of {height} x {width} pixels; expected at least {SMALLEST_FILM} a side and at "
            f"most {MAX_PIXELS} in all; choose another size"
        )


def _prepare_folder(folder: Path, *, force: bool) -> None:
    """Create the folder, or remove the files of an earlier run from it."""
    make_out_folder(folder)
    names = sorted(entry.name for entry in folder.iterdir())
    if names and not force:
        refuse_existing(folder, f"a folder with files ({names[0]})")
    for name in filter(OWN_FILES.fullmatch, names):
        (folder / name).unlink()


def _write_films(
    folder: Path, config: SynthConfig, progress: Progress
) -> dict[int, list[TruthRow]]:
    """Write the films and return the rows of the truth of each, by the film's number."""
    write = partial(_write_film, folder, config)
    workers = choose_workers(config.workers, config.count)
    rows = {}
    with (
        progress("synthesizing", config.count) as advance,
        closing(map_in_workers(write, range(config.count), workers=workers)) as films,
    ):
        for index, result in films:
            if isinstance(result, OSError):
                raise result
            if isinstance(result, WorkerDied):
                raise SettingsError(
                    f"{folder}: the process that wrote film {index} ended (exit code "
                    f"{result.exit_code}); expected enough memory; choose fewer --workers"
                )
            rows[index] = result
            advance(_film_name(config, index))
    return rows


def _write_film(folder: Path, config: SynthConfig, index: int) -> list[TruthRow] | OSError:
    """Write a film; return its rows of the truth, or why it cannot be written."""
    seed = config.seed + index
    names = "size", "family", "framing", "turn_deg", "mirrored"
    made = phantom(seed, **{name: getattr(config, name) for name in names})
    film, path = made.radiograph, folder / _film_name(config, index)
    try:
        if config.format == "png":
            write_png16(path, film.pixels)
        else:
            write_dicom(
                path,
                film.pixels,
                mm_per_px=film.mm_per_px,
                laterality=film.laterality,
                view=film.view,
                series=film.series,
                orientation=_orientation(config),
                entropy=f"kneematch phantom {seed} {replace(config, count=1, workers=None)}",
            )
    except OSError as error:  # an exception would end the worker
        return error
    return [_truth_row(path.name, made, knee) for knee in made.knees]


def _orientation(config: SynthConfig) -> tuple[str, str]:
    """Return the patient's directions along the rows and down the columns of the pictures.

    They are those of the nearest number of quarter turns.
    """
    across, down = "R" if config.mirrored else "L", "F"
    for _ in range(round(config.turn_deg / 90) % 4):
        across, down = OPPOSITE[down], across
    return across, down


def _film_name(config: SynthConfig, index: int) -> str:
    return f"phantom-{index:05d}{SUFFIXES[config.format]}"


def _truth_row(name: str, made: Phantom, knee: Knee) -> TruthRow:
    points = {
        f"{point}_{axis}_px": f"{value:.4f}"
        for point in POINTS
        for axis, value in zip("xy", getattr(knee, point), strict=True)
    }
    return {
        "film": name,
        "side": knee.side,
        "laterality": knee.laterality,
        **points,
        "rotation_deg": f"{knee.rotation_deg:.4f}",
        "mm_per_px": f"{made.radiograph.mm_per_px:.6f}",
        "grade": str(knee.grade),
        "negative": str(int(made.negative)),
        "implant": knee.implant,
    }
