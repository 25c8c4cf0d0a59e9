"""Files that are made of a film in its visit: overlays, crops, DICOM objects and landmarks."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from kneematch.films.files import make_folder
from kneematch.films.radiograph import Radiograph
from kneematch.films.read import is_dicom, to_film_error
from kneematch.films.run_folder import CROPS, DICOM, LANDMARKS, OVERLAYS
from kneematch.films.shapes import MARKUPS, POINTS, write_markups, write_points
from kneematch.films.write import save_picture, write_png16
from kneematch.knee.crop import CropSize, assumed_spacing, cut, place
from kneematch.knee.overlay import draw_detections
from kneematch.paper.split import SIDES
from kneematch.run.config import DetectConfig
from kneematch.run.film_record import FILES, SETTINGS, FilmRecord, Made

REPORT, STATE, PICTURE = DICOM_ENDINGS = ("report", "state", "picture")
LANDMARK_SUFFIXES: Final = {"markups": MARKUPS, "pts": POINTS}

Written = tuple[list[str], str]  # names of files, and why one is missing or ""
Write = Callable[[Radiograph, FilmRecord, Path, Path], Written]


@dataclass(frozen=True, slots=True)
class Artifact:
    """One kind of files, and how they are made."""

    kind: str  # OVERLAYS, CROPS, DICOM or LANDMARKS, the name of the folder
    folder: Path
    settings: dict[str, Any]  # JSON values that the files depend on, besides the film and its knees
    write: Write  # writes a film's files to a folder

    def make(self, pixels: Radiograph, film: FilmRecord, path: Path) -> Written:
        """Write the files of a film with knees, each whole or not at all.

        Returns:
            The names of the files, and why one is missing or "".

        Raises:
            OSError: the folder cannot be written to, so that no other file can be either.
        """
        try:
            return self.write(pixels, film, self.folder, path)
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001 - one picture must not stop the others
            return [], str(to_film_error(str(path), error))


def requested_artifacts(config: DetectConfig, out: Path) -> list[Artifact]:
    """Return the kinds of files that are asked for, and make their folders."""
    artifacts = []
    if config.overlays:
        artifacts.append(Artifact(OVERLAYS, out / OVERLAYS, {}, _write_overlay))
    if config.crops:
        size = config.crop_size()
        write = partial(_write_crops, size=size)
        artifacts.append(Artifact(CROPS, out / CROPS, asdict(size), write))
    if "dicom" in config.export:
        artifacts.append(Artifact(DICOM, out / DICOM, {}, _write_dicom))
    if kinds := [kind for kind in LANDMARK_SUFFIXES if kind in config.export]:
        write = partial(_write_landmarks, kinds=kinds)
        artifacts.append(Artifact(LANDMARKS, out / LANDMARKS, {"kinds": kinds}, write))
    for artifact in artifacts:
        make_folder(artifact.folder)
    return artifacts


def crop_name(name: str, side: str) -> str:
    """Return the file name of a crop, given the name of its film among the run's files."""
    return f"{name}-{side}.png"


def possible_files(kind: str, name: str) -> dict[str, str]:
    """Return all files of a kind that a film may have, with the side of the knee each shows.

    The side is "" for files of the whole film.
    """
    if kind == OVERLAYS:
        return {f"{name}.png": ""}
    if kind == CROPS:
        return {crop_name(name, side): side for side in SIDES}
    if kind == DICOM:
        return {f"{name}-{ending}.dcm": "" for ending in DICOM_ENDINGS}
    endings = LANDMARK_SUFFIXES.values()
    return {f"{name}-{side}{ending}": side for side in SIDES for ending in endings}


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
    """
    made = {} if film.to_make is None else dict(film.made)
    for kind in film.made if film.to_make is None else ():
        for file in film.made[kind][FILES]:
            (out / kind / file).unlink(missing_ok=True)
    reasons = []
    for artifact in artifacts:
        if film.to_make is not None and artifact.kind not in film.to_make:
            continue
        made.pop(artifact.kind, None)
        files: list[str] = []
        reason = ""
        if film.kept and pixels is not None:
            files, reason = artifact.make(pixels, film, path)
        if reason:
            reasons.append(reason)
        elif pixels is not None:
            made[artifact.kind] = {SETTINGS: artifact.settings, FILES: files}
        for file in possible_files(artifact.kind, film.name).keys() - set(files):
            (artifact.folder / file).unlink(missing_ok=True)
    return made, reasons


def _write_overlay(pixels: Radiograph, film: FilmRecord, folder: Path, path: Path) -> Written:
    name = f"{film.name}.png"
    save_picture(draw_detections(pixels, film.kept), folder / name)
    return [name], ""


def _write_crops(
    pixels: Radiograph, film: FilmRecord, folder: Path, path: Path, *, size: CropSize
) -> Written:
    assumed, names = assumed_spacing(film.kept), []
    for knee in film.kept:
        names.append(crop_name(film.name, knee.side))
        write_png16(folder / names[-1], cut(pixels, place(knee, size, assumed)))
    return names, ""


def _write_dicom(pixels: Radiograph, film: FilmRecord, folder: Path, path: Path) -> Written:
    if not is_dicom(path):  # there is no patient and no study to add to
        return [], ""
    from kneematch.run.outputs.dicom import export_dicom  # imports highdicom, which is slow

    reason = export_dicom(path, pixels, film.kept, folder, film.name)
    made = [file for file in possible_files(DICOM, film.name) if (folder / file).exists()]
    return made, reason


def _write_landmarks(
    pixels: Radiograph, film: FilmRecord, folder: Path, path: Path, *, kinds: Sequence[str]
) -> Written:
    names = []
    for knee in film.kept:
        for kind in kinds:
            names.append(f"{film.name}-{knee.side}{LANDMARK_SUFFIXES[kind]}")
            if kind == "markups":
                write_markups(folder / names[-1], knee.landmarks, knee.mm_per_px)
            else:
                write_points(folder / names[-1], knee.landmarks)
    return names, ""
