"""A whole evaluation of small phantoms, and what it writes."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import kneematch
from kneematch.errors import SettingsError
from kneematch.evaluation.config import EvaluateConfig
from kneematch.evaluation.run import EvaluateResult, evaluate
from kneematch.films.annotation import annotate, load_annotation, save_annotation
from kneephantoms.config import SynthConfig
from kneephantoms.dataset import synthesize
from kneephantoms.files import write_dicom
from tables import read_table

METHODS = ("neural", "search")
OWN = "phantom-00000"  # of the template


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three small phantoms with their truth, and a template."""
    folder = tmp_path_factory.mktemp("films")
    synthesize(folder, SynthConfig(3, size=(320, 400), workers=0))
    return folder


@pytest.fixture(scope="module")
def films(folder: Path) -> list[str]:
    """The phantoms, and one that is not there."""
    return [*map(str, sorted(folder.glob("*.dcm"))), str(folder / "missing.dcm")]


@pytest.fixture(scope="module")
def config(folder: Path) -> EvaluateConfig:
    return EvaluateConfig(
        template=str(folder / "template.json"),
        methods=METHODS,
        paper=True,
        device="cpu",
        batch_size=2,
        truth=folder / "truth.csv",
        workers=0,
    )


@pytest.fixture(scope="module")
def done(
    films: list[str], config: EvaluateConfig, tmp_path_factory: pytest.TempPathFactory
) -> EvaluateResult:
    return kneematch.evaluate(films, tmp_path_factory.mktemp("out") / "evaluation", config)


def test_evaluate_of_one_method_has_no_empty_table(
    films: list[str], config: EvaluateConfig, tmp_path: Path
) -> None:
    one = kneematch.evaluate(films[:2], tmp_path, replace(config, methods=("neural",)))
    names = {table.name for table in one.tables}
    assert not names & {"pairs", "lower_loss", "failures"}
    assert {"losses", "uniformity", "accuracy"} <= names
    assert all(table.rows for table in one.tables)
    page = one.page.read_text()
    assert "## Pairs" not in page
    assert "in bold" not in page


def test_evaluate_refuses_a_template_without_margins_before_any_film_is_searched(
    films: list[str], config: EvaluateConfig, tmp_path: Path
) -> None:
    drawn = load_annotation(str(config.template))
    save_annotation(replace(drawn, landmarks={}), tmp_path / "bare.json")
    bare = replace(config, template=str(tmp_path / "bare.json"))
    with pytest.raises(SettingsError, match="areas with 0 landmarks; expected both margins"):
        kneematch.evaluate(films, tmp_path / "out", bare)
    assert not (tmp_path / "out").exists()


def test_evaluate_writes_every_table_to_all_files(done: EvaluateResult) -> None:
    names = [table.name for table in done.tables]
    assert len(set(names)) == len(names)
    assert {"losses", "pairs", "uniformity", "accuracy", "reliability", "failures"} <= set(names)
    page, latex = done.page.read_text(), (done.out / "tables.tex").read_text()
    numbers = json.loads((done.out / "evaluation.json").read_text())
    assert list(numbers["tables"]) == names
    for table in done.tables:
        assert table.caption in page
        assert f"\\label{{tab:{table.name}}}" in latex
        assert len(read_table(done.out / f"{table.name}.csv")) == len(table.rows)


def test_evaluate_has_the_losses_of_the_runs_own_tables(done: EvaluateResult) -> None:
    for row in read_table(done.out / "losses.csv"):
        detected = read_table(done.out / "runs" / row["method"] / "detections.csv")
        assert int(row["films"]) == 2  # without that of the template
        total = sum(float(knee["loss"]) for knee in detected if OWN not in knee["film"])
        assert float(row["left + right loss"]) == pytest.approx(total / 2, abs=1e-5)
        assert float(row["ms a film"]) > 0


def test_evaluate_leaves_the_templates_own_knee_out_and_says_so(done: EvaluateResult) -> None:
    assert "The template's own knee, in the" in done.page.read_text()
    numbers = json.loads((done.out / "evaluation.json").read_text())["tables"]
    assert {row["crops"] for row in numbers["uniformity"]} == {5}
    assert {row["knees"] for row in numbers["accuracy"] if row["source"] == "all"} == {5}
    assert all(row["missed"] == 0 for row in numbers["accuracy"])
    assert min(knee.loss for run in done.runs for k in run.found.values() for knee in k) > 0.005


def test_evaluate_draws_figures_and_shows_them_on_the_page(done: EvaluateResult) -> None:
    page = done.page.read_text()
    assert list(done.drawings) == ["figure", "outlines", "curve"]
    for drawing in done.drawings:
        assert f"]({drawing}.png)" in page
        assert (done.out / f"{drawing}.pdf").read_bytes().startswith(b"%PDF")
        with Image.open(done.out / f"{drawing}.png") as picture:
            assert np.asarray(picture.convert("L")).std() > 1  # not an empty page


def test_evaluate_lists_a_film_that_failed_once(done: EvaluateResult, films: list[str]) -> None:
    assert list(done.failed) == [films[-1]]
    (row,) = read_table(done.out / "failures.csv")
    assert row["film"] == films[-1]
    assert row["methods"] == "neural, search"
    assert row["reason"] in done.page.read_text()


def test_evaluate_keeps_all_that_is_needed_to_repeat_it(done: EvaluateResult, folder: Path) -> None:
    numbers = json.loads((done.out / "evaluation.json").read_text())
    assert numbers["command"] == sys.argv
    assert numbers["settings"]["truth"] == str(folder / "truth.csv")
    assert numbers["settings"]["methods"] == list(METHODS)
    assert set(numbers["sha256"]) == {"model", "template", "template_film"}
    assert "kneematch" in numbers["versions"]
    assert numbers["films"] == 4


def test_evaluate_refuses_labels_of_other_films_before_reading_any(
    films: list[str], config: EvaluateConfig, tmp_path: Path
) -> None:
    labels = tmp_path / "labels.csv"
    labels.write_text("id,knee,x1,y1,x2,y2\nanother,L,1,1,9,9\n")
    with pytest.raises(SettingsError, match="no film is labelled"):
        evaluate(films, tmp_path / "out", replace(config, truth=labels))
    assert not (tmp_path / "out").exists()


def test_evaluate_refuses_a_folder_with_an_evaluation_before_reading_a_film(
    done: EvaluateResult, films: list[str], config: EvaluateConfig
) -> None:
    other = replace(config, methods=("sliding",))  # which is not there, but its neighbours are
    with pytest.raises(SettingsError, match="--resume") as refused:
        evaluate(films, done.out, other)
    assert "\n" not in str(refused.value)
    assert not (done.out / "runs" / "sliding").exists()


def test_evaluate_with_force_leaves_nothing_of_the_evaluation_before(
    done: EvaluateResult, films: list[str], config: EvaluateConfig, tmp_path: Path
) -> None:
    out = tmp_path / "copy"
    shutil.copytree(done.out, out)
    (out / "notes.csv").write_text("the user's own")
    alone = replace(config, methods=("search",), truth=None, force=True)
    again = evaluate(films[1:2], out, alone)
    assert not (out / "accuracy.csv").exists()
    assert not (out / "curve.png").exists()
    assert (out / "notes.csv").exists()
    assert list(again.drawings) == ["figure", "outlines"]


@pytest.mark.parametrize("labelled", [False, True])
def test_evaluate_without_a_usable_film_writes_tables_and_no_figures(
    config: EvaluateConfig, tmp_path: Path, labelled: bool
) -> None:
    truth = config.truth if labelled else None
    alone = replace(config, methods=("search",), truth=truth)
    empty = tmp_path / "phantom-00000.dcm"  # labelled, but no film
    empty.touch()
    nothing = evaluate([str(empty)], tmp_path / "out", alone)
    assert nothing.drawings == {}
    assert nothing.page.exists()
    assert len(nothing.failed) == 1


def test_evaluate_removes_nothing_when_it_refuses_to_resume(
    done: EvaluateResult, films: list[str], config: EvaluateConfig
) -> None:
    other = replace(config, methods=("search",), truth=None, paper=False, resume=True)
    with pytest.raises(SettingsError, match="paper was"):
        evaluate(films[:2], done.out, other)
    assert done.page.exists()
    assert (done.out / "accuracy.csv").exists()


def test_evaluate_takes_the_first_films_of_a_series_in_a_folder(
    folder: Path, config: EvaluateConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="kneematch")
    films = tmp_path / "films"
    films.mkdir()
    shutil.copy(folder / "phantom-00001.dcm", films / "film.dcm")
    shutil.copy(folder / "phantom-00002.dcm", films / "later.dcm")
    (films / "notes.txt").write_text("not a film")
    write_dicom(
        films / "a.dcm",
        np.zeros((64, 80), np.float32),
        mm_per_px=None,
        laterality=None,
        series="Pelvis",
    )
    chosen = replace(config, methods=("search",), truth=None, limit=1, series="PHANTOM")
    found = evaluate([str(films)], tmp_path / "out", chosen)
    assert list(found.runs[0].found) == [str(films / "film.dcm")]
    assert "1 of 3 films are of other series" in caplog.messages
    with pytest.raises(SettingsError, match="none of 3 films"):
        evaluate([str(films)], tmp_path / "new", replace(chosen, series="hand"))


def test_evaluate_ranks_templates(folder: Path, config: EvaluateConfig, tmp_path: Path) -> None:
    drawn = tmp_path / "templates"
    drawn.mkdir()
    for row in read_table(folder / "truth.csv")[::2]:
        left, right = sorted(
            (float(row[f"plateau_{end}_x_px"]), float(row[f"plateau_{end}_y_px"]))
            for end in ("medial", "lateral")
        )
        film = folder / row["film"]
        save_annotation(annotate(film, row["side"], left, right), drawn / f"{film.stem}.json")
    chosen = EvaluateConfig(templates=drawn, paper=True, device="cpu")
    ranked = evaluate([], tmp_path / "out", chosen)
    table = ranked.table("templates")
    assert table is not None
    assert {row[0] for row in table.rows} == {path.name for path in drawn.iterdir()}
    assert len(read_table(ranked.out / "templates.csv")) == 3
    assert table.caption in ranked.page.read_text()
    assert ranked.table("losses") is None
    with pytest.raises(SettingsError, match="--force"):
        evaluate([], tmp_path / "out", chosen)
