"""Runs of methods on the same films, and their times."""

import shutil
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kneematch.evaluation.config import METHODS, EvaluateConfig
from kneematch.evaluation.method_run import (
    MethodRun,
    common_films,
    films_per_method,
    load_detectors,
    measure_times,
    milliseconds_per_film,
    run_methods,
    timing_caption,
)
from kneematch.films.annotation import annotate
from kneematch.films.write import write_png16
from kneematch.knee.detector import Detector
from kneematch.knee.loading import load
from kneematch.knee.preparation import Preparation, PreparedFilm, prepare
from kneematch.paper.problem import Problem
from kneematch.paper.template import Template, cut_template
from kneematch.progress import Advance, no_progress
from kneephantoms.config import SynthConfig
from kneephantoms.dataset import synthesize
from kneephantoms.phantom import phantom

SIZE = (320, 400)
SLEEP_MS = 40


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Three small phantoms, and a fourth that is cut short."""
    folder = tmp_path_factory.mktemp("films")
    synthesize(folder, SynthConfig(3, size=SIZE, workers=0))
    good = sorted(folder.glob("*.dcm"))
    broken = folder / "broken.dcm"
    broken.write_bytes(good[0].read_bytes()[:5000])
    return [str(path) for path in (good[0], broken, *good[1:])]


@pytest.fixture(scope="module")
def config(films: list[str]) -> EvaluateConfig:
    """The paper's search needs no model, so it is quick to load."""
    return EvaluateConfig(
        template=str(Path(films[0]).with_name("template.json")),
        methods=("search",),
        paper=True,
        device="cpu",
        batch_size=2,
        workers=0,
    )


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("evaluation")


@pytest.fixture(scope="module", autouse=True)
def run(films: list[str], out: Path, config: EvaluateConfig) -> MethodRun:
    """The only method on the films."""
    (run,) = run_methods(films, out, config)
    return run


def test_run_methods_finds_what_the_detector_finds(
    films: list[str], config: EvaluateConfig, run: MethodRun
) -> None:
    assert run.method == "search"
    assert list(run.found) == [films[0], films[2], films[3]]
    detector = load_detectors(config, len(films))["search"]
    for film, knees in run.found.items():
        for mine, theirs in zip(knees, detector.detect(film), strict=True):
            assert mine.loss == pytest.approx(theirs.loss, abs=1e-4)
            assert mine.corners == pytest.approx(theirs.corners, abs=0.01)


def test_run_methods_keeps_the_reasons_of_films_that_failed(
    films: list[str], run: MethodRun
) -> None:
    assert list(run.failed) == [films[1]]
    assert run.failed[films[1]].startswith(films[1])


def test_run_methods_reads_a_complete_run_instead_of_searching_again(
    films: list[str], out: Path, config: EvaluateConfig, run: MethodRun
) -> None:
    detections = out / "runs" / "search" / "detections.csv"
    before = detections.read_bytes()
    opened: list[tuple[str, int, int]] = []

    def progress(label: str, total: int, done: int = 0) -> AbstractContextManager[Advance]:
        opened.append((label, total, done))
        return no_progress(label, total, done)

    (again,) = run_methods(films, out, replace(config, resume=True), progress)
    assert list(again.found) == list(run.found)
    assert opened == [("detecting", 4, 4), ("writing tables", 4, 0)]
    assert detections.read_bytes() == before


def test_run_methods_adds_a_method_to_those_that_were_run(
    films: list[str],
    out: Path,
    config: EvaluateConfig,
    run: MethodRun,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(out, copy)
    caplog.set_level("INFO", logger="kneematch")
    more = replace(config, methods=("search", "neural"), resume=True)
    _, neural = run_methods(films, copy, more)
    before = "4 films: 4 done before, 0 new"
    assert caplog.messages == ["search, 4 films", before, "neural, 4 films"]
    assert neural.method == "neural"
    assert set(neural.found) == set(run.found)


def test_run_methods_names_films_without_a_knee(tmp_path: Path) -> None:
    films = SynthConfig(1, size=SIZE, framing="other", workers=0)
    synthesize(tmp_path / "films", films)
    (film,) = map(str, (tmp_path / "films").glob("*.dcm"))
    config = EvaluateConfig(methods=("locator",), device="cpu", workers=0)
    (run,) = run_methods([film], tmp_path / "out", config)
    assert run.found == {}
    assert run.failed == {film: f"{film}: no frontal knee found"}


def test_run_methods_starts_over_with_force(
    films: list[str], out: Path, config: EvaluateConfig, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(out, copy)
    (found,) = run_methods(films[:1], copy, replace(config, force=True))
    assert list(found.found) == films[:1]


def test_run_methods_returns_the_named_films_only(
    films: list[str], out: Path, config: EvaluateConfig, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(out, copy)
    (found,) = run_methods(films[:2], copy, replace(config, resume=True))
    assert (list(found.found), list(found.failed)) == (films[:1], films[1:2])


def test_films_per_method_gives_the_grid_search_the_first_films_only() -> None:
    assert films_per_method(EvaluateConfig(), 9) == dict.fromkeys(METHODS, 9)
    assert films_per_method(EvaluateConfig(grid=2), 9)["grid"] == 2
    assert films_per_method(EvaluateConfig(grid=20), 9)["grid"] == 9


def test_common_films_are_those_with_as_many_knees_for_every_method(
    films: list[str], run: MethodRun
) -> None:
    one_knee = {film: knees[: 1 + (film == films[0])] for film, knees in run.found.items()}
    assert common_films([run, MethodRun("other", one_knee)]) == films[:1]
    assert common_films([run]) == list(run.found)


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("film") / "film.png"
    write_png16(path, phantom(1, size=SIZE).radiograph.pixels)
    return path


@pytest.fixture(scope="module")
def template(film: Path) -> Template:
    known = phantom(1, size=SIZE)
    knee = known.knees[1]
    drawn = annotate(film, knee.side, knee.plateau_left, knee.plateau_right)
    return cut_template(known.radiograph, drawn)[0]


@pytest.fixture(scope="module")
def prepared() -> list[PreparedFilm]:
    made = phantom(1, size=SIZE).radiograph
    how = Preparation(locate=False, side_margin=0.0)
    return prepare([load(made, how.device)] * 4, how)


class Sleeper:
    """Finds everything in the middle; its first call may take longer, as a network's does."""

    def __init__(self, start_ms: float = 0) -> None:
        self.asked: list[int] = []
        self.start_ms = start_ms

    def __call__(self, problem: Problem) -> Tensor:
        n, sides = problem.halves.shape[:2]
        time.sleep((n * SLEEP_MS + (0 if self.asked else self.start_ms)) / 1000)
        self.asked.append(n)
        return torch.zeros(n, sides, 4)


def of(template: Template, sleeper: Sleeper, method: str, batch_size: int = 3) -> Detector:
    return Detector(template, sleeper, method, paper=True, batch_size=batch_size)


def test_milliseconds_per_film_does_not_count_the_first_call_of_a_network(
    template: Template, prepared: Sequence[PreparedFilm]
) -> None:
    sleeper = Sleeper(start_ms=2000)
    found = milliseconds_per_film(of(template, sleeper, "neural"), prepared)
    assert found is not None
    assert SLEEP_MS <= found < 500  # 2000 / 4 films, were it counted
    assert len(sleeper.asked) == 3 + 4  # a warm-up batch, then all films


def test_milliseconds_per_film_does_not_warm_up_a_method_without_networks(
    template: Template, prepared: Sequence[PreparedFilm]
) -> None:
    sleeper = Sleeper()
    milliseconds_per_film(of(template, sleeper, "sliding"), prepared)
    assert len(sleeper.asked) == 4


def test_milliseconds_per_film_times_the_grid_search_on_one_film(
    template: Template, prepared: Sequence[PreparedFilm]
) -> None:
    sleeper = Sleeper()
    found = milliseconds_per_film(of(template, sleeper, "grid"), prepared)
    assert sleeper.asked == [1]
    assert found is not None
    assert found >= SLEEP_MS


def test_milliseconds_per_film_is_unknown_without_films(template: Template) -> None:
    assert milliseconds_per_film(of(template, Sleeper(), "neural"), []) is None


def test_measure_times_reads_films_before_and_leaves_out_bad_ones(
    template: Template, film: Path
) -> None:
    sleeper = Sleeper()
    detectors = {"sliding": of(template, sleeper, "sliding", batch_size=5)}
    named = [str(film.with_name("missing.png")), *[str(film)] * 9]
    failed = {named[0]: "missing"}
    (timed,) = measure_times([MethodRun("sliding", {}, failed=failed)], detectors, named)
    assert len(sleeper.asked) == 8  # of the nine
    assert timed.ms_per_film is not None
    assert timed.ms_per_film >= SLEEP_MS
    assert timed.failed == failed


def test_timing_caption_names_the_device_and_the_batch(template: Template) -> None:
    told = timing_caption({"sliding": of(template, Sleeper(), "sliding", batch_size=5)})
    assert "cpu" in told
    assert "batches of up to 5" in told
