"""Files made from the pixels of films that are done: overlays, crops and DICOM objects."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, astuple, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

from kneematch.batch.config import CROP_PRESETS, DetectConfig
from kneematch.batch.journal import Journal
from kneematch.batch.row import Row
from kneematch.detection.detection import Detection
from kneematch.errors import FilmError
from kneematch.export.annotations import landmark_files
from kneematch.export.tables import crop_name
from kneematch.geometry.split import SIDES
from kneematch.io.atomic import make_folder
from kneematch.io.radiograph import Radiograph
from kneematch.io.read import read_isolated, unexpected
from kneematch.io.run_folder import CROPS, DICOM, LANDMARKS, OVERLAYS
from kneematch.parallel import WorkerDied, map_in_workers
from kneematch.progress import Progress

if TYPE_CHECKING:
    from PIL import Image

    from kneematch.detection.crop import CropSize


NOTED_TOGETHER: Final = 64  # films whose files are noted in the journal at once


def overlay_files(name: str) -> dict[str, str]:
    """Return the picture of a film."""
    return {f"{name}.png": ""}


def crop_files(name: str) -> dict[str, str]:
    """Return one picture per side."""
    return {crop_name(name, side): side for side in SIDES}


def dicom_files(name: str) -> dict[str, str]:
    """Return the three DICOM objects of a film."""
    from kneematch.export.dicom import PICTURE, REPORT, STATE  # imports pydicom, which is slow

    return {f"{name}-{ending}.dcm": "" for ending in (REPORT, STATE, PICTURE)}


# The names of all files that a film may have, by kind, given the name of the film; with the side of
# the knee that each shows, or "" for the whole film.
FILES: Final[dict[str, Callable[[str], dict[str, str]]]] = {
    OVERLAYS: overlay_files,
    CROPS: crop_files,
    DICOM: dicom_files,
    LANDMARKS: landmark_files,
}


class Artifact(Protocol):
    """One kind of file; it is sent to worker processes."""

    kind: ClassVar[str]  # the name of its folder

    @property
    def folder(self) -> Path:
        """The folder of its files."""
        ...

    def content(self, row: Row) -> object:
        """Return what the files are made of besides the film; JSON can hold it."""
        ...

    def is_complete(self, name: str, row: Row) -> bool:
        """Return whether all files of a film with knees are there."""
        ...

    def make(self, film: Radiograph, name: str, row: Row) -> str | None:
        """Write them, each whole or not at all; return why one is missing."""
        ...


@dataclass(frozen=True, slots=True)
class Overlays:
    """A picture of each film with its detections."""

    folder: Path
    kind: ClassVar[str] = OVERLAYS

    def content(self, row: Row) -> object:
        """Return all that is known of the knees."""
        return [knee.to_dict() for knee in row.knees]

    def is_complete(self, name: str, row: Row) -> bool:
        """Return whether it is there."""
        return (self.folder / f"{name}.png").exists()

    def make(self, film: Radiograph, name: str, row: Row) -> str | None:
        """Draw and save it."""
        from kneematch.detection.overlay import draw_detections
        from kneematch.io.write import save_picture

        save_picture(draw_detections(film, row.knees), self.folder / f"{name}.png")
        return None


@dataclass(frozen=True, slots=True)
class Crops:
    """A picture of each knee."""

    folder: Path
    size: "CropSize"
    kind: ClassVar[str] = CROPS

    def content(self, row: Row) -> object:
        """Return the areas and the size of crops."""
        areas = [(knee.side, knee.corners.tolist(), knee.mm_per_px) for knee in row.knees]
        return areas, asdict(self.size)

    def is_complete(self, name: str, row: Row) -> bool:
        """Return whether every knee has one."""
        return all((self.folder / crop_name(name, knee.side)).exists() for knee in row.knees)

    def make(self, film: Radiograph, name: str, row: Row) -> str | None:
        """Cut and save them."""
        from kneematch.detection.crop import assumed_spacing, cut, place
        from kneematch.io.write import write_png16

        assumed = assumed_spacing(row.knees)
        for knee in row.knees:
            path = self.folder / crop_name(name, knee.side)
            write_png16(path, cut(film, place(knee, self.size, assumed)))
        return None


@dataclass(frozen=True, slots=True)
class DicomObjects:
    """A structured report, a presentation state and a secondary capture of each DICOM film."""

    folder: Path
    kind: ClassVar[str] = DICOM

    def content(self, row: Row) -> object:
        """Return all that is known of the knees."""
        return [knee.to_dict() for knee in row.knees]

    def is_complete(self, name: str, row: Row) -> bool:
        """Return whether they are there, or the film is not DICOM and has none."""
        from kneematch.io.read import is_dicom

        return all((self.folder / file).exists() for file in dicom_files(name)) or (
            Path(row.film).exists() and not is_dicom(row.film)
        )

    def make(self, film: Radiograph, name: str, row: Row) -> str | None:
        """Write those that the film's header allows."""
        from kneematch.export.dicom import export_dicom
        from kneematch.io.read import is_dicom

        if not is_dicom(row.film):
            return None
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


def count_other_files(journal: Journal, folder: Path) -> int:
    """Return how many films with knees are not DICOM, and so have no DICOM objects in a folder."""
    from kneematch.io.read import is_dicom

    return sum(
        not any((folder / file).exists() for file in dicom_files(journal.names[row.index]))
        and (journal.root / row.film).exists()
        and not is_dicom(journal.root / row.film)
        for row in journal.rows()
        if row.knees
    )


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
class Outdated:
    """A film whose files are missing, or were made of something else."""

    name: str
    row: Row
    artifacts: tuple[Artifact, ...]  # the kinds of these files
    contents: dict[str, int]  # what they are to be made of, by kind


def update_artifacts(
    journal: Journal, artifacts: Sequence[Artifact], *, workers: int, progress: Progress
) -> list[str]:
    """Make the files that are missing or outdated; return why some could not be made.

    The journal holds of what the files were made: the version of the film, the areas and the
    settings. So a file is outdated if any of these has changed, whatever its date.
    """
    if not artifacts:
        return []
    reasons: list[str] = []
    made: list[tuple[int, dict[str, int]]] = []
    kinds = ", ".join(artifact.kind for artifact in artifacts)
    with progress(f"writing {kinds}", journal.count) as advance:
        films = _outdated(journal, artifacts, lambda: advance(""))
        with closing(map_in_workers(_make, films, workers=workers)) as results:
            for film, result in results:
                if isinstance(result, OSError):  # no other file can be written either
                    raise result
                if result is None:
                    made.append((film.row.index, film.contents))
                else:
                    died = isinstance(result, WorkerDied)
                    reasons.append(f"{film.row.film}: {result}" if died else str(result))
                if len(made) >= NOTED_TOGETHER:
                    journal.note_made(made)
                    made.clear()
                advance("")
    journal.note_made(made)
    return reasons


def _outdated(
    journal: Journal, artifacts: Sequence[Artifact], skip: Callable[[], None]
) -> Iterator[Outdated]:
    """Yield films with files to be made, after the journal has been told so; skip the others."""
    group: list[Outdated] = []
    for found in journal.rows():
        row = replace(found, film=str(journal.root / found.film))
        contents = {each.kind: _content(each, row) for each in artifacts}
        name = journal.names[row.index]
        chosen = tuple(
            artifact
            for artifact in artifacts
            if journal.made(artifact.kind, row.index) != contents[artifact.kind]
            or (row.knees and not artifact.is_complete(name, row))
        )
        if chosen:
            wanted = {artifact.kind: contents[artifact.kind] for artifact in chosen}
            group.append(Outdated(name, row, chosen, wanted))
        else:
            skip()
        if len(group) >= NOTED_TOGETHER:
            yield from _announced(journal, group)
            group = []
    yield from _announced(journal, group)


def _announced(journal: Journal, group: list[Outdated]) -> list[Outdated]:
    """Note that the files are made again: after a kill, nobody knows of what they are made."""
    journal.note_made(
        (film.row.index, dict.fromkeys(film.contents, 0))
        for film in group
        if any(journal.made(kind, film.row.index) for kind in film.contents)
    )
    return group


def _content(artifact: Artifact, row: Row) -> int:
    """Return a number for what the files of a film are made of; 0 for no files."""
    if not row.knees:
        return 0
    version = row.version and (row.version.sha256 or astuple(row.version)[:2])
    text = json.dumps([version, artifact.content(row)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) or 1


def draw_films(
    films: Sequence[tuple[str, tuple[Detection, ...]]],
    *,
    root: Path,
    longest_px: int,
    reasons: bool,
    workers: int,
) -> "dict[str, Image.Image]":
    """Draw a few films with their detections, by path; those that cannot be drawn are left out."""
    draw = partial(_draw, root=root, longest_px=longest_px, reasons=reasons)
    processes = min(workers, len(films))
    with closing(map_in_workers(draw, films, workers=processes)) as drawn:
        return {
            film: picture
            for (film, _), picture in drawn
            if picture is not None and not isinstance(picture, WorkerDied)
        }


def _make(film: Outdated) -> str | OSError | None:
    """Make the files of one film; return why one could not be made."""
    name, row = film.name, film.row
    sides = {"", *(knee.side for knee in row.knees)} if row.knees else set()
    try:
        for artifact in film.artifacts:
            for file, side in FILES[artifact.kind](name).items():
                if side not in sides:  # of a knee that is no longer there
                    (artifact.folder / file).unlink(missing_ok=True)
        if not row.knees:
            return None
        pixels = read_isolated(row.film)
        made = [each.make(pixels, name, row) for each in film.artifacts]
    except FilmError as error:
        return str(error)
    except OSError as error:
        return error
    except Exception as error:  # noqa: BLE001 - one picture must not stop the others
        return str(unexpected(row.film, error))
    return "; ".join(reason for reason in made if reason) or None


def _draw(
    found: tuple[str, tuple[Detection, ...]], *, root: Path, longest_px: int, reasons: bool
) -> "Image.Image | None":
    from kneematch.detection.overlay import draw_detections

    film, knees = found
    try:
        pixels = read_isolated(root / film)
    except FilmError:  # it was there a moment ago, and has its rows
        return None
    return draw_detections(pixels, knees, longest_px=longest_px, thumbnail=True, reasons=reasons)
