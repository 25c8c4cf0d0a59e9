"""Visit: all that is done with a film, in one reading of its file.

A worker reads the film once and finds, judges and measures its knees, applies what a reviewer
decided, cuts crops, draws the overlay and the thumbnail, and writes DICOM objects.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from kneematch.errors import FilmError, Unreadable
from kneematch.films.pictures import thumbnail
from kneematch.films.radiograph import LATERALITIES, Radiograph
from kneematch.films.read import read_isolated, to_film_error
from kneematch.knee.body_part import number_areas
from kneematch.knee.decision import apply_decisions
from kneematch.knee.detection import CORRECTED, Detection
from kneematch.run.artifacts import Artifact, make_files, requested_artifacts
from kneematch.run.config import DetectConfig
from kneematch.run.film_record import FAILED, NO_KNEE, OK, SET_ASIDE, UNREADABLE, FilmRecord

if TYPE_CHECKING:
    from kneematch.knee.detector import Detector
    from kneematch.run.searchers import SharedDetector


@dataclass(frozen=True)
class Visit:
    """Visit films with the settings of a run; it is sent to worker processes, which load it."""

    config: DetectConfig
    out: Path
    root: Path = Path()  # folder of films with relative paths
    shared: "SharedDetector | None" = None  # in place of detectors that this process loads

    def __reduce__(self) -> tuple[object, ...]:
        """Send the settings alone, and nothing that was loaded."""
        return Visit, (self.config, self.out, self.root, self.shared)

    @cached_property
    def detectors(self) -> "Mapping[str, Detector | SharedDetector]":
        """The detectors by template, loaded when the first film is searched."""
        return {"": self.shared} if self.shared else self.config.load_detectors()

    @cached_property
    def artifacts(self) -> list[Artifact]:
        """The kinds of files to make."""
        return requested_artifacts(self.config, self.out)

    def __call__(self, films: Sequence[FilmRecord]) -> list[FilmRecord]:
        """Visit a few films; those that a GPU searches together are read together."""
        new = any(not film.status for film in films)
        size = max(each.batch_size for each in self.detectors.values()) if new else 1
        batches = (films[k : k + size] for k in range(0, len(films), size))
        return [record for batch in batches for record in self._visit_batch(batch)]

    def _visit_batch(self, films: Sequence[FilmRecord]) -> Iterator[FilmRecord]:
        read = [self._read(film, reduced=not film.status and self._may_reduce) for film in films]
        pairs = list(zip(films, read, strict=True))
        new = [each for film, each in pairs if not film.status and isinstance(each, Radiograph)]
        results = self._search(new) if new else iter(())
        for film, pixels in pairs:
            if film.status:
                if any(knee.measures is None and not knee.template for knee in film.found):
                    film = replace(film, found=self._measured(pixels, film.found))
                yield self._decide_and_make(film, pixels)
            elif isinstance(pixels, Radiograph):
                found, whole = self._found(film, pixels, next(results))
                yield self._decide_and_make(found, whole, pixels)
            else:
                yield self._decide_and_make(self._failed(film, pixels), pixels)

    @property
    def _needs_whole(self) -> bool:
        """Whether more is done with a film than searching it."""
        return bool(self.artifacts) or self.config.measure

    @property
    def _may_reduce(self) -> bool:
        """Whether all detectors look for whole knees, which a smaller copy of a film shows."""
        return all(each.preparation.whole is None for each in self.detectors.values())

    def _read(self, film: FilmRecord, *, reduced: bool) -> Radiograph | FilmError:
        """Return a film, or a smaller copy of it, or why it cannot be read."""
        path = str(self.root / film.path)
        try:
            if reduced:
                with suppress(Exception):  # reading the film itself tells why
                    return self._read_copy(path)
            return self._read_whole(path)
        except Exception as error:  # noqa: BLE001 - a broken file can raise anything
            return to_film_error(path, error)

    def _read_whole(self, path: str) -> Radiograph:
        return self._completed(read_isolated(path), Path(path).name)

    def _read_copy(self, path: str) -> Radiograph:
        """Return a smaller copy of a film, which reads the film itself if that is needed."""
        film = read_isolated(path, reduced=True, also_whole=self._needs_whole)
        film = self._completed(film, Path(path).name)
        if film.copy_of is None:
            return film.reduced()
        return replace(film, read_whole=cache(partial(self._read_whole, path)))

    def _search(self, films: Sequence[Radiograph]) -> Iterator[tuple[Detection, ...] | Exception]:
        """Yield the knees and other areas of each film, or why it cannot be searched."""
        found = [each.detect_radiographs(films) for each in self.detectors.values()]
        for results in zip(*found, strict=True):
            areas: list[Detection] = []
            errors: list[Exception] = []
            for name, result in zip(self.detectors, results, strict=True):
                if isinstance(result, Exception):
                    errors.append(result)
                else:
                    areas += [replace(area, template=name) for area in result]
            areas.sort(key=lambda area: bool(area.template))  # so that knees keep their sides
            yield errors[0] if errors else number_areas(areas)

    def _completed(self, film: Radiograph, name: str) -> Radiograph:
        """Return a film with what its header leaves out and the user states."""
        if film.mm_per_px is None and self.config.mm_per_px is not None:
            film = replace(film, mm_per_px=film.reduction * self.config.mm_per_px)
        pattern = self.config.side_from_name
        found = re.search(pattern, name) if pattern and film.laterality is None else None
        side = (found.group(1) or "").upper() if found else ""
        if side in LATERALITIES:
            film = replace(film, laterality=side, laterality_source="name")
        return film

    def _found(
        self, film: FilmRecord, copy: Radiograph, result: tuple[Detection, ...] | Exception
    ) -> tuple[FilmRecord, Radiograph | FilmError]:
        """Return a film with what was found on it, measured if the run measures, and its pixels."""
        spacing = None if copy.mm_per_px is None else copy.mm_per_px / copy.reduction
        size = copy.copy_of or copy.size
        film = replace(film, size=size, mm_per_px=spacing)
        pixels: Radiograph | FilmError = copy
        if self._needs_whole and copy.read_whole is not None:
            try:
                pixels = copy.read_whole()
            except Exception as error:  # noqa: BLE001 - a broken file can raise anything
                pixels = to_film_error(str(self.root / film.path), error)
                return self._failed(film, pixels), pixels
        if isinstance(result, Exception):
            return self._failed(film, result), pixels
        if not result:
            detector = self.detectors.get("") or next(iter(self.detectors.values()))
            film = replace(film, status=NO_KNEE, reason=detector.nothing_found(size))
            return film, pixels
        return replace(film, status=OK, found=self._measured(pixels, result)), pixels

    def _failed(self, film: FilmRecord, error: Exception) -> FilmRecord:
        path = str(self.root / film.path)
        failure = to_film_error(path, error)
        status = UNREADABLE if isinstance(failure, Unreadable) else FAILED
        return replace(film, status=status, reason=failure.message)

    def _measured(
        self, pixels: Radiograph | FilmError, knees: tuple[Detection, ...], *, placed: bool = False
    ) -> tuple[Detection, ...]:
        """Return knees with measures; one that cannot be measured is to be reviewed."""
        if not self.config.measure or not isinstance(pixels, Radiograph):
            return knees
        others = tuple(area for area in knees if area.template)
        knees = tuple(knee for knee in knees if not knee.template)
        if not knees:
            return others
        from kneematch.knee.measuring import measure_knees, measure_placed_knees

        measure = measure_placed_knees if placed else measure_knees
        try:
            return (*measure(pixels, knees), *others)
        except Exception as error:  # noqa: BLE001 - one film must not stop the others
            reason = f"not measured (unexpected {type(error).__name__})"
            failed = (
                replace(
                    knee,
                    needs_review=True,
                    reasons=tuple(dict.fromkeys([*knee.reasons, reason])),
                )
                for knee in knees
            )
            return (*failed, *others)

    def _decide_and_make(
        self,
        film: FilmRecord,
        pixels: Radiograph | FilmError,
        copy: Radiograph | None = None,
    ) -> FilmRecord:
        """Apply decisions to the knees of a film, and make its files; a copy saves time."""
        film = film.flagged()
        knees = apply_decisions(film.found, film.decisions, film.mm_per_px)
        missing = [f"{film.path}: Not corrected, since {SET_ASIDE}."] if film.set_aside else []
        placed = [k for k in knees if k.decision == CORRECTED and k.measures is None]
        if placed and self.config.measure:
            if isinstance(pixels, FilmError):
                missing.append(f"{film.path}: not measured ({pixels.message})")
            measured = self._measured(pixels, tuple(placed), placed=True)
            by_side = {knee.side: knee for knee in measured}
            knees = tuple(by_side.get(knee.side, knee) for knee in knees)
        film = replace(film, knees=knees)
        read = pixels if isinstance(pixels, Radiograph) else None
        shown = film.magnified(self.config.magnification)
        made, reasons = make_files(self.artifacts, read, shown, self.out, self.root / film.path)
        if isinstance(pixels, FilmError) and film.kept and self.artifacts:
            missing.append(pixels.message)
        small = copy or read
        picture = film.thumbnail if small is None else thumbnail(small.reduced().pixels)
        return replace(film, made=made, missing=(*missing, *reasons), thumbnail=picture)
