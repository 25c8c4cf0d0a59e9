"""Runs of methods on the same films, and their losses and times."""

import math
import shutil
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from kneematch.evaluation.config import METHODS, EvaluateConfig
from kneematch.evaluation.method_runs import (
    MethodRun,
    detect_config,
    films_per_method,
    load_loss_template,
    measure_losses,
    measure_times,
    run_methods,
    timing_caption,
)
from kneematch.knee.detection import Detection
from kneematch.progress import Advance, no_progress
from kneephantoms.config import SynthConfig
from kneephantoms.dataset import synthesize

SIZE = (320, 400)


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
    template = str(Path(films[0]).with_name("template.json"))
    return EvaluateConfig(
        template=template, methods=("search",), paper=True, device="cpu", workers=0
    )


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("evaluation")


@pytest.fixture(scope="module", autouse=True)
def run(films: list[str], out: Path, config: EvaluateConfig) -> MethodRun:
    """The only method on the films."""
    (run,) = run_methods(films, out, config)
    return run


@pytest.fixture
def copy(out: Path, tmp_path: Path) -> Path:
    shutil.copytree(out, tmp_path / "copy")
    return tmp_path / "copy"


def test_run_methods_finds_what_the_detector_finds(
    films: list[str], config: EvaluateConfig, run: MethodRun
) -> None:
    assert list(run.found) == [films[0], films[2], films[3]]
    detector = detect_config(config, "search").load_detector()
    names = "side", "laterality", "method", "polarity", "needs_review"
    for film, knees in run.found.items():
        for mine, theirs in zip(knees, detector.detect(film), strict=True):
            assert mine.loss == pytest.approx(theirs.loss, abs=1e-5)
            assert mine.corners == pytest.approx(theirs.corners, abs=1e-3)
            assert mine.mm_per_px == pytest.approx(theirs.mm_per_px, abs=1e-6)
            assert mine.review_reasons == theirs.review_reasons
            for name in names:
                assert getattr(mine, name) == getattr(theirs, name)
            for name, place in theirs.landmarks.items():
                assert mine.landmarks[name] == pytest.approx(place, abs=1e-3)


def test_run_methods_keeps_the_reasons_of_films_that_failed(
    films: list[str], run: MethodRun, tmp_path: Path
) -> None:
    assert list(run.failed) == [films[1]]
    assert run.failed[films[1]].count(films[1]) == 1
    synthesize(tmp_path / "films", SynthConfig(1, size=SIZE, framing="other", workers=0))
    (hand,) = map(str, (tmp_path / "films").glob("*.dcm"))
    config = EvaluateConfig(methods=("locator",), device="cpu", workers=0)
    (none,) = run_methods([hand], tmp_path / "out", config)
    assert none.found == {}
    assert none.failed == {hand: f"{hand}: no frontal knee found"}


def test_run_methods_reads_a_complete_run_instead_of_searching_again(
    films: list[str], copy: Path, config: EvaluateConfig, run: MethodRun
) -> None:
    detections = copy / "runs" / "search" / "detections.csv"
    before = detections.read_bytes()
    opened: list[tuple[str, int, int]] = []

    def progress(label: str, total: int, done: int = 0) -> AbstractContextManager[Advance]:
        opened.append((label, total, done))
        return no_progress(label, total, done)

    (again,) = run_methods(films, copy, replace(config, resume=True), progress)
    assert list(again.found) == list(run.found)
    assert opened[0] == ("detecting", 4, 4)
    assert detections.read_bytes() == before


def test_run_methods_adds_a_method_to_those_that_were_run(
    films: list[str], copy: Path, config: EvaluateConfig, run: MethodRun
) -> None:
    more = replace(config, methods=("search", "neural"), resume=True)
    search, neural = run_methods(films, copy, more)
    assert set(search.found) == set(neural.found) == set(run.found)


def test_run_methods_returns_the_named_films_only(
    films: list[str], copy: Path, config: EvaluateConfig
) -> None:
    (found,) = run_methods(films[:2], copy, replace(config, resume=True))
    assert (list(found.found), list(found.failed)) == (films[:1], films[1:2])
    (found,) = run_methods(films[:1], copy, replace(config, force=True))
    assert list(found.found) == films[:1]


def test_films_per_method_gives_the_grid_search_the_first_films_only() -> None:
    assert films_per_method(EvaluateConfig(), 9) == dict.fromkeys(METHODS, 9)
    assert films_per_method(EvaluateConfig(grid=2), 9)["grid"] == 2
    assert films_per_method(EvaluateConfig(grid=20), 9)["grid"] == 9


def losses(run: MethodRun) -> list[float]:
    return [knee.loss for knees in run.found.values() for knee in knees]


def test_measure_losses_are_those_of_the_papers_search_in_its_half_images(
    config: EvaluateConfig, run: MethodRun
) -> None:
    (measured,) = measure_losses([run], load_loss_template(config))
    assert losses(measured) == pytest.approx(losses(run), abs=2e-5)


def test_measure_losses_depend_on_the_area_alone_and_not_on_the_method(
    films: list[str], run: MethodRun, tmp_path: Path
) -> None:
    config = EvaluateConfig(methods=("locator",), device="cpu", workers=0)
    (located,) = run_methods(films[2:], tmp_path, config)
    assert located.found
    same = MethodRun(
        "search", {f: tuple(replace(k, loss=9.0) for k in ks) for f, ks in located.found.items()}
    )
    one, other = measure_losses([located, same], load_loss_template(config))
    assert losses(one) == losses(other)
    assert losses(one) != pytest.approx(losses(located), abs=1e-4)  # its images have less detail


def test_measure_losses_of_a_missing_film_are_unknown(
    config: EvaluateConfig, run: MethodRun
) -> None:
    gone = MethodRun("search", {"gone.dcm": next(iter(run.found.values()))})
    (measured,) = measure_losses([gone], load_loss_template(config))
    assert all(map(math.isnan, losses(measured)))


@dataclass
class Recorder:
    """Takes the place of a detector, and records how many films it is given."""

    method: str
    batch_size: int = 3
    device: str = "cpu"
    given: list[int] = field(default_factory=list)

    def detect_each(self, films: Iterable[Any]) -> list[tuple[Detection, ...]]:
        self.given.append(len(list(films)))
        return []


@pytest.mark.parametrize(("method", "given"), [("neural", [3, 8]), ("sliding", [8]), ("grid", [1])])
def test_measure_times_warms_networks_up_and_runs_the_grid_search_once(
    method: str, given: list[int], films: list[str]
) -> None:
    recorder: Any = Recorder(method)
    run = MethodRun(method, {}, failed={"missing.png": "missing"})
    (timed,) = measure_times([run], {method: recorder}, ["missing.png", *[films[0]] * 9])
    assert recorder.given == given
    assert timed.ms_per_film is not None
    assert timed.failed == run.failed
    assert "batches of up to 3" in timing_caption({method: recorder})


def test_measure_times_are_unknown_without_films(films: list[str]) -> None:
    recorder: Any = Recorder("neural")
    (timed,) = measure_times([MethodRun("neural", {})], {"neural": recorder}, [films[1]])
    assert timed.ms_per_film is None
