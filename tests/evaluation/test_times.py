"""The time of a method, measured on detectors whose time is known."""

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from kneematch.detection.prepare import Prepared, prepare

from kneematch.detection.detector import Detector
from kneematch.evaluation.method_run import Trial
from kneematch.evaluation.times import how_timed, milliseconds, timed
from kneematch.io.write import write_png16
from kneematch.matching.template import Template, cut_template
from kneematch.solvers.problem import Problem, Solution
from kneematch.synthetic.annotation import annotate
from kneematch.synthetic.phantom import phantom

SLEEP_MS = 40
SIZE = (320, 400)


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
def films() -> list[Prepared]:
    made = phantom(1, size=SIZE).radiograph
    return [prepare(made, 0.0)] * 4


class Sleeper:
    """Finds everything in the middle; its first call may take longer, as a network's does."""

    def __init__(self, start_ms: float = 0) -> None:
        self.asked: list[int] = []
        self.start_ms = start_ms

    def __call__(self, problem: Problem) -> Solution:
        n, sides = problem.halves.shape[:2]
        time.sleep((n * SLEEP_MS + (0 if self.asked else self.start_ms)) / 1000)
        self.asked.append(n)
        return Solution(torch.zeros(n, sides, 4), torch.zeros(n))


def of(template: Template, sleeper: Sleeper, method: str, batch_size: int = 3) -> Detector:
    return Detector(template, sleeper, method, paper=True, batch_size=batch_size)


def test_the_first_call_of_a_network_does_not_count(
    template: Template, films: Sequence[Prepared]
) -> None:
    sleeper = Sleeper(start_ms=2000)
    found = milliseconds(of(template, sleeper, "neural"), films)
    assert found is not None
    assert SLEEP_MS <= found < 500  # 2000 / 4 films, were it counted
    assert sleeper.asked == [3, 3, 1]


def test_a_method_without_networks_is_not_called_for_nothing(
    template: Template, films: Sequence[Prepared]
) -> None:
    sleeper = Sleeper()
    milliseconds(of(template, sleeper, "sliding"), films)
    assert sleeper.asked == [3, 1]


def test_the_grid_is_timed_on_one_film(template: Template, films: Sequence[Prepared]) -> None:
    sleeper = Sleeper()
    found = milliseconds(of(template, sleeper, "grid"), films)
    assert sleeper.asked == [1]
    assert found is not None
    assert found >= SLEEP_MS


def test_without_films_there_is_no_time(template: Template) -> None:
    assert milliseconds(of(template, Sleeper(), "neural"), []) is None


def test_films_are_read_before_and_bad_ones_left_out(template: Template, film: Path) -> None:
    sleeper = Sleeper()
    detectors = {"sliding": of(template, sleeper, "sliding", batch_size=5)}
    named = [str(film.with_name("missing.png")), *[str(film)] * 9]
    (trial,) = timed([Trial("sliding", {}, failed={named[0]: "missing"})], detectors, named)
    assert sleeper.asked == [5, 3]  # eight of the nine
    assert trial.ms_a_film is not None
    assert trial.ms_a_film >= SLEEP_MS
    assert trial.failed == {named[0]: "missing"}


def test_the_caption_names_the_device_and_the_batch(template: Template) -> None:
    told = how_timed({"sliding": of(template, Sleeper(), "sliding", batch_size=5)})
    assert "cpu" in told
    assert "batches of up to 5" in told
