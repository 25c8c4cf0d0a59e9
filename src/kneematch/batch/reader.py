"""A film is read and prepared, in whichever process, and whatever is wrong with it."""

from kneematch.detection.prepare import Prepared, load
from kneematch.errors import FilmError


def read_film(room: float, film: str) -> Prepared | str:
    """What the search needs of a film, without its pixels; or why it cannot be had."""
    try:
        loaded = load(film, room)
    except Exception as error:  # noqa: BLE001 - among 500,000 films one must not stop the others
        return unexpected(film, error)
    return str(loaded) if isinstance(loaded, FilmError) else loaded[1]


def unexpected(film: str, error: Exception) -> str:
    """A bug of ours, as the reason why a film failed."""
    return (
        f"{film}: {type(error).__name__}: {error}; expected a film or a known fault; "
        "report this as a bug of kneematch"
    )
