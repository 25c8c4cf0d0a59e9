"""Which films belong to a series, as the description in their DICOM header says."""

import warnings
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

from pydicom.errors import InvalidDicomError
from pydicom.filereader import read_partial
from pydicom.tag import BaseTag

from kneematch.errors import FilmError, Unreadable
from kneematch.io.dicom_header import BAD_ELEMENT, header_text
from kneematch.io.read import is_dicom

DESCRIPTION: Final = 0x0008103E
READERS: Final = 8  # threads: a header is short, and waiting for a far disk is what takes time


def in_series(films: Iterable[str], text: str) -> Iterator[str]:
    """The DICOM whose series description contains a text, in any case of letters.

    A film that the system does not let us read is kept: it is not known not to belong.
    """
    films = list(films)
    with warnings.catch_warnings(), ThreadPoolExecutor(READERS) as readers:
        warnings.simplefilter("ignore")  # pydicom's remarks on odd headers
        belongs = readers.map(partial(_belongs, text.casefold()), films)
        yield from (film for film, inside in zip(films, belongs, strict=True) if inside)


def _belongs(text: str, film: str) -> bool:
    try:
        return is_dicom(film) and text in _description(film).casefold()
    except Unreadable:
        return True
    except FilmError:
        return False


def _description(film: str) -> str:
    """The series' description, or nothing where the header has none."""

    def further(tag: BaseTag, vr: str | None, length: int) -> bool:
        return bool(tag > DESCRIPTION)

    try:
        with Path(film).open("rb") as file:
            header = read_partial(file, further, force=True)
            return header_text(header, "SeriesDescription") or ""
    except (*BAD_ELEMENT, EOFError, InvalidDicomError, zlib.error):
        return ""
    except OSError as error:
        raise Unreadable(f"{film}: {error.strerror}") from error
