"""detect_folder: detect on many films, in a run that survives bad files and power cuts.

This module imports nothing heavy: the process that workers are forked from is started first.
"""

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kneematch.errors import SettingsError
from kneematch.films.discovery import select_films
from kneematch.films.files import file_versions
from kneematch.films.read import is_uncompressed
from kneematch.films.run_folder import FOLDERS
from kneematch.memory import keep_memory
from kneematch.parallel import choose_workers, start_early
from kneematch.progress import Progress, no_progress
from kneematch.run.config import PRELOAD, DetectConfig
from kneematch.run.outputs.run_file import Clock

if TYPE_CHECKING:
    from kneematch.run.pipeline import DetectResult


def detect_folder(
    films: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    config: DetectConfig | None = None,
    *,
    progress: Progress = no_progress,
) -> "DetectResult":
    """Detect the knee joint areas of films, and write tables, a report and pictures.

    The run in the folder is continued: films that it has are not searched again, unless their
    files have changed.

    Args:
        films: files, folders, patterns, lists (`@list.txt`, a CSV with a column of paths), or
            several of these.
        out: folder for the results.
        config: settings; default: the built-in model on the fastest device.
        progress: shows progress.

    Raises:
        SettingsError: the settings contradict each other, or those of the run in the folder.
    """
    config, folder = config or DetectConfig(), Path(out)
    found = select_films(
        films,
        series=config.series,
        limit=config.limit,
        part=(config.part_id, config.num_parts),
        leave_out=[folder, *(folder / name for name in FOLDERS)],
    )
    return detect_files(found, folder, config, progress=progress)


def detect_files(
    films: Sequence[str], out: Path, config: DetectConfig, *, progress: Progress = no_progress
) -> "DetectResult":
    """Detect on files that were found already; see `detect_folder`."""
    clock = Clock()
    versions = file_versions(films, hashed=config.hash_films)
    if not any(versions):
        others = f", nor is any of the {len(films) - 1} others" if len(films) > 1 else ""
        raise SettingsError(f"{films[0]}: not there{others}; expected films; check the path")
    _start_workers_early(films, config)
    from kneematch.run.pipeline import run_stages

    return run_stages(films, versions, out, config, clock, progress)


def _start_workers_early(films: Sequence[str], config: DetectConfig) -> None:
    """Have another process import what workers need while this one imports and loads the same."""
    keep_memory()
    if config.engine != "local":
        return
    if choose_workers(config.workers, len(films)) == 0:
        if not is_uncompressed(films[0]):  # which a child process will decode
            start_early("kneematch.films.read")
    elif config.device == "cpu" or (config.device == "auto" and not _may_have_gpu()):
        # It loads the detector, too, whose memory the workers then share.
        preload = json.dumps(asdict(replace(config, device="cpu")), default=str)
        start_early("kneematch.run.workers", {PRELOAD: preload})
    else:
        start_early("kneematch.run.workers")


def _may_have_gpu() -> bool:
    """Return whether an NVIDIA GPU may be there; to ask CUDA takes as long as to import torch."""
    return any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/dxg").exists()  # WSL has the last
