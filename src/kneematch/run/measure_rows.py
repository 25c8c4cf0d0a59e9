"""Measure the knees of rows, in worker processes that read their films again."""

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial

from kneematch.devices import one_thread
from kneematch.films.files import content_hash
from kneematch.films.radiograph import Radiograph
from kneematch.films.read import read_isolated, to_film_error
from kneematch.knee.detection import YES, Detection, join_reasons
from kneematch.knee.measuring import measure_knees, measure_placed_knees, outline_network
from kneematch.models.outlines import OutlineNetwork, builtin_network
from kneematch.parallel import map_in_workers
from kneematch.progress import Progress
from kneematch.run.decisions import CORRECTED
from kneematch.run.journal import Journal
from kneematch.run.row import Row

Measuring = Callable[[Radiograph, Sequence[Detection], OutlineNetwork], tuple[Detection, ...]]


def outline_hash(path: str | None) -> dict[str, str]:
    """Return the SHA-256 of the outline network, after checking that it can be used."""
    outline_network(path)
    return {"outlines": content_hash(path or builtin_network())}


def measure_rows(
    batches: Generator[list[Row]], network: str | None, *, workers: int
) -> Generator[list[Row]]:
    """Yield rows whose knees are measured, one at a time, in any order; 0 workers use this process.

    Films are read a second time: the search keeps no more than a reduced copy of them.
    """
    rows = (row for batch in batches for row in batch)
    measured = map_in_workers(partial(_measure, measure_knees, network), rows, workers=workers)
    with closing(batches), closing(measured) as results:
        for row, result in results:
            yield [result if isinstance(result, Row) else _unmeasured(row, str(result))]


def measure_reviewed(
    journal: Journal, network: str | None, *, workers: int, progress: Progress
) -> list[str]:
    """Measure the knees that a reviewer placed, and note it in the journal; return the problems."""
    rows = [placed for row in journal.rows() if (placed := _to_measure(row)).detections]
    if not rows:
        return []
    if outline_hash(network)["outlines"] != (journal.settings or {}).get("outlines"):
        return [
            f"{network or builtin_network()}: not the outline network of the run; expected that, "
            "for the knees that were corrected; put it back"
        ]
    problems: list[str] = []
    films = [replace(row, film=str(journal.root / row.film)) for row in rows]
    measure = partial(_measure, measure_placed_knees, network)
    with (
        progress("measuring", len(films)) as advance,
        one_thread(),
        closing(map_in_workers(measure, films, workers=workers)) as results,
    ):
        for row, result in results:
            if isinstance(result, Row):
                journal.note_measured(replace(result, film=journal.films[row.index]))
            else:
                reason = str(result).removeprefix(f"{row.film}: ")
                problems.append(f"{row.film}: not measured ({reason})")
            advance("")
    return problems


def _to_measure(row: Row) -> Row:
    """Return a row with only its corrected knees, or without any if all of them are measured."""
    placed = tuple(knee for knee in row.knees if knee.decision == CORRECTED)
    known = all(knee.outlines is not None for knee in placed)
    return replace(row, detections=() if known else placed)


def _measure(measure: Measuring, network: str | None, row: Row) -> Row | str:
    """Measure the knees of one film; return why it cannot be done."""
    if not row.detections:
        return row
    try:
        film = read_isolated(row.film)
        knees = measure(film, row.detections, outline_network(network))
        return replace(row, detections=knees)
    except Exception as error:  # noqa: BLE001 - one film must not stop the others
        return str(to_film_error(row.film, error))


def _unmeasured(row: Row, reason: str) -> Row:
    """Return a row whose knees are to be reviewed since they could not be measured."""
    doubt = f"not measured ({reason})"
    knees = tuple(
        replace(knee, review=YES, reason=join_reasons(knee.reason, doubt))
        for knee in row.detections
    )
    return replace(row, detections=knees)
