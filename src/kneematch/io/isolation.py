"""Read films so that a crash inside a decoder cannot end the program."""

import multiprocessing
import os

from kneematch.errors import FilmError, NotAnImage
from kneematch.io.radiograph import Radiograph
from kneematch.io.read import is_uncompressed, read
from kneematch.parallel import WorkerDied, call_in_child


def read_isolated(path: str | os.PathLike[str]) -> Radiograph:
    """Read a film like `read`; a native crash of its decoder becomes a FilmError.

    Compressed films are decoded in another process, unless this is a worker process already.

    Raises:
        FilmError: the film cannot be used.
    """
    if multiprocessing.parent_process() is not None or is_uncompressed(path):
        return read(path)
    result = call_in_child(_read, os.fspath(path))
    if isinstance(result, WorkerDied):
        raise NotAnImage(f"{os.fspath(path)}: {result}")
    if isinstance(result, FilmError):
        raise result
    return result


def _read(path: str) -> Radiograph | FilmError:
    """Read a film; errors are returned, since an exception would end the process."""
    try:
        return read(path)
    except FilmError as error:
        return error
    except Exception as error:  # noqa: BLE001 - the caller cannot see what this process raises
        return unexpected(path, error)


def unexpected(path: str, error: Exception) -> FilmError:
    """Return the failure of a film that met a bug; without the error's text, which may quote it."""
    return FilmError(
        f"{path}: {type(error).__name__}; expected a film or a known fault; report this as a bug "
        "of kneematch"
    )
