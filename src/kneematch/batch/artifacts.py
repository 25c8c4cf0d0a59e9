"""Files made from the pixels of films that are done: overlays, crops and DICOM objects."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Protocol

from kneematch.batch.config import CROP_PRESETS, DetectConfig
from kneematch.batch.journal import Row
from kneematch.detection.detection import Detection
from kneematch.errors import FilmError
from kneematch.io.atomic import make_folder
from kneematch.io.radiograph import Radiograph
from kneematch.io.read import read_isolated, unexpected
from kneematch.io.run_folder import CROPS, DICOM, OVERLAYS
from kneematch.parallel import WorkerDied, map_in_workers

if TYPE_CHECKING:
    from PIL import Image

    from kneematch.detection.crop import CropSize


class Artifact(Protocol):
    """One kind of file; it is sent to worker processes."""

    def paths(self, name: str, row: Row) -> list[Path]:
        """Return the files of a film, whose file names begin with `name`."""
        ...

    def make(self, film: Radiograph, name: str, row: Row) -> str | None:
        """Write them, each whole or not at all; return why one is missing."""
        ...


@dataclass(frozen=True, slots=True)
class Overlays:
    """A picture of each film with its detections."""

    folder: Path

    def paths(self, name: str, row: Row) -> list[Path]:
        """Return the one file of a film."""
        return [self.folder / f"{name}.png"]

    def make(self, film: Radiograph, name: str, row: Row) -> str | None:
        """Draw and save it."""
        from kneematch.detection.overlay import draw_detections
        from kneematch.io.write import save_picture

        save_picture(draw_detections(film, row.knees), self.paths(name, row)[0])
        return None


@dataclass(frozen=True, slots=True)
class Crops:
    """A picture of each knee."""

    folder: Path
    size: "CropSize"

    def paths(self, name: str, row: Row) -> list[Path]:
        """Return one file per knee."""
        from kneematch.export.tables import crop_name

        return [self.folder / crop_name(name, knee.side) for knee in row.knees]

    def make(self, film: Radiograph, name: str, row: Row) -> str | None:
        """Cut and save them."""
        from kneematch.detection.crop import assumed_spacing, cut, place
        from kneematch.io.write import write_png16

        for knee, path in zip(row.knees, self.paths(name, row), strict=True):
            write_png16(path, cut(film, place(knee, self.size, assumed_spacing(row.knees))))
        return None


@dataclass(frozen=True, slots=True)
class DicomObjects:
    """A structured report, a presentation state and a secondary capture of each DICOM film."""

    folder: Path

    def paths(self, name: str, row: Row) -> list[Path]:
        """Return the capture, which is written last; nothing for films that are not DICOM."""
        from kneematch.export.dicom import PICTURE
        from kneematch.io.read import is_dicom

        if not row.knees or not is_dicom(row.film):
            return []
        return [self.folder / f"{name}-{PICTURE}.dcm"]

    def make(self, film: Radiograph, name: str, row: Row) -> str | None:
        """Write those that the film's header allows."""
        from kneematch.export.dicom import export_dicom

        return export_dicom(row.film, film, row.knees, self.folder, name) or None


def requested_artifacts(config: DetectConfig, out: Path) -> list[Artifact]:
    """Return the kinds of files that are asked for, and make their folders."""
    artifacts: dict[str, Artifact] = {}
    if config.overlays:
        artifacts[OVERLAYS] = Overlays(out / OVERLAYS)
    if config.crops:
        artifacts[CROPS] = Crops(out / CROPS, crop_size(config))
    if "dicom" in config.export:
        artifacts[DICOM] = DicomObjects(out / DICOM)
    for folder in artifacts:
        make_folder(out / folder)
    return list(artifacts.values())


def crop_size(config: DetectConfig) -> "CropSize":
    """Return the size of crops; what is not given is CropSize's default."""
    from kneematch.detection.crop import CropSize

    given = {"mm": config.crop_mm, "spacing_mm": config.crop_spacing, "px": config.crop_px}
    if config.crop_preset is not None:
        mm, pixels = CROP_PRESETS[config.crop_preset]
        given |= {"mm": mm, "spacing_mm": mm / pixels}
    sizes = {name: value for name, value in given.items() if value is not None}
    return CropSize(**sizes, mirror=config.mirror)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, eq=False)
class Missing:
    """A film, and the kinds of files that it lacks."""

    name: str
    row: Row
    artifacts: tuple[Artifact, ...]


def missing_artifacts(
    rows: Iterable[Row], names: Sequence[str], artifacts: Sequence[Artifact], *, since: float
) -> Iterator[Missing]:
    """Yield films with detections that lack files.

    Args:
        rows: films and their detections.
        names: the beginning of file names, by the index of the film.
        artifacts: kinds of files.
        since: files older than this, in seconds of the epoch, belong to an earlier run.
    """
    for row in rows:
        name = names[row.index]
        lacking = tuple(
            artifact
            for artifact in artifacts
            if not all(_is_new(path, since) for path in artifact.paths(name, row))
        )
        if row.knees and lacking:
            yield Missing(name, row, lacking)


def make_artifacts(films: Iterable[Missing], *, workers: int) -> Iterator[str | None]:
    """Make the missing files; yield for every film why one could not be made, or None."""
    with closing(map_in_workers(_make, films, workers=workers)) as results:
        for film, reason in results:
            died = isinstance(reason, WorkerDied)
            yield f"{film.row.film}: {reason}" if died else reason  # type: ignore[misc]


def draw_films(
    films: Sequence[tuple[str, tuple[Detection, ...]]],
    *,
    longest_px: int,
    reasons: bool,
    workers: int,
) -> "dict[str, Image.Image]":
    """Draw a few films with their detections, by path; those that cannot be drawn are left out."""
    draw = partial(_draw, longest_px=longest_px, reasons=reasons)
    processes = min(workers, len(films))
    with closing(map_in_workers(draw, films, workers=processes)) as drawn:
        return {
            film: picture
            for (film, _), picture in drawn
            if picture is not None and not isinstance(picture, WorkerDied)
        }


def distinct_names(films: Sequence[str]) -> list[str]:
    """Return a file name for each film: its own without suffix, made distinct by a number."""
    names: list[str] = []
    counts: dict[str, int] = {}  # without these, a million films called 001 would take hours
    taken: set[str] = set()
    for film in films:
        stem = PurePath(film).stem or "film"
        name, count = stem, counts.get(stem.casefold(), 1)
        while name.casefold() in taken:  # some file systems ignore case
            count += 1
            name = f"{stem}-{count}"
        counts[stem.casefold()] = count
        taken.add(name.casefold())
        names.append(name)
    return names


def _is_new(path: Path, since: float) -> bool:
    try:
        return path.stat().st_mtime >= since
    except OSError:
        return False


def _make(missing: Missing) -> str | None:
    """Make the files of one film; return why one could not be made."""
    film = missing.row.film
    try:
        pixels = read_isolated(film)
        made = [each.make(pixels, missing.name, missing.row) for each in missing.artifacts]
    except (FilmError, OSError) as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - one picture must not stop the others
        return str(unexpected(film, error))
    return "; ".join(reason for reason in made if reason) or None


def _draw(
    found: tuple[str, tuple[Detection, ...]], *, longest_px: int, reasons: bool
) -> "Image.Image | None":
    from kneematch.detection.overlay import draw_detections

    film, knees = found
    try:
        pixels = read_isolated(film)
    except FilmError:  # it was there a moment ago, and has its rows
        return None
    return draw_detections(pixels, knees, longest_px=longest_px, thumbnail=True, reasons=reasons)
