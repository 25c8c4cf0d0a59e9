"""What `apply` reads of a run, makes of its decisions, and measures again."""

import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple
from unittest.mock import Mock

import pytest
import torch

from kneematch.errors import SettingsError
from kneematch.knee.decision import Area, Decision
from kneematch.run import visit
from kneematch.run.apply import apply_review, run_config
from kneematch.run.config import DetectConfig
from kneematch.run.database import Run
from kneematch.run.decisions import AREA_COLUMNS
from kneematch.run.film_record import SET_ASIDE
from kneematch.run.pipeline import DetectResult, detect_folder
from kneephantoms import SynthConfig, synthesize
from tables import read_table

CONFIG = DetectConfig(device="cpu", workers=0)


def decide(out: Path, side: str, decision: Decision, film: int = 1) -> None:
    with Run(out) as run:
        run.decide(film, side, decision)


def area_of(row: dict[str, str]) -> Area:
    return Area(*(float(row[name]) for name in AREA_COLUMNS))


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """A run on one film of two knees, measured."""
    synthesize(tmp_path / "films", SynthConfig(1, size=(900, 1000), workers=0))
    config = replace(CONFIG, measure=True, overlays=True, crops=True)
    detect_folder(tmp_path / "films", tmp_path / "out", config)
    return tmp_path / "out"


def test_apply_review_refuses_a_run_that_has_not_ended_or_is_damaged(tmp_path: Path) -> None:
    with Run(tmp_path, create=True) as run:
        run.add(["0.dcm", "1.dcm"])
        run.store(config={})
    with pytest.raises(SettingsError, match=r"2 films .* Continue it with `kneematch detect`"):
        apply_review(tmp_path)
    with Run(tmp_path) as run:
        run.store(config={"export": 3})
    with pytest.raises(SettingsError, match=r"The settings in .* cannot be read"):
        apply_review(tmp_path)


def test_run_config_takes_the_settings_that_it_knows(tmp_path: Path) -> None:
    config = DetectConfig(template="\udcff.json", export=("coco", "sr"), method="search")
    other = {"unknown": 1, "export": [*config.export, "pts"]}  # of another version
    with Run(tmp_path, create=True) as run:
        run.store(config=asdict(config) | other)
        assert run_config(run) == config


def test_apply_review_visits_only_films_whose_decisions_changed_and_hold(
    films: Path, out: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    detect_folder(f"{films}/phantom-0000[0-2].dcm", out, replace(CONFIG, crops=True))
    rows = read_table(out / "detections.csv")
    read, paths = visit.read_isolated, []
    monkeypatch.setattr(visit, "read_isolated", lambda path: paths.append(path) or read(path))
    apply_review(out, workers=0)
    assert paths == []
    decide(out, "left", Decision("rejected", area_of(rows[2])), film=2)
    assert apply_review(out, workers=0).rejected == 1
    assert paths == [rows[2]["film"]]
    after = read_table(out / "detections.csv")
    assert [row["decision"] for row in after] == ["", "", "rejected", "", "", ""]
    assert read_table(out / "detections.original.csv") == rows
    assert len(list((out / "crops").iterdir())) == 5
    apply_review(out, workers=0)
    assert len(paths) == 1
    with Run(out) as run:
        run.revoke()
    apply_review(out, workers=0)
    assert read_table(out / "detections.csv") == rows
    assert len(list((out / "crops").iterdir())) == 6
    assert "ignored" not in caplog.text
    decide(out, "right", Decision("rejected", area_of(rows[0])))  # where it is not
    assert apply_review(out, workers=0).rejected == 0
    assert "1 of the decisions" in caplog.text


def test_apply_review_killed_in_between_is_done_again(
    films: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    detect_folder(films / "phantom-00000.dcm", out, replace(CONFIG, crops=True))
    decide(out, "left", Decision("rejected", area_of(read_table(out / "detections.csv")[0])))
    monkeypatch.setattr(Run, "save", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        apply_review(out, workers=0)
    monkeypatch.undo()
    apply_review(out, workers=0)
    assert [path.name for path in (out / "crops").iterdir()] == ["phantom-00000-L.png"]
    assert read_table(out / "detections.csv")[0]["decision"] == "rejected"


def test_apply_review_adds_the_decisions_of_another_run(films: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    detect_folder(f"{films}/phantom-0000[01].dcm", one, CONFIG)
    shutil.copytree(one, two)
    rows = read_table(one / "detections.csv")
    decide(one, "left", Decision("accepted", area_of(rows[0])))
    moved = replace(area_of(rows[3]), width_px=77.0)
    decide(one, "right", Decision("corrected", moved, landmarks={"plateau_medial": (1, 2)}), 2)
    apply_review(one, workers=0)
    for _ in range(2):  # the second time adds nothing
        apply_review(two, decisions=one / "review.csv", workers=0)
        for name in ("detections.csv", "review.csv"):
            assert (two / name).read_bytes() == (one / name).read_bytes()
    other = tmp_path / "other"
    detect_folder(films / "phantom-00005.dcm", other, CONFIG)
    with pytest.raises(SettingsError, match="2 films are not in the run"):
        apply_review(other, decisions=one / "review.csv", workers=0)


def test_apply_review_measures_corrected_knees_again_by_the_same_network(measured: Path) -> None:
    out = measured
    left, right = read_table(out / "detections.csv")
    before = read_table(out / "measurements.csv")
    assert all(row["plateau_width_px"] and row["jsw_x250_pct"] for row in before)
    found = area_of(left)
    moved = replace(found, centre_x_px=found.centre_x_px + 0.04 * found.width_px)
    decide(out, "left", Decision("corrected", moved))
    torch.set_num_threads(2)
    try:
        assert apply_review(out, workers=0).missing_reasons == ()
        assert torch.get_num_threads() == 2  # as before
    finally:
        torch.set_num_threads(1)
    decide(out, "right", Decision("corrected", replace(area_of(right), centre_x_px=4.0)))
    assert apply_review(out, workers=0).missing_reasons == ()
    for row in read_table(out / "detections.csv"):
        assert [row[name] for name in ("expected_error_px", "energy", "loss")] == [""] * 3
        assert (row["review"], row["reason"]) == ("", "")
    again, cut = read_table(out / "measurements.csv")
    for name in ("plateau_width_px", "jsw_x250_pct"):
        assert float(again[name]) == pytest.approx(float(before[0][name]), rel=0.05)
        assert again[name] != before[0][name]
    assert cut["jsw_x250_pct"] == ""
    assert "cut by the film's edge" in cut["reason"]
    Path(left["film"]).unlink()
    decide(out, "left", Decision("corrected", replace(moved, rotation_deg=0.5)))
    for _ in range(2):  # it is tried again
        problems = apply_review(out, workers=0).missing_reasons
        assert any("not measured" in problem for problem in problems)
    assert read_table(out / "measurements.csv")[0]["jsw_x250_pct"] == ""
    with Run(measured) as run:
        run.store(fingerprint=run.setting("fingerprint") | {"outlines": "another"})
    with pytest.raises(SettingsError, match="not the network that measured"):
        apply_review(measured, workers=0)


def test_apply_review_keeps_added_knees_in_another_working_folder_and_without_their_film(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    synthesize("films", SynthConfig(count=1, size=(300, 250), framing="other", workers=0))
    out, film = tmp_path / "out", "films/phantom-00000.dcm"
    detect_folder("films", "out", DetectConfig(crops=True, device="cpu", workers=0))
    decide(out, "left", Decision("corrected", Area(80.0, 150.0, 90.0, 0.0), height_px=90.0))
    other = tmp_path / "elsewhere"
    other.mkdir()
    monkeypatch.chdir(other)
    assert apply_review(out, workers=0).missing_reasons == ()
    (row,) = read_table(out / "detections.csv")
    assert (row["film"], row["decision"]) == (film, "corrected")
    assert row["mm_per_px"]
    assert (out / "crops" / "phantom-00000-image-left.png").exists()
    (tmp_path / film).unlink()
    apply_review(out, workers=0)
    assert read_table(out / "detections.csv") == [row]


class Replaced(NamedTuple):
    """A run in which the first knee of a film is corrected, and what searches it again."""

    out: Path
    search: Callable[[], DetectResult]
    replace_film: Callable[[], object]


@pytest.fixture
def replaced(tmp_path: Path) -> Replaced:
    synthesize(tmp_path / "films", SynthConfig(2, size=(320, 400), workers=0))
    other, film = sorted((tmp_path / "films").glob("*.dcm"))
    template, out = str(tmp_path / "films" / "template.json"), tmp_path / "out"
    config = replace(CONFIG, method="search", template=template, crops=True)
    detect_folder(film, out, config)
    correct_the_first(out)
    return Replaced(out, lambda: detect_folder(film, out, config), lambda: shutil.copy(other, film))


def correct_the_first(out: Path) -> None:
    """Move the first knee of a run by 20 pixels."""
    area = area_of(read_table(out / "detections.csv")[0])
    decide(out, "left", Decision("corrected", replace(area, centre_x_px=area.centre_x_px + 20)))


def is_set_aside(out: Path) -> bool:
    """Return whether a correction of the first knee is gone, and the knee is to be reviewed."""
    knee, other = read_table(out / "detections.csv")
    assert SET_ASIDE not in other["reason"]
    return knee["decision"] == "" and SET_ASIDE in knee["reason"]


def test_apply_review_sets_corrections_of_a_replaced_film_aside(replaced: Replaced) -> None:
    replaced.replace_film()
    result = apply_review(replaced.out, workers=0)
    assert (result.corrected, result.missing) == (0, 1)
    assert "The film has changed." in result.missing_reasons[0]
    assert is_set_aside(replaced.out)
    assert replaced.search().changed == 1
    correct_the_first(replaced.out)  # on the new film
    assert apply_review(replaced.out, workers=0).corrected == 1
    assert read_table(replaced.out / "review.csv")[1]["decision"] == "undone"


def test_detect_folder_sets_corrections_of_a_replaced_film_aside(replaced: Replaced) -> None:
    apply_review(replaced.out, workers=0)
    replaced.replace_film()
    result = replaced.search()
    assert (result.changed, result.corrected) == (1, 0)
    assert "Not corrected, since the film has changed" in result.missing_reasons[0]
    assert is_set_aside(replaced.out)
    assert replaced.search().missing == 0
    assert is_set_aside(replaced.out)
