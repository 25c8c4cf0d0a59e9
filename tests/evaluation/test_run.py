"""A whole evaluation of small phantoms, and what it writes."""

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from kneematch.batch.recipe import Recipe
from PIL import Image

from kneematch.errors import SettingsError
from kneematch.evaluation.config import Settings
from kneematch.evaluation.page import remove_earlier
from kneematch.evaluation.run import Evaluation, evaluate, evaluate_templates
from kneematch.matching.annotation import save_annotation
from kneematch.synthetic.annotation import annotate
from kneematch.synthetic.config import SynthConfig
from kneematch.synthetic.dataset import synthesize

METHODS = ("neural", "search")


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
def settings(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    out = tmp_path_factory.mktemp("out") / "evaluation"
    template = str(folder / "template.json")
    recipe = Recipe(template=template, paper=True, device="cpu", batch_size=2)
    return Settings(out, recipe, methods=METHODS, truth=folder / "truth.csv", workers=0)


@pytest.fixture(scope="module")
def done(settings: Settings, films: list[str]) -> Evaluation:
    return evaluate(settings, films, command=["kneematch", "evaluate"])


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_every_table_is_in_all_files(done: Evaluation) -> None:
    names = [table.name for table in done.tables]
    assert len(set(names)) == len(names)
    assert {"losses", "pairs", "uniformity", "accuracy", "reliability", "failures"} <= set(names)
    page, latex = done.page.read_text(), (done.out / "tables.tex").read_text()
    numbers = json.loads((done.out / "evaluation.json").read_text())
    assert list(numbers["tables"]) == names
    for table in done.tables:
        assert table.caption in page
        assert f"\\label{{tab:{table.name}}}" in latex
        assert len(rows(done.out / f"{table.name}.csv")) == len(table.rows)


def test_the_loss_is_that_of_the_runs_own_table(done: Evaluation) -> None:
    for row in rows(done.out / "losses.csv"):
        detected = rows(done.out / "runs" / row["method"] / "detections.csv")
        assert int(row["films"]) == 3
        total = sum(float(knee["loss"]) for knee in detected)
        assert float(row["left + right loss"]) == pytest.approx(total / 3, abs=1e-5)
        assert float(row["ms a film"]) > 0


def test_the_figures_are_there_and_on_the_page(done: Evaluation) -> None:
    page = done.page.read_text()
    assert [drawing.name for drawing in done.drawings] == ["figure", "outlines", "curve"]
    for drawing in done.drawings:
        assert f"]({drawing.name}.png)" in page
        assert (done.out / f"{drawing.name}.pdf").read_bytes().startswith(b"%PDF")
        with Image.open(done.out / f"{drawing.name}.png") as picture:
            assert np.asarray(picture.convert("L")).std() > 1  # not an empty page


def test_a_film_that_failed_is_told_of_once(done: Evaluation, films: list[str]) -> None:
    assert list(done.failed) == [films[-1]]
    (row,) = rows(done.out / "failures.csv")
    assert row["film"] == films[-1]
    assert row["methods"] == "neural, search"
    assert row["reason"] in done.page.read_text()


def test_all_that_is_needed_to_repeat_it_is_kept(done: Evaluation, folder: Path) -> None:
    told = json.loads((done.out / "evaluation.json").read_text())
    assert told["command"] == ["kneematch", "evaluate"]
    assert told["settings"]["truth"] == str(folder / "truth.csv")
    assert told["settings"]["methods"] == list(METHODS)
    assert set(told["sha256"]) == {"model", "template", "template_film"}
    assert "kneematch" in told["versions"]
    assert told["films"] == 4


def test_labels_of_other_films_are_refused_before_any_is_read(
    settings: Settings, films: list[str], tmp_path: Path
) -> None:
    labels = tmp_path / "labels.csv"
    labels.write_text("id,knee,x1,y1,x2,y2\nanother,L,1,1,9,9\n")
    with pytest.raises(SettingsError, match="no film is labelled"):
        evaluate(replace(settings, out=tmp_path / "out", truth=labels), films)
    assert not (tmp_path / "out").exists()


def test_starting_over_leaves_nothing_of_the_evaluation_before(
    done: Evaluation, settings: Settings, films: list[str], tmp_path: Path
) -> None:
    out = tmp_path / "copy"
    shutil.copytree(done.out, out)
    (out / "notes.csv").write_text("the user's own")
    alone = replace(settings, out=out, methods=("search",), truth=None, force=True)
    again = evaluate(alone, films[:1])
    assert not (out / "accuracy.csv").exists()
    assert not (out / "curve.png").exists()
    assert (out / "notes.csv").exists()
    assert [drawing.name for drawing in again.drawings] == ["figure", "outlines"]


def test_files_of_other_folders_are_not_removed(tmp_path: Path) -> None:
    kept, out = tmp_path / "kept.csv", tmp_path / "out"
    kept.touch()
    out.mkdir()
    (out / "evaluation.json").write_text(json.dumps({"files": ["../kept.csv", str(kept)]}))
    remove_earlier(out)
    assert kept.exists()


@pytest.mark.parametrize("labelled", [False, True])
def test_without_a_usable_film_there_are_tables_and_no_figures(
    settings: Settings, tmp_path: Path, labelled: bool
) -> None:
    truth = settings.truth if labelled else None
    alone = replace(settings, out=tmp_path / "out", methods=("search",), truth=truth)
    nothing = evaluate(alone, [str(tmp_path / "phantom-00000.dcm")])  # labelled, but not there
    assert nothing.drawings == ()
    assert nothing.page.exists()
    assert len(nothing.failed) == 1


def test_a_resumption_that_is_refused_removes_nothing(
    done: Evaluation, settings: Settings, films: list[str]
) -> None:
    with pytest.raises(SettingsError, match="films was"):
        evaluate(replace(settings, methods=("search",), truth=None, resume=True), films[:2])
    assert done.page.exists()
    assert (done.out / "accuracy.csv").exists()


def test_templates_are_ranked_and_written(folder: Path, settings: Settings, tmp_path: Path) -> None:
    drawn = tmp_path / "templates"
    drawn.mkdir()
    for row in rows(folder / "truth.csv")[::2]:
        left, right = (
            (float(row[f"plateau_{end}_x_px"]), float(row[f"plateau_{end}_y_px"]))
            for end in ("left", "right")
        )
        film = folder / row["film"]
        save_annotation(annotate(film, row["side"], left, right), drawn / f"{film.stem}.json")
    asked = replace(settings, out=tmp_path / "out", truth=None)
    ranked = evaluate_templates(asked, drawn)
    table = ranked.table("templates")
    assert table is not None
    assert {row[0] for row in table.rows} == {path.name for path in drawn.iterdir()}
    assert len(rows(ranked.out / "templates.csv")) == 3
    assert table.caption in ranked.page.read_text()
    with pytest.raises(SettingsError, match="--force"):
        evaluate_templates(asked, drawn)
