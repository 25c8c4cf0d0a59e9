"""The settings of `kneematch detect`; importing them imports nothing heavy."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kneematch.batch.recipe import Recipe
from kneematch.errors import SettingsError

ENGINES: Final = ("local", "ray")
EXPORTS: Final = ("coco", "dicom")


@dataclass(frozen=True, slots=True)
class Selection:
    """Which of the films that are named are meant."""

    series: str | None = None  # only DICOM whose series description contains it
    limit: int | None = None  # only so many, the first
    num_parts: int = 1  # of these, every num_parts-th
    part_id: int = 0  # from this one on

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if self.limit is not None and self.limit < 1:
            raise SettingsError(f"--limit {self.limit}; expected 1 film or more; raise it")
        if self.num_parts < 1 or not 0 <= self.part_id < self.num_parts:
            raise SettingsError(
                f"--part-id {self.part_id} of --num-parts {self.num_parts}; expected a part from "
                "0 to num-parts - 1; correct them"
            )


@dataclass(frozen=True, slots=True)
class Settings:
    """How films are searched, by whom, and what is written."""

    out: Path
    recipe: Recipe = field(default_factory=Recipe)
    workers: int | None = None  # processes that read; None goes by the cores; 0 is none
    engine: str = "local"
    ray_address: str | None = None  # of a cluster that runs; None starts one on this machine
    resume: bool = False
    force: bool = False
    selection: Selection = field(default_factory=Selection)
    overlays: bool = False  # a picture of every film
    crops: bool = False  # a picture of every knee
    crop_mm: float | None = None  # as kneematch.detection.crop.CropSize has them
    crop_spacing: float | None = None
    crop_px: int | None = None
    mirror: bool = False
    export: tuple[str, ...] = ()
    sheet: Path | None = None  # the first films side by side

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if self.engine not in ENGINES:
            raise SettingsError(f"engine {self.engine!r}; expected one of {', '.join(ENGINES)}")
        if self.workers is not None and self.workers < 0:
            raise SettingsError(f"{self.workers} workers; expected 0 or more; raise it")
        if self.resume and self.force:
            raise SettingsError(
                "--resume and --force; expected one of them: to continue, or to start over"
            )
        sizes = self.crop_mm, self.crop_spacing, self.crop_px, self.mirror or None
        if not self.crops and any(size is not None for size in sizes):
            raise SettingsError("the size of crops, but no crops; expected --crops; add it")
        for name in self.export:
            if name not in EXPORTS:
                raise SettingsError(f"export {name!r}; expected one of {', '.join(EXPORTS)}")
        if self.ray_address is not None and self.engine != "ray":
            raise SettingsError("--ray-address without Ray; expected --engine ray; add it")


def shard(films: list[str], selection: Selection) -> list[str]:
    """Return the films of one shard: the first `limit` ones, and of these every num_parts-th.

    Shards are interleaved rather than contiguous, because films of one origin, and therefore of
    one size and reading time, often stand next to each other.
    """
    chosen = films[: selection.limit]
    part = chosen[selection.part_id :: selection.num_parts]
    if not part:
        raise SettingsError(
            f"--num-parts {selection.num_parts} for {len(chosen)} films; expected at least a film "
            "a part; ask for fewer parts"
        )
    return part
