"""Measure the knees of rows, in worker processes that read their films again."""

from collections.abc import Generator
from contextlib import closing
from dataclasses import replace
from functools import partial

import torch

from kneematch.batch.journal import Row
from kneematch.detection.measuring import measure_knees, outline_network
from kneematch.errors import FilmError
from kneematch.export.run_file import content_hash
from kneematch.io.read import read_isolated, unexpected
from kneematch.measures.outline_file import shipped_network
from kneematch.parallel import WorkerDied, map_in_workers


def outline_hash(path: str | None) -> dict[str, str]:
    """Return the SHA-256 of the outline network, after checking that it can be used."""
    outline_network(path)
    return {"outlines": content_hash(path or shipped_network())}


def measure_rows(
    batches: Generator[list[Row]], network: str | None, *, workers: int
) -> Generator[list[Row]]:
    """Yield rows whose knees are measured, one at a time, in any order.

    Films are read a second time: the search keeps no more than a reduced copy of them.

    Args:
        batches: rows of the search.
        network: file of the outline network; None is the built-in one.
        workers: number of worker processes; 0 does everything in this process.
    """
    measured = map_in_workers(
        partial(_measure, network),
        (row for rows in batches for row in rows),
        workers=workers,
        initializer=torch.set_num_threads,
        initargs=(1,),
    )
    with closing(batches), closing(measured) as results:
        for row, result in results:
            yield [_unmeasured(row, str(result)) if isinstance(result, WorkerDied) else result]


def _measure(network: str | None, row: Row) -> Row:
    """Measure the knees of one film."""
    if not row.detections:
        return row
    try:
        film = read_isolated(row.film)
        return replace(
            row, detections=measure_knees(film, row.detections, outline_network(network))
        )
    except FilmError as error:
        return _unmeasured(row, str(error))
    except Exception as error:  # noqa: BLE001 - one film must not stop the others
        return _unmeasured(row, str(unexpected(row.film, error)))


def _unmeasured(row: Row, reason: str) -> Row:
    """Return a row whose knees are to be reviewed since they could not be measured."""
    doubt = f"not measured ({reason})"
    knees = tuple(
        replace(knee, review="yes", reason="; ".join(filter(None, [knee.reason, doubt])))
        for knee in row.detections
    )
    return replace(row, detections=knees)
