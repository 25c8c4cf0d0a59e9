"""Files that are made of a film in its visit: overlays, crops and DICOM objects."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

from PIL import Image

from kneematch.films.files import CROPS, DICOM, OVERLAYS, make_folder
from kneematch.films.pictures import save_picture, write_png16
from kneematch.films.radiograph import Radiograph
from kneematch.films.read import is_dicom, to_film_error
from kneematch.knee.crop import CropSize, assumed_spacing, cut, place
from kneematch.knee.detection import AREA_SIDES
from kneematch.knee.overlay import draw_detections
from kneematch.run.config import DICOM_OBJECTS, DetectConfig
from kneematch.run.film_record import FILES, NO_KNEE, SETTINGS, FilmRecord, Made

# Endings of the names of DICOM objects, by kind
DICOM_ENDINGS: Final = dict(zip(DICOM_OBJECTS, ("report", "picture", "segments"), strict=True))
# Endings of the names of all files that a film may have, by kind
ENDINGS: Final = {
    OVERLAYS: [".jpg"],
    CROPS: ["-R.png", "-L.png", *(f"-image-{side}.png" for side in AREA_SIDES)],
    DICOM: [f"-{ending}.dcm" for ending in DICOM_ENDINGS.values()],
}

Written = tuple[list[str], str]  # names of files, and why one is missing or ""


@dataclass(frozen=True, eq=False)
class VisitedFilm:
    """A film, its pixels and what was found on it, from which its files are made."""

    film: FilmRecord
    pixels: Radiograph
    path: Path  # the film's file

    @cached_property
    def picture(self) -> Image.Image:
        """The film with all areas, as the overlay shows it, and mostly the secondary capture."""
        return draw_detections(self.pixels, self.film.kept)


@dataclass(frozen=True, slots=True)
class Artifact:
    """One kind of files, and how they are made."""

    kind: str  # one of FOLDERS
    settings: dict[str, Any]  # JSON values that the files depend on, besides the film and its knees
    # Writes a film's files to a folder, each whole or not at all.
    write: Callable[[VisitedFilm, Path], Written]


def requested_artifacts(config: DetectConfig, out: Path) -> list[Artifact]:
    """Return the kinds of files that are asked for, and make their folders."""
    artifacts = []
    magnification = {"magnification": config.magnification} if config.magnification else {}
    if config.overlays:
        artifacts.append(Artifact(OVERLAYS, magnification, _write_overlay))
    if config.crops:
        size = config.crop_size()
        write = partial(_write_crops, size=size)
        artifacts.append(Artifact(CROPS, asdict(size), write))
    if kinds := config.dicom_objects():
        write = partial(_write_dicom, kinds=kinds)
        artifacts.append(Artifact(DICOM, {"kinds": kinds, **magnification}, write))
    for artifact in artifacts:
        make_folder(out / artifact.kind)
    return artifacts


def crop_names(film: FilmRecord) -> dict[str, str]:
    """Return the file names of a film's crops, by the half of the picture that each shows.

    They end in R or L where the patient's side is known, and in image-left or image-right where it
    is not, or where both knees are said to be of the same side.
    """
    names = {}
    known = [knee.laterality for knee in film.kept]
    for knee in film.kept:
        is_distinct = knee.laterality and known.count(knee.laterality) == 1
        end = knee.laterality if is_distinct else f"image-{knee.side}"
        names[knee.side] = f"{film.name}-{end}.png"
    return names


def possible_files(kind: str, name: str) -> set[str]:
    """Return the names of all files of a kind that a film may have."""
    return {f"{name}{ending}" for ending in ENDINGS.get(kind, ())}


def make_files(
    artifacts: Sequence[Artifact],
    pixels: Radiograph | None,
    film: FilmRecord,
    out: Path,
    path: Path,
) -> tuple[Made, list[str]]:
    """Make the files of a film that its visit is to make; old ones are removed before.

    Args:
        artifacts: the kinds of files that the run has.
        pixels: the film; None if it cannot be read.
        film: what is known of it.
        out: folder of the run.
        path: the film's file.

    Returns:
        What is made of the film now, and why something is missing.

    Raises:
        OSError: a folder cannot be written to, so that no other file can be either.
    """
    made = {} if film.to_make is None else dict(film.made)
    for kind in film.made if film.to_make is None else ():
        for file in film.made[kind][FILES]:
            (out / kind / file).unlink(missing_ok=True)
    reasons = []
    visited = None if pixels is None else VisitedFilm(film, pixels, path)
    for artifact in artifacts:
        if film.to_make is not None and artifact.kind not in film.to_make:
            continue
        made.pop(artifact.kind, None)
        files: list[str] = []
        reason = ""
        negative = artifact.kind == DICOM and film.status == NO_KNEE and not film.knees
        if (film.kept or negative) and visited is not None:
            try:
                files, reason = artifact.write(visited, out / artifact.kind)
            except OSError:
                raise
            except Exception as error:  # noqa: BLE001 - one picture must not stop the others
                reason = to_film_error(str(path), error).message
        if reason:
            reasons.append(reason)
        if pixels is not None and (files or not reason):
            made[artifact.kind] = {SETTINGS: artifact.settings, FILES: files}
        for file in possible_files(artifact.kind, film.name) - set(files):
            (out / artifact.kind / file).unlink(missing_ok=True)
    return made, reasons


def _write_overlay(visited: VisitedFilm, folder: Path) -> Written:
    name = f"{visited.film.name}.jpg"
    save_picture(visited.picture, folder / name)
    return [name], ""


def _write_crops(visited: VisitedFilm, folder: Path, *, size: CropSize) -> Written:
    film = visited.film
    assumed, names = assumed_spacing(film.kept), crop_names(film)
    for knee in film.kept:
        write_png16(folder / names[knee.side], cut(visited.pixels, place(knee, size, assumed)))
    return list(names.values()), ""


def _write_dicom(visited: VisitedFilm, folder: Path, *, kinds: Sequence[str]) -> Written:
    if not is_dicom(visited.path):  # there is no patient and no study to add to
        return [], ""
    from kneematch.run.outputs.dicom import export_dicom  # imports highdicom, which is slow

    return export_dicom(visited, folder, kinds)
