"""Methods as runs, and what is read back from them."""

import shutil
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest
from kneematch.batch.recipe import Recipe

from kneematch.batch.run import Advance, silent
from kneematch.errors import SettingsError
from kneematch.evaluation.config import METHODS, Settings
from kneematch.evaluation.method_run import Trial
from kneematch.evaluation.method_runs import films_of_methods, run_trials
from kneematch.synthetic.config import SynthConfig
from kneematch.synthetic.dataset import synthesize


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Three small phantoms, and a fourth that is cut short."""
    folder = tmp_path_factory.mktemp("films")
    synthesize(folder, SynthConfig(3, size=(320, 400), workers=0))
    good = sorted(folder.glob("*.dcm"))
    broken = folder / "broken.dcm"
    broken.write_bytes(good[0].read_bytes()[:5000])
    return [str(path) for path in (good[0], broken, *good[1:])]


@pytest.fixture(scope="module")
def ran(films: list[str], tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """The settings of `trials`."""
    out = tmp_path_factory.mktemp("evaluation")
    # The paper's search needs no model, so it is quick to build.
    recipe = Recipe(
        template=str(Path(films[0]).with_name("template.json")),
        paper=True,
        device="cpu",
        batch_size=2,
    )
    return Settings(out, recipe, methods=("search",), workers=0)


@pytest.fixture(scope="module", autouse=True)
def trials(films: list[str], ran: Settings) -> list[Trial]:
    """One method on the films."""
    return run_trials(ran, films)


def test_a_trial_is_what_the_detector_finds(
    films: list[str], ran: Settings, trials: list[Trial]
) -> None:
    (trial,) = trials
    assert trial.method == "search"
    assert list(trial.found) == [films[0], films[2], films[3]]
    detector = replace(ran.recipe, method="search").build()
    for film, knees in trial.found.items():
        for mine, theirs in zip(knees, detector.detect(film), strict=True):
            assert mine.loss == pytest.approx(theirs.loss, abs=1e-4)
            assert mine.corners == pytest.approx(theirs.corners, abs=0.01)


def test_films_that_failed_are_kept_with_their_reasons(
    films: list[str], trials: list[Trial]
) -> None:
    for trial in trials:
        assert list(trial.failed) == [films[1]]
        assert trial.failed[films[1]]


def test_a_complete_run_is_read_and_not_searched_again(
    films: list[str], ran: Settings, trials: list[Trial]
) -> None:
    ledger = ran.out / "runs" / "search" / "ledger.jsonl"
    before = ledger.read_bytes()
    done: list[tuple[int, int]] = []

    def progress(total: int, before: int) -> AbstractContextManager[Advance]:
        done.append((total, before))
        return silent(total, before)

    again = run_trials(replace(ran, resume=True), films, progress)
    assert [list(trial.found) for trial in again] == [list(trial.found) for trial in trials]
    assert done == [(4, 4)]
    assert ledger.read_bytes() == before


def test_a_further_method_is_run_beside_those_there(
    films: list[str], ran: Settings, trials: list[Trial], tmp_path: Path
) -> None:
    out = tmp_path / "copy"
    shutil.copytree(ran.out, out)
    more = replace(ran, out=out, methods=("search", "neural"), resume=True)
    said: list[str] = []
    _, neural = run_trials(more, films, say=said.append)
    assert said == ["search, 4 films", "neural, 4 films"]
    assert neural.method == "neural"
    assert set(neural.found) == set(trials[0].found)


def test_a_folder_with_runs_is_refused_before_a_film_is_read(
    films: list[str], ran: Settings
) -> None:
    other = replace(ran, methods=("sliding",))  # which is not there, but its neighbours are
    with pytest.raises(SettingsError, match="--resume") as refused:
        run_trials(other, films)
    assert "\n" not in str(refused.value)
    assert not (ran.out / "runs" / "sliding").exists()


def test_force_starts_over(films: list[str], ran: Settings, tmp_path: Path) -> None:
    out = tmp_path / "copy"
    shutil.copytree(ran.out, out)
    (trial,) = run_trials(replace(ran, out=out, force=True), films[:1])
    assert list(trial.found) == films[:1]


def test_other_films_than_the_runs_are_refused(films: list[str], ran: Settings) -> None:
    with pytest.raises(SettingsError, match="films was"):
        run_trials(replace(ran, resume=True), films[:2])


def test_the_grid_gets_the_first_films_only(tmp_path: Path) -> None:
    assert films_of_methods(Settings(tmp_path), 9) == dict.fromkeys(METHODS, 9)
    assert films_of_methods(Settings(tmp_path, grid=2), 9)["grid"] == 2
    assert films_of_methods(Settings(tmp_path, grid=20), 9)["grid"] == 9


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"methods": ()}, "no methods"),
        ({"methods": ("neural", "grid")}, "--grid N"),
        ({"methods": ("nonsense",)}, "nonsense"),
        ({"methods": ("neural", "neural")}, "each once"),
        ({"grid": -1}, "--grid -1"),
        ({"workers": -1}, "-1 workers"),
        ({"resume": True, "force": True}, "one of them"),
    ],
)
def test_settings_that_cannot_be_are_refused(
    wrong: dict[str, object], said: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match=said):
        Settings(tmp_path, **wrong)  # type: ignore[arg-type]
