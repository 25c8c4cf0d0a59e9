"""The settings of `kneematch evaluate`; importing them imports nothing heavy."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kneematch.batch.config import DetectorSource
from kneematch.errors import SettingsError

GRID: Final = "grid"
METHODS: Final = ("sliding", "neural", "neural+sharpen", "search")


@dataclass(frozen=True, slots=True)
class Settings:
    """Which methods are compared, on what, and where it is written."""

    out: Path
    recipe: DetectorSource = field(default_factory=DetectorSource)
    methods: tuple[str, ...] = METHODS
    grid: int = 0  # films, the first ones, that the grid search is run on, too
    truth: Path | None = None  # labels
    workers: int | None = None  # processes that read; None goes by the cores; 0 is none
    series: str | None = None
    limit: int | None = None
    resume: bool = False
    force: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if not self.methods:
            raise SettingsError(f"no methods; expected some of {', '.join(METHODS)}; name one")
        for method in self.methods:
            if method == GRID:
                raise SettingsError(
                    "grid among the methods; expected the number of films it is run on, since it "
                    "takes long; leave it out there and add --grid N"
                )
            if method not in METHODS:
                raise SettingsError(f"method {method!r}; expected some of {', '.join(METHODS)}")
        if len(set(self.methods)) < len(self.methods):
            raise SettingsError(
                f"methods {', '.join(self.methods)}; expected each once; leave one out"
            )
        if self.grid < 0:
            raise SettingsError(f"--grid {self.grid}; expected 0 films or more; raise it")
        if self.workers is not None and self.workers < 0:
            raise SettingsError(f"{self.workers} workers; expected 0 or more; raise it")
        if self.resume and self.force:
            raise SettingsError(
                "--resume and --force; expected one of them: to continue, or to start over"
            )
