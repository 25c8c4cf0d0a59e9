"""Files made from the pixels of films that are done: overlays, crops and DICOM objects."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, astuple, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kneematch.errors import FilmError
from kneematch.films.files import make_folder
from kneematch.films.radiograph import Radiograph
from kneematch.films.read import is_dicom, read_isolated, to_film_error
from kneematch.films.run_folder import CROPS, DICOM, LANDMARKS, OVERLAYS
from kneematch.knee.crop import CropSize, assumed_spacing, cut, place
from kneematch.knee.detection import Detection
from kneematch.paper.split import SIDES
from kneematch.parallel import WorkerDied, map_in_workers
from kneematch.progress import Advance, Progress
from kneematch.run.config import CROP_PRESETS, DetectConfig
from kneematch.run.journal import Journal
from kneematch.run.outputs.annotations import landmark_files
from kneematch.run.outputs.tables import crop_name
from kneematch.run.row import Row

if TYPE_CHECKING:
    from PIL import Image


NOTED_TOGETHER: Final = 64  # films whose files are noted in the journal at once


def dicom_files(name: str) -> dict[str, str]:
    """Return the three DICOM objects of a film."""
    from kneematch.run.outputs.dicom import PICTURE, REPORT, STATE  # imports pydicom, which is slow

    return {f"{name}-{ending}.dcm": "" for ending in (REPORT, STATE, PICTURE)}


# The names of all files that a film may have, by kind, given the name of the film; with the side of
# the knee that each shows, or "" for the whole film.
FILES: Final[dict[str, Callable[[str], dict[str, str]]]] = {
    OVERLAYS: lambda name: {f"{name}.png": ""},
    CROPS: lambda name: {crop_name(name, side): side for side in SIDES},
    DICOM: dicom_files,
    LANDMARKS: landmark_files,
}


@dataclass(frozen=True, slots=True)
class Artifact:
    """One kind of files that are made of films; it is sent to worker processes."""

    kind: str  # OVERLAYS, CROPS or DICOM, the name of the folder
    folder: Path
    crop_size: CropSize | None = None  # of crops

    def content_hash(self, row: Row) -> int:
        """Return a hash of what a film's files are made of; 0 for no files."""
        if not row.knees:
            return 0
        content: object = [knee.to_dict() for knee in row.knees]
        if self.crop_size is not None:
            areas = [(knee.side, knee.corners.tolist(), knee.mm_per_px) for knee in row.knees]
            content = areas, asdict(self.crop_size)
        version = row.version and (row.version.sha256 or astuple(row.version)[:2])
        text = json.dumps([version, content])
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) or 1

    def is_complete(self, name: str, row: Row) -> bool:
        """Return whether all files are there; a film that is not DICOM has no DICOM objects."""
        sides = _sides(row)
        expected = (file for file, side in FILES[self.kind](name).items() if side in sides)
        return all((self.folder / file).exists() for file in expected) or (
            self.kind == DICOM and _is_picture(Path(row.film))
        )

    def make(self, film: Radiograph, name: str, row: Row) -> str | None:
        """Write the files, each whole or not at all; return why one is missing."""
        from kneematch.films.write import save_picture, write_png16

        if self.kind == OVERLAYS:
            from kneematch.knee.overlay import draw_detections

            save_picture(draw_detections(film, row.knees), self.folder / f"{name}.png")
        elif self.crop_size is not None:
            assumed = assumed_spacing(row.knees)
            for knee in row.knees:
                path = self.folder / crop_name(name, knee.side)
                write_png16(path, cut(film, place(knee, self.crop_size, assumed)))
        elif is_dicom(row.film):
            from kneematch.run.outputs.dicom import export_dicom

            return export_dicom(row.film, film, row.knees, self.folder, name) or None
        return None


def requested_artifacts(config: DetectConfig, out: Path) -> list[Artifact]:
    """Return the kinds of files that are asked for, and make their folders."""
    artifacts = []
    if config.overlays:
        artifacts.append(Artifact(OVERLAYS, out / OVERLAYS))
    if config.crops:
        artifacts.append(Artifact(CROPS, out / CROPS, crop_size(config)))
    if "dicom" in config.export:
        artifacts.append(Artifact(DICOM, out / DICOM))
    for artifact in artifacts:
        make_folder(artifact.folder)
    return artifacts


def count_other_files(journal: Journal, folder: Path) -> tuple[int, int]:
    """Return how many films with knees are not DICOM, and so have no DICOM objects in a folder.

    The second number is that of all films with knees.
    """
    others = films = 0
    for row in journal.rows():
        if row.knees:
            names = dicom_files(journal.names[row.index])
            made = any((folder / file).exists() for file in names)
            others += not made and _is_picture(journal.root / row.film)
            films += 1
    return others, films


def _is_picture(film: Path) -> bool:
    """Return whether a film can be read, and is not DICOM."""
    try:
        return not is_dicom(film)
    except FilmError:
        return False


def crop_size(config: DetectConfig) -> CropSize:
    """Return the size of crops; what is not given is CropSize's default."""
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
    contents: dict[Artifact, int]  # hashes of what these files are to be made of

    def hashes(self) -> dict[str, int]:
        """Return the hashes by kind, as the journal has them."""
        return {artifact.kind: content for artifact, content in self.contents.items()}


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
        films = _outdated(journal, artifacts, advance)
        with closing(map_in_workers(_make, films, workers=workers)) as results:
            for film, result in results:
                if isinstance(result, OSError):  # no other file can be written either
                    raise result
                if result is None:
                    made.append((film.row.index, film.hashes()))
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
    journal: Journal, artifacts: Sequence[Artifact], advance: Advance
) -> Iterator[Outdated]:
    """Yield films with outdated files, once the journal says so; advance past the others."""
    group: list[Outdated] = []
    for found in journal.rows():
        row = replace(found, film=str(journal.root / found.film))
        name = journal.names[row.index]
        contents = {
            artifact: content
            for artifact in artifacts
            if (content := artifact.content_hash(row)) != journal.made(artifact.kind, row.index)
            or (row.knees and not artifact.is_complete(name, row))
        }
        if contents:
            group.append(Outdated(name, row, contents))
        else:
            advance("")
        if len(group) >= NOTED_TOGETHER:
            yield from _mark_outdated(journal, group)
            group = []
    yield from _mark_outdated(journal, group)


def _mark_outdated(journal: Journal, group: list[Outdated]) -> list[Outdated]:
    """Write down that files are outdated before they are made again, and return their films.

    After a kill in between, it is unknown what they were made of.
    """
    journal.note_made(
        (film.row.index, dict.fromkeys(film.hashes(), 0))
        for film in group
        if any(journal.made(kind, film.row.index) for kind in film.hashes())
    )
    return group


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
    sides = _sides(row)
    try:
        for artifact in film.contents:
            for file, side in FILES[artifact.kind](name).items():
                if side not in sides:  # of a knee that is no longer there
                    (artifact.folder / file).unlink(missing_ok=True)
        if not row.knees:
            return None
        pixels = read_isolated(row.film)
        made = [each.make(pixels, name, row) for each in film.contents]
    except OSError as error:
        return error
    except Exception as error:  # noqa: BLE001 - one picture must not stop the others
        return str(to_film_error(row.film, error))
    return "; ".join(reason for reason in made if reason) or None


def _sides(row: Row) -> set[str]:
    """Return the sides that files may show: "" for the whole film; none without a knee."""
    return {"", *(knee.side for knee in row.knees)} if row.knees else set()


def _draw(
    found: tuple[str, tuple[Detection, ...]], *, root: Path, longest_px: int, reasons: bool
) -> "Image.Image | None":
    from kneematch.knee.overlay import draw_detections

    film, knees = found
    try:
        pixels = read_isolated(root / film)
        return draw_detections(
            pixels, knees, longest_px=longest_px, thumbnail=True, reasons=reasons
        )
    except Exception:  # noqa: BLE001 - the film has its rows; a report can do without its picture
        return None
