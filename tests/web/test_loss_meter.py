"""The loss of the run's template at other areas."""

import json
from pathlib import Path

import pytest

from kneematch.films.annotation import annotate, save_annotation
from kneematch.films.files import content_hash
from kneematch.films.read import read
from kneematch.films.write import write_dicom
from kneematch.models.model_file import shipped_model
from kneematch.run.config import DetectConfig
from kneematch.run.correction import area_of, move_detection
from kneematch.run.decisions import Area
from kneematch.run.pipeline import detect_folder
from kneematch.web.detections_table import DetectionsTable, read_detections_table
from kneematch.web.loss_meter import load_run_template, loss_at
from kneephantoms.phantom import phantom


@pytest.fixture
def table(finished_run: Path) -> DetectionsTable:
    return read_detections_table(finished_run)


def test_loss_at_agrees_with_detect(table: DetectionsTable, finished_run: Path) -> None:
    template, reason = load_run_template(finished_run)
    assert template is not None, reason
    for row in range(len(table)):
        film = read(table.text["film"][row])
        found = table.detection(row)
        # The view is cut around the area, not where the locator saw the knee.
        assert loss_at(found, film, template) == pytest.approx(found.loss, abs=0.015)
        area = area_of(found)
        elsewhere = Area(area.centre_x_px + 9, area.centre_y_px, area.width_px, area.rotation_deg)
        away = loss_at(move_detection(found, elsewhere), film, template)
        assert away > found.loss + 0.05


def test_load_run_template_refuses_another_template_than_the_runs(run_folder: Path) -> None:
    path = run_folder / "run.json"
    run = json.loads(path.read_text())
    hashes = dict.fromkeys(run["sha256"], "0" * 64)
    path.write_text(json.dumps({**run, "sha256": hashes}))
    assert load_run_template(run_folder) == (None, "the run's template has changed since")
    gone = {**run["settings"], "template": "gone.json"}
    path.write_text(json.dumps({**run, "settings": gone}))
    assert load_run_template(run_folder)[0] is None
    path.unlink()
    template, reason = load_run_template(run_folder)
    assert template is None
    assert "run.json" in reason


def test_load_run_template_finds_the_template_of_a_model(run_folder: Path) -> None:
    settings = {"model": None, "template": None, "paper": False}
    run = {"settings": settings, "sha256": {"model": content_hash(shipped_model())}}
    (run_folder / "run.json").write_text(json.dumps(run))
    template, reason = load_run_template(run_folder)
    assert template is not None, reason
    assert {"plateau_medial", "plateau_lateral"} <= set(template.landmarks)


def test_load_run_template_takes_one_from_a_film_of_one_knee(tmp_path: Path) -> None:
    made = phantom(1, framing="single")  # its knee lies across the line between the halves
    film, (knee,) = tmp_path / "films" / "one.dcm", made.knees
    film.parent.mkdir()
    write_dicom(film, made.radiograph.pixels, mm_per_px=None, laterality=None)
    drawn = annotate(film, knee.side, knee.plateau_left, knee.plateau_right)
    save_annotation(drawn, tmp_path / "template.json")
    config = DetectConfig(template=str(tmp_path / "template.json"), workers=0)
    detect_folder(film.parent, tmp_path / "out", config)
    template, reason = load_run_template(tmp_path / "out")
    assert template is not None, reason
    found = read_detections_table(tmp_path / "out").detection(0)
    assert loss_at(found, read(film), template) == pytest.approx(found.loss, abs=0.015)


MALFORMED_RUNS = [
    "",
    "[]",
    "null",
    "{}",
    "[" * 100_000,
    '{"settings": [], "sha256": {}}',
    '{"settings": null, "sha256": null}',
    '{"settings": {"template": 5}, "sha256": {}}',
    '{"settings": {"template": ["a"]}, "sha256": {}}',
    '{"settings": {"template": "a\\u0000b"}, "sha256": {}}',
    '{"settings": {"template": "\\ud800"}, "sha256": {}}',
    '{"settings": {"model": {}}, "sha256": {}}',
    '{"settings": {"model": "."}, "sha256": {"model": 1}}',
    '{"settings": {}, "sha256": {}}',
    '{"settings": {}, "sha256": []}',
    "\xff",
]


@pytest.mark.parametrize("text", MALFORMED_RUNS)
def test_load_run_template_reports_a_malformed_run_file_in_one_line(
    text: str, run_folder: Path
) -> None:
    (run_folder / "run.json").write_text(text, encoding="latin-1")
    template, reason = load_run_template(run_folder)
    assert template is None
    assert reason
    assert len(reason.splitlines()) == 1
