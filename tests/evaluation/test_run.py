"""A whole evaluation of small phantoms, and what it writes."""

import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import kneematch
from kneematch.errors import SettingsError
from kneematch.evaluation import EvaluateConfig
from kneematch.evaluation.run import (
    EvaluateResult,
    detect_config,
    evaluate,
    load_loss_template,
    measure_losses,
    read_run,
    write_report,
)
from kneematch.evaluation.scores import MethodRun, Table
from kneematch.films.annotation import load_annotation, save_annotation
from kneephantoms.config import SynthConfig
from kneephantoms.dataset import synthesize
from part_films import part_annotation
from tables import read_table

COMPARED = ("search", "sliding")
OWN = "phantom-00000"  # of the template
ROWS = (("=neural", 0.12345678, 0.00001), ("a|b", None, 0.25), (None, 1.0, None))
TABLE = Table("losses", "A caption.", {"method": None, "loss": 3, "p": 3}, ROWS)


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
        methods=COMPARED,
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


def test_evaluate_refuses_what_it_cannot_compare_before_any_film_is_searched(
    films: list[str], config: EvaluateConfig, tmp_path: Path
) -> None:
    drawn = load_annotation(str(config.template))
    save_annotation(replace(drawn, landmarks={}), bare := tmp_path / "bare.json")
    save_annotation(part_annotation(tmp_path, "one"), part := tmp_path / "part.json")
    labels, out = tmp_path / "labels.csv", tmp_path / "out"
    labels.write_text("id,knee,x1,y1,x2,y2\nanother,L,1,1,9,9\n")
    for few, change, reason in (
        (films, {"template": str(bare)}, "lacks the landmarks plateau_medial and"),
        (films, {"template": str(part)}, "templates of knees only"),
        (films, {"truth": labels}, "labels none of the films"),
        (films[:1], {}, "Name other films"),  # the template's own film alone
    ):
        with pytest.raises(SettingsError, match=reason):
            evaluate(few, out, replace(config, **change))
        assert not out.exists()


def test_evaluate_writes_the_losses_and_scores_of_its_runs_without_the_templates_own_film(
    done: EvaluateResult,
) -> None:
    page = done.page.read_text()
    assert "The template's own film is left out." in page
    assert [table.name for table in done.tables] == ["losses", "accuracy"]
    for table in done.tables:
        assert table.caption in page
        assert len(read_table(done.out / f"{table.name}.csv")) == len(table.rows)
    for row in read_table(done.out / "losses.csv"):
        detected = read_table(done.out / "runs" / row["method"] / "detections.csv")
        assert int(row["films"]) == 2
        assert not any(OWN in knee["film"] for knee in detected)
        assert {knee["method"] for knee in detected} == {row["method"]}
        if row["method"] == "sliding":  # which minimises the loss that is compared
            total = sum(float(knee["loss"]) for knee in detected)
            assert float(row["left + right loss"]) == pytest.approx(total / 2, abs=5e-5)
    rows = [row for row in read_table(done.out / "accuracy.csv") if row["source"] == "all"]
    assert [(row["knees"], row["missed"]) for row in rows] == [("4", "0")] * 2


def test_evaluate_warns_of_ranking_by_loss_where_there_are_no_labels(
    films: list[str], config: EvaluateConfig, done: EvaluateResult, tmp_path: Path
) -> None:
    assert "Do not rank methods by this table" not in done.page.read_text()
    quick = replace(config, truth=None, methods=("sliding",))
    page = kneematch.evaluate(films[:2], tmp_path / "out", quick).page.read_text()
    assert "**Do not rank methods by this table.**" in page
    assert "--truth" in page


def test_evaluate_changes_no_evaluation_that_it_refuses_to_continue(
    done: EvaluateResult, films: list[str], config: EvaluateConfig
) -> None:
    template = Path(str(config.template))
    other = template.with_name("other.json")
    other.write_text(template.read_text() + "\n")
    with pytest.raises(SettingsError, match="another template"):
        evaluate(films[:2], done.out, replace(config, template=str(other)))
    assert done.page.exists()
    assert (done.out / "accuracy.csv").exists()


def test_evaluate_with_force_leaves_nothing_of_the_evaluation_before(
    done: EvaluateResult, films: list[str], config: EvaluateConfig, tmp_path: Path
) -> None:
    out = tmp_path / "copy"
    shutil.copytree(done.out, out)
    (out / "notes.csv").write_text("the user's own")
    alone = replace(config, methods=("search",), truth=None, force=True)
    again = evaluate(films[1:2], out, alone)
    assert not (out / "accuracy.csv").exists()
    assert (out / "notes.csv").exists()
    assert [table.name for table in again.tables] == ["losses"]  # no empty one


def test_evaluate_without_a_usable_film_writes_tables(
    config: EvaluateConfig, tmp_path: Path
) -> None:
    alone = replace(config, methods=("search",))
    empty = tmp_path / "phantom-00000.dcm"  # labelled, but no film
    empty.touch()
    nothing = evaluate([str(empty)], tmp_path / "out", alone)
    assert nothing.page.exists()
    assert len(nothing.failed) == 1


@pytest.fixture(scope="module")
def search(done: EvaluateResult, films: list[str]) -> MethodRun:
    return read_run(done.out / "runs" / "search", "search", films)


def test_read_run_has_what_was_found_and_reasons_of_films_that_failed(
    films: list[str], config: EvaluateConfig, search: MethodRun
) -> None:
    assert (list(search.found), list(search.failed)) == (films[1:3], films[3:])
    detector = detect_config(config, "search").load_detector(config.template)
    for mine, theirs in zip(search.found[films[1]], detector.detect(films[1]), strict=True):
        assert mine.corners == pytest.approx(theirs.corners, abs=1e-3)
        assert (mine.side, mine.method) == (theirs.side, theirs.method)


def test_read_run_finds_films_that_are_named_by_other_paths(
    done: EvaluateResult, films: list[str], search: MethodRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(films[0]).parent)
    names = [Path(film).name for film in films]
    named = read_run(done.out / "runs" / "search", "search", names)
    assert (list(named.found), list(named.failed)) == (names[1:3], names[3:])


def test_evaluate_gives_reasons_of_films_that_no_method_can_use(
    done: EvaluateResult, films: list[str], search: MethodRun
) -> None:
    for run in done.runs:
        assert (list(run.found), list(run.failed)) == (films[1:3], films[3:])
        assert run.failed[films[3]].startswith(films[3])


def test_evaluate_config_compares_what_detect_has_by_default(config: EvaluateConfig) -> None:
    assert EvaluateConfig().methods == ("auto",)
    assert EvaluateConfig(template=config.template).methods == ("auto", "search")


def losses(run: MethodRun) -> list[float]:
    return [knee.loss for knees in run.found.values() for knee in knees]


def test_measure_losses_depend_on_the_area_alone_and_not_on_the_method(
    films: list[str], tmp_path: Path
) -> None:
    config = EvaluateConfig(device="cpu", workers=0)
    kneematch.detect_folder(films[1:3], tmp_path / "out", detect_config(config, "auto"))
    located = read_run(tmp_path / "out", "auto", films)
    assert located.found
    changed = {f: tuple(replace(k, loss=9.0) for k in ks) for f, ks in located.found.items()}
    template = load_loss_template(config)
    gone = MethodRun("gone", {"gone.dcm": located.found[films[1]]})
    runs = [located, MethodRun("search", changed), gone]
    one, other, unknown = measure_losses(runs, template)
    assert losses(one) == losses(other)
    assert all(map(math.isnan, losses(unknown)))
    assert losses(one) != pytest.approx(losses(located), abs=1e-4)  # its images have less detail


def test_write_report_writes_all_digits_no_formulas_and_names_that_are_not_utf8(
    tmp_path: Path,
) -> None:
    odd = Table("accuracy", "", {"film": None, "loss": 2}, (("\udcff.dcm", 0.5),))
    write_report(EvaluateResult(tmp_path, tables=(TABLE, odd), note="A note."), "3 films", "cpu")
    rows = read_table(tmp_path / "losses.csv")
    assert [row["loss"] for row in rows] == ["0.12345678", "", "1.0"]
    assert rows[0]["method"] == "'=neural"
    assert b"\xff.dcm" in (tmp_path / "accuracy.csv").read_bytes()
    page = (tmp_path / "evaluation.md").read_bytes()
    assert b"| \xff.dcm | 0.50 |" in page
    assert b"\n3 films; kneematch " in page
    assert b"\n\nA note.\n\n## Losses\n" in page
