"""What `apply` reads of a run, and what it measures again."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch
from PIL import Image

from kneematch.errors import SettingsError
from kneematch.films.write import save_picture
from kneematch.knee.outlines import Outlines
from kneematch.run.apply import apply_review, check_ended, run_config
from kneematch.run.config import DetectConfig
from kneematch.run.decisions import AREA_COLUMNS, Area, Decision, ReviewLog
from kneematch.run.pipeline import detect_folder
from kneematch.run.journal import Journal
from kneematch.run.outputs.run_file import Counts, Run
from kneematch.run.row import Row
from kneematch.training.drawn_knees import read_corrected
from kneematch.training.outline_training import OutlineConfig, tune_outlines
from kneephantoms.config import SynthConfig
from kneephantoms.dataset import synthesize
from tables import read_table

NOW = datetime.now(UTC)
RUN = Run(NOW, NOW, Counts(1, 2, 0, 0), {"crops": True, "export": ["coco"]}, (), "cpu", {}, {})


def test_check_ended_refuses_a_run_with_films_to_be_done(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal.jsonl", create=True) as journal:
        journal.begin({})
        journal.add(["0.dcm", "1.dcm"])
        journal.append([Row(0, "0.dcm", failure="bad")])
        with pytest.raises(SettingsError, match=r"1 films have no row; .*kneematch detect"):
            check_ended(journal)
        journal.append([Row(1, "1.dcm", failure="bad")])
        check_ended(journal)


def test_run_config_takes_the_settings_that_it_knows() -> None:
    config = run_config(replace(RUN, settings={**RUN.settings, "new option": 1}))
    assert config.crops
    assert config.export == ("coco",)


@pytest.mark.parametrize(
    "settings", [{"export": 3}, {"sheet": 7}, {"num_parts": "a"}, {"crops": True, "crop_mm": "x"}]
)
def test_run_config_refuses_settings_that_no_run_has(settings: dict[str, object]) -> None:
    with pytest.raises(SettingsError):
        run_config(replace(RUN, settings=settings))


def test_run_config_draws_no_sheet_over_a_file_of_the_user(tmp_path: Path) -> None:
    ours, theirs, film = (tmp_path / name for name in ("ours.png", "theirs.png", "film.dcm"))
    save_picture(Image.new("L", (9, 9)), ours)
    Image.new("L", (9, 9)).save(theirs)
    film.write_bytes(b"a film")
    for path, kept in ((ours, ours), (theirs, None), (film, None), (tmp_path / "gone.png", None)):
        assert run_config(replace(RUN, settings={"sheet": str(path)})).sheet == kept


def test_apply_review_says_in_one_line_that_the_table_cannot_be_read(
    films: Path, tmp_path: Path
) -> None:
    out, path = tmp_path / "out", tmp_path / "out" / "detections.csv"
    detect_folder(films, out, DetectConfig(method="neural", device="cpu", workers=0, limit=1))
    for text in ("", "x" * 200_000, None):
        path.unlink()
        if text is not None:
            path.write_text(text)
        with pytest.raises(SettingsError, match=r"cannot be read; .*kneematch detect"):
            apply_review(out, workers=0)


def test_apply_review_goes_on_past_a_film_that_is_empty_now(tmp_path: Path) -> None:
    films, out = tmp_path / "films", tmp_path / "out"
    synthesize(films, SynthConfig(2, size=(320, 400), format="png", workers=0))
    config = DetectConfig(method="neural", device="cpu", workers=0, export=("dicom",))
    detect_folder(films, out, config)
    empty = sorted(films.glob("*.png"))[0]
    empty.write_bytes(b"")
    (problem,) = apply_review(out, workers=0).problems
    assert problem.startswith(f"{empty}: an empty file")


def test_apply_review_measures_corrected_knees_again(tmp_path: Path) -> None:
    films, out = tmp_path / "films", tmp_path / "out"
    synthesize(films, SynthConfig(1, size=(900, 1000), workers=0))
    detect_folder(films, out, DetectConfig(method="neural", device="cpu", measure=True, workers=0))
    left, right = read_table(out / "detections.csv")
    measured = read_table(out / "measurements.csv")
    assert all(row["plateau_width_px"] and row["jsw_x250_pct"] for row in measured)
    moved = {name: float(left[name]) for name in AREA_COLUMNS}
    moved["centre_x_px"] += 0.04 * moved["width_px"]
    film = left["film"]
    log = ReviewLog(out / "review.csv")
    log.add(Decision(film, "left", "corrected", Area(**moved)))
    log.close()
    torch.set_num_threads(2)
    try:
        assert apply_review(out, workers=0).problems == ()
        assert torch.get_num_threads() == 2  # as before
    finally:
        torch.set_num_threads(1)
    log = ReviewLog(out / "review.csv")
    off = Area(4.0, *(float(right[name]) for name in AREA_COLUMNS[1:]))
    log.add(Decision(film, "right", "corrected", off))
    log.close()
    for _ in range(2):  # the second time from the journal
        assert apply_review(out, workers=0).problems == ()
    corrected, at_the_edge = read_table(out / "detections.csv")
    for row in (corrected, at_the_edge):
        assert [row[name] for name in ("expected_error_px", "energy", "loss")] == [""] * 3
        assert (row["review"], row["reason"]) == ("", "")
    again, cut = read_table(out / "measurements.csv")
    for name in ("plateau_width_px", "jsw_x250_pct"):
        assert float(again[name]) == pytest.approx(float(measured[0][name]), rel=0.05)
        assert again[name] != measured[0][name]
    assert cut["jsw_x250_pct"] == ""
    assert "cut by the film's edge" in cut["reason"]
    journal = (out / "journal.jsonl").read_text()
    assert journal.count('"measured"') == 2
    (films / Path(film).name).unlink()
    log = ReviewLog(out / "review.csv")
    log.add(Decision(film, "left", "corrected", replace(Area(**moved), rotation_deg=0.5)))
    log.close()
    (problem,) = apply_review(out, workers=0).problems
    assert problem.startswith(f"{film}: not measured (No such file")
    assert read_table(out / "measurements.csv")[0]["jsw_x250_pct"] == ""


def test_apply_review_writes_outlines_that_were_drawn_and_training_finds_them(
    tmp_path: Path,
) -> None:
    films, out = tmp_path / "films", tmp_path / "out"
    synthesize(films, SynthConfig(1, size=(900, 1000), workers=0))
    settings = DetectConfig(method="neural", device="cpu", measure=True, overlays=True, workers=0)
    detect_folder(films, out, settings)
    (left, right), before = read_table(out / "detections.csv"), read_table(out / "measurements.csv")
    (overlay,) = (out / "overlays").iterdir()
    picture = overlay.read_bytes()
    record = json.loads((out / "outlines.json").read_text())["knees"][0]
    assert "corrected" not in record
    found = Outlines.from_dict(record)
    drawn = found.redrawn(found.femur - [0, 0.02 * found.width_px], found.tibia)
    area = Area(**{name: float(left[name]) for name in AREA_COLUMNS})
    log = ReviewLog(out / "review.csv")
    log.add(Decision(left["film"], "left", "corrected", area, float(left["loss"]), outlines=drawn))
    log.close()
    for _ in range(2):
        assert apply_review(out, workers=0).problems == ()
    knees = json.loads((out / "outlines.json").read_text())["knees"]
    assert [knee.get("corrected") for knee in knees] == [True, None]
    assert knees[0]["femur"] == drawn.to_dict()["femur"]
    assert knees[0]["femur_sides"] == record["femur_sides"]
    after = read_table(out / "measurements.csv")
    assert after[1] == before[1]
    wider = float(after[0]["jsw_x250_pct"]) - float(before[0]["jsw_x250_pct"])
    assert wider == pytest.approx(2.0, abs=0.05)
    assert (before[0]["jsw_x250_pct_sd"] != "", after[0]["jsw_x250_pct_sd"]) == (True, "")
    assert overlay.read_bytes() != picture
    assert read_table(out / "detections.csv") == [left | {"decision": "corrected"}, right]
    assert '"measured"' not in (out / "journal.jsonl").read_text()
    (knee,) = read_corrected(out)
    assert knee.outlines.to_dict() == drawn.to_dict()
    config = OutlineConfig(steps=1, batch=2, phantoms=2, device="cpu")
    assert tune_outlines([knee], tmp_path / "own.safetensors", config) == 1


def test_apply_review_keeps_added_knees_in_another_working_folder_and_without_their_film(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    synthesize("films", SynthConfig(count=1, size=(300, 250), framing="other", workers=0))
    out = tmp_path / "out"
    detect_folder("films", "out", DetectConfig(crops=True, device="cpu", workers=0))
    log = ReviewLog(out / "review.csv")
    film = "films/phantom-00000.dcm"
    log.add(Decision(film, "left", "corrected", Area(80.0, 150.0, 90.0, 0.0), height_px=90.0))
    log.close()
    other = tmp_path / "elsewhere"
    other.mkdir()
    monkeypatch.chdir(other)
    assert apply_review(out, workers=0).problems == ()
    (row,) = read_table(out / "detections.csv")
    assert (row["film"], row["decision"]) == (film, "corrected")
    assert row["mm_per_px"]
    assert (out / "crops" / "phantom-00000-left.png").exists()
    (tmp_path / film).unlink()
    apply_review(out, workers=0)
    (row,) = read_table(out / "detections.csv")
    assert (row["film"], row["mm_per_px"]) == (film, "")


def test_apply_review_says_how_many_decisions_do_not_count(
    films: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "out"
    detect_folder(films, out, DetectConfig(method="neural", device="cpu", workers=0, limit=1))
    left, right = read_table(out / "detections.csv")
    area = Area(*(float(left[name]) for name in AREA_COLUMNS))
    log = ReviewLog(out / "review.csv")
    log.add(Decision(left["film"], "left", "accepted", area))
    log.add(Decision("gone.dcm", "left", "rejected", area))
    log.close()
    apply_review(out, workers=0)
    assert "not count" not in caplog.text
    log = ReviewLog(out / "review.csv")
    log.add(Decision(right["film"], "right", "rejected", area))
    log.add(Decision("gone.dcm", "right", "accepted", area))
    log.close()
    assert apply_review(out, workers=0).counts.rejected == 0
    assert "review.csv: 2 decisions do not count, about areas that have moved" in caplog.text
