"""The loss of the run's template at other areas."""

from dataclasses import replace
from pathlib import Path

import pytest

from kneematch.films.annotation import annotate, save_annotation
from kneematch.films.files import content_hash
from kneematch.films.read import read
from kneematch.knee.decision import Area, move
from kneematch.models.model_file import builtin_model
from kneematch.run.config import DetectConfig
from kneematch.run.database import Run
from kneematch.run.pipeline import detect_folder
from kneematch.web.template_loss import load_run_template, loss_at
from kneephantoms import phantom
from kneephantoms.files import write_dicom
from phantom_films import radiograph


def test_loss_at_agrees_with_detect(run_folder: Path) -> None:
    with Run(run_folder) as run:
        template, reason = load_run_template(run)
        records = list(run.records())
    assert template is not None, reason
    for record in records:
        film = read(record.path)
        for found in record.found:
            # The view is cut around the area, not where the locator saw the knee.
            assert loss_at(found, film, template) == pytest.approx(found.loss, abs=0.015)
            area = Area.from_detection(found)
            elsewhere = replace(area, centre_x_px=area.centre_x_px + 9)
            assert loss_at(move(found, elsewhere), film, template) > found.loss + 0.05


def test_load_run_template_refuses_another_template_than_the_runs(run_folder: Path) -> None:
    with Run(run_folder) as run:
        config, info = run.setting("config"), run.setting("run")
        run.store(run={**info, "sha256": dict.fromkeys(info["sha256"], "0" * 64)})
        assert load_run_template(run) == (None, "The run's template has changed since.")
        run.store(run=info, config={**config, "template": "gone.json"})
        template, reason = load_run_template(run)
        assert (template, "gone.json" in reason) == (None, True)
        run.store(config={**config, "workers": "many"})
        template, reason = load_run_template(run)
        assert (template, reason.count("\n")) == (None, 0)


def test_load_run_template_finds_the_template_of_a_model(run_folder: Path) -> None:
    with Run(run_folder) as run:
        model = {"model": None, "template": None, "method": "auto"}
        hashes = {"model": content_hash(builtin_model())}
        run.store(config={**run.setting("config"), **model})
        run.store(run={**run.setting("run"), "sha256": hashes})
        template, reason = load_run_template(run)
    assert template is not None, reason
    assert {"plateau_medial", "plateau_lateral"} <= set(template.landmarks)


def test_load_run_template_takes_one_from_a_film_of_one_knee(tmp_path: Path) -> None:
    made = phantom(1, framing="single")  # its knee lies across the line between the halves
    film, (knee,) = tmp_path / "films" / "one.dcm", made.knees
    film.parent.mkdir()
    write_dicom(film, radiograph(made).pixels, mm_per_px=None, laterality=None)
    drawn = annotate(film, knee.side, knee.plateau_left, knee.plateau_right)
    save_annotation(drawn, tmp_path / "template.json")
    config = DetectConfig(template=str(tmp_path / "template.json"), workers=0)
    detect_folder(film.parent, tmp_path / "out", config)
    with Run(tmp_path / "out") as run:
        template, reason = load_run_template(run)
        (found,) = run.record(1).found
    assert template is not None, reason
    assert loss_at(found, read(film), template) == pytest.approx(found.loss, abs=0.015)
