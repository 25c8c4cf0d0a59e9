"""apply_review: write the decisions of a review to all files of a run."""

import os
from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import chain
from pathlib import Path
from typing import Any

from kneematch.errors import SettingsError
from kneematch.films.files import FOLDERS, content_hash, file_versions, remove_leftovers
from kneematch.knee.decision import apply_decisions
from kneematch.parallel import choose_workers
from kneematch.progress import Progress, no_progress
from kneematch.run.config import EXPORTS, DetectConfig
from kneematch.run.database import Run
from kneematch.run.decisions import holding, read_decisions
from kneematch.run.film_record import FilmRecord
from kneematch.run.outputs.run_file import check_facts
from kneematch.run.pipeline import DetectResult, finish_run, save_visits
from kneematch.run.sqlite import user_errors
from kneematch.run.visit import Visit
from kneematch.run.workers import map_visits
from kneematch.settings import METHODS, as_path


def apply_review(
    out: str | os.PathLike[str],
    *,
    root: str | os.PathLike[str] | None = None,
    decisions: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    progress: Progress = no_progress,
) -> DetectResult:
    """Visit the films about which something was decided, and write tables and report again.

    Args:
        out: the folder that `kneematch detect` wrote.
        root: folder of films with relative paths; None is where `detect` was called.
        decisions: review.csv of another run on the same films, whose decisions are added first.
        workers: number of worker processes; None chooses it.
        progress: shows progress.

    Raises:
        SettingsError: the folder holds no run that has ended, or another process is using it.
    """
    out = as_path("out", out)
    with Run(out) as run:
        config, facts = run_config(run), ended_run(run)
        if decisions is not None:
            add_decisions(run, as_path("decisions", decisions))
        folder = run.film_folder(None if root is None else as_path("root", root))
        remove_leftovers(out, *(out / name for name in FOLDERS), unchanged_s=0)
        films = list(run.to_visit(run.decided()))
        if config.measure and films:
            check_outline_network(run)
        visit = Visit(config, out, folder)
        same, changed = _divide(films, folder, moved=root is not None)
        visits = map_visits(visit, same, workers=choose_workers(workers, len(same)))
        visited = (
            # A film of which something is missing is visited again the next time.
            [replace(film, last_decision=0) if film.missing else film for film in batch]
            for batch in chain([changed], visits)
        )
        missing = save_visits(run, visited, progress, len(films))
        return finish_run(run, config, facts, missing, progress=progress)


def _divide(
    films: Sequence[FilmRecord], folder: Path, *, moved: bool
) -> tuple[list[FilmRecord], list[FilmRecord]]:
    """Return the films to visit, and those whose files are not the ones that were searched.

    Corrections of the latter are set aside. Films that were `moved` to a folder are recognised by
    their size, since their dates may have changed.
    """
    same, changed = [], []
    versions = file_versions([str(folder / film.path) for film in films])
    for film, now in zip(films, versions, strict=True):
        before = film.version
        if now is not None and before is not None and moved:
            now = now._replace(modified_ns=before.modified_ns)
        if now in (None, before):
            same.append(film)
        else:
            reason = f"{film.path}: The film has changed. Search it again with `kneematch detect`."
            film = film.without_corrections().flagged()
            knees = apply_decisions(film.found, film.decisions, film.mm_per_px)
            changed.append(replace(film, knees=knees, missing=(reason,)))
    return same, changed


def ended_run(run: Run) -> dict[str, Any]:
    """Return the content of run.json; raise SettingsError unless the run has ended."""
    left, stored = run.count("status = ''"), run.setting("run")
    if left or stored is None:
        raise SettingsError(
            f"{left} films of the run in {run.out} have not been searched. Continue it with "
            "`kneematch detect`."
        )
    with user_errors(run.path):
        check_facts(stored)
    return dict(stored)


def check_outline_network(run: Run) -> None:
    """Raise SettingsError if the knees of a run were measured by another outline network."""
    from kneematch.models.outlines import OUTLINES_FILE  # imports torch, which is slow

    if content_hash(OUTLINES_FILE) != run.setting("fingerprint").get("outlines"):
        raise SettingsError(
            f"The outline network is not the network that measured the knees of {run.out}. Run the "
            "films again."
        )


def run_config(run: Run) -> DetectConfig:
    """Return the settings of a run, which say what files it has; unknown ones are ignored."""
    known = {item.name for item in fields(DetectConfig)} - {"force"}
    try:
        stored = dict(run.setting("config"))
        given = {k: value for k, value in stored.items() if k in known and value is not None}
        given["export"] = tuple(kind for kind in given.get("export", ()) if kind in EXPORTS)
        if given.get("method") not in METHODS:  # one on halves, of version 0.3
            given.pop("method", None)
        return DetectConfig(**given)
    except (TypeError, ValueError) as error:
        raise SettingsError(
            f"The settings in {run.path} cannot be read. Run the films again."
        ) from error


def add_decisions(run: Run, path: Path) -> None:
    """Add the decisions of a review.csv to a run; those that hold already are left out.

    Raises:
        SettingsError: the file is not a review.csv, or is about other films or templates.
    """
    films, before = {film: number for number, film in run.paths()}, holding(run.decisions())
    added = holding(read_decisions(path))
    unknown = sorted({film for film, _, _ in added} - {*films})
    if unknown:
        raise SettingsError(
            f"{path}: {len(unknown)} films are not in the run, such as {unknown[0][-100:]}."
        )
    templates = set(run.landmarks)
    others = {each.template for *_, each, _ in added.values() if each.adds_knee} - templates
    if others:
        raise SettingsError(
            f"{path}: It adds areas of {min(others) or 'knees'}, which the run has no template of."
        )
    run.decide_all(
        (films[film], side, decision, time)
        for key, (time, film, side, decision, _) in added.items()
        if key not in before or before[key][3].to_dict() != decision.to_dict()
    )
