"""Where what can be made or fetched again is kept."""

import os
from pathlib import Path
from typing import Final

VARIABLE: Final = "KNEEMATCH_CACHE"


def cache_folder() -> Path:
    """$KNEEMATCH_CACHE or ~/.cache/kneematch; it need not exist."""
    named = os.environ.get(VARIABLE)
    return Path(named) if named else Path.home() / ".cache" / "kneematch"
