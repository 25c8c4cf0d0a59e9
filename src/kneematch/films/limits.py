"""Limits on what a film's file may cost, and what decoding it may raise, warn of or log."""

import errno
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from kneematch.errors import KneematchError, NotAnImage, NotARadiograph

MAX_PIXELS: Final = 150_000_000  # twice a 43 x 43 cm film at 0.05 mm; Pillow's limit is 179 million
MAX_BYTES: Final = 1 << 30  # size of a film's file
IN_MEMORY: Final = Path("<pydicom Dataset>")  # in place of a file's path, for what is no file
MAX_TEXT_BYTES: Final = 1 << 28  # for a list: a million paths of 268 characters
# Memory that reading may take. A good film holds at least a thirtieth of its pixels' bytes, so a
# small file that needs much more than this was made to exhaust the memory.
SMALL_FILE_MEMORY: Final = 768 << 20
MEMORY_PER_FILE_BYTE: Final = 384  # in larger files; equal at 2 MB


@contextmanager
def silent() -> Iterator[None]:
    """Drop remarks of pydicom and Pillow on odd headers, which may quote the patient."""

    def drop(record: logging.LogRecord) -> bool:
        return False

    logger = logging.getLogger("pydicom")
    logger.addFilter(drop)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logger.removeFilter(drop)


@contextmanager
def decoding(path: Path, kind: str) -> Iterator[None]:
    """Turn what a decoder raises on broken input, which may be nearly anything, into NotAnImage.

    The message leaves out the error's text and its traceback, which may quote the header and with
    it the patient.
    """
    try:
        yield
    except (KneematchError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise NotAnImage(
            f"{path}: The {kind} cannot be decoded. Copy or export it again."
        ) from None


def check_size(path: Path, height: int, width: int, bytes_per_px: int) -> None:
    """Refuse sizes that no film has, before anything is decoded, which takes `bytes_per_px`."""
    size = f"{path}: The picture has {height} x {width} pixels"
    if height < 1 or width < 1:
        raise NotARadiograph(f"{size}.")
    if height * width > MAX_PIXELS:
        raise NotARadiograph(f"{size}, more than the limit of {MAX_PIXELS // 10**6} million.")
    needed, available = height * width * bytes_per_px, memory_budget(path)
    if needed > available:
        raise NotARadiograph(
            f"{size} in a file of {path.stat().st_size} bytes. Decoding it would take "
            f"{needed >> 20} MB of memory; the limit for this file is {available >> 20} MB."
        )


def memory_budget(path: Path) -> int:
    """Return the bytes of memory that reading a file may take."""
    size = MAX_BYTES if path == IN_MEMORY else path.stat().st_size
    return max(SMALL_FILE_MEMORY, MEMORY_PER_FILE_BYTE * size)


def read_text_bytes(path: Path) -> bytes:
    """Read a list, table or template; a device such as /dev/zero, which has no end, is refused.

    Raises:
        OSError: it cannot be read, or is too large.
    """
    with path.open("rb") as file:
        content = file.read(MAX_TEXT_BYTES + 1)
    if len(content) > MAX_TEXT_BYTES:
        raise OSError(errno.EFBIG, f"more than {MAX_TEXT_BYTES >> 20} MB")
    return content
