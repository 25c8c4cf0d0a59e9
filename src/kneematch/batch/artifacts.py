"""A second visit to films that are done, for what is made of their pixels."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Final

from kneematch.batch.products import Product
from kneematch.batch.reader import unexpected
from kneematch.batch.row import Record
from kneematch.detection.detection import Detection
from kneematch.errors import FilmError
from kneematch.io.read import read
from kneematch.parallel.pool import Died, apply_in_order

if TYPE_CHECKING:
    from PIL import Image

AHEAD: Final = 4  # films a process that are worked on or waiting


@dataclass(frozen=True, slots=True, eq=False)
class Visit:
    """A film and the products that it lacks."""

    name: str
    record: Record
    products: tuple[Product, ...]


def visits_left(
    records: Iterable[Record], names: Sequence[str], products: Sequence[Product], *, since: float
) -> Iterator[Visit]:
    """The films that lack a product's files, and have detections to make them of.

    Files that are older than `since`, in seconds of the epoch, are of an earlier run.
    """
    for record in records:
        name = names[record.index]
        lacking = tuple(
            product
            for product in products
            if not all(_made(path, since) for path in product.targets(name, record))
        )
        if record.detections and lacking:
            yield Visit(name, record, lacking)


def pay(visits: Iterable[Visit], *, workers: int, report: Callable[[], None]) -> Iterator[str]:
    """Visit films; tell why something could not be made of one."""
    films: deque[str] = deque()  # visited, without result so far

    def noted() -> Iterator[Visit]:
        for visit in visits:
            films.append(visit.record.film)
            yield visit

    ahead = AHEAD * max(workers, 1)
    with closing(apply_in_order(_visit, noted(), workers=workers, ahead=ahead)) as results:
        for result in results:
            film = films.popleft()
            reason = result.told_of(film) if isinstance(result, Died) else result
            if reason is not None:
                yield reason
            report()


def draw_films(
    films: Sequence[tuple[str, tuple[Detection, ...]]], *, longest_px: int, workers: int
) -> "list[Image.Image | None]":
    """Small pictures of a few films; None for one that cannot be drawn any more."""
    draw = partial(_drawn, longest_px)
    workers = min(workers, len(films))
    with closing(apply_in_order(draw, films, workers=workers, ahead=len(films))) as drawn:
        return [None if isinstance(picture, Died) else picture for picture in drawn]


def distinct_names(films: Sequence[str]) -> list[str]:
    """A name for the files of each film: its own without suffix, made distinct."""
    names: list[str] = []
    counts: dict[str, int] = {}  # or a million films called 001 would take hours
    taken: set[str] = set()
    for film in films:
        stem = PurePath(film).stem or "film"
        name, count = stem, counts.get(stem.casefold(), 1)
        while name.casefold() in taken:  # some file systems take A for a
            count += 1
            name = f"{stem}-{count}"
        counts[stem.casefold()] = count
        taken.add(name.casefold())
        names.append(name)
    return names


def _made(path: Path, since: float) -> bool:
    try:
        return path.stat().st_mtime >= since
    except OSError:
        return False


def _visit(visit: Visit) -> str | None:
    """Make what a film lacks; return the reason where that fails."""
    film = visit.record.film
    try:
        pixels = read(film)
        made = [product.make(pixels, visit.name, visit.record) for product in visit.products]
    except (FilmError, OSError) as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - one picture must not stop the others
        return unexpected(film, error)
    return "; ".join(reason for reason in made if reason) or None


def _drawn(longest_px: int, found: tuple[str, tuple[Detection, ...]]) -> "Image.Image | None":
    from kneematch.detection.overlay import draw_detections

    film, detections = found
    try:
        return draw_detections(read(film), detections, longest_px=longest_px, thumbnail=True)
    except FilmError:  # it was there a moment ago, and has its rows
        return None
