"""Select DICOM films by their SeriesDescription."""

import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from kneematch.errors import FilmError, Unreadable
from kneematch.io.dicom_header import header_text
from kneematch.io.read import read_header

READERS: Final = 8  # threads: a header is short, and waiting for a far disk is what takes time


def in_series(films: Iterable[str], text: str) -> Iterator[str]:
    """Yield the DICOM films whose SeriesDescription contains a text, ignoring case.

    A film that cannot be opened is kept, so that it is reported as failed and not passed over.
    """
    films = list(films)
    with warnings.catch_warnings(), ThreadPoolExecutor(READERS) as readers:
        warnings.simplefilter("ignore")  # pydicom's remarks on odd headers
        belongs = readers.map(partial(_belongs, text.casefold()), films)
        yield from (film for film, inside in zip(films, belongs, strict=True) if inside)


def _belongs(text: str, film: str) -> bool:
    try:
        header = read_header(film, "SeriesDescription")
    except Unreadable:
        return True
    except FilmError:
        return False
    return (
        header is not None and text in (header_text(header, "SeriesDescription") or "").casefold()
    )
