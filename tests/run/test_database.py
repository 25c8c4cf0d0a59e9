"""The database of a run: what is stored comes back, and nothing is lost or shared by accident."""

import json
import os
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from detections import make_detection
from kneematch.errors import SettingsError
from kneematch.films.files import FileVersion
from kneematch.knee.decision import Area, Decision
from kneematch.knee.detection import Detection
from kneematch.knee.measure import JointMeasures, Outlines
from kneematch.run.artifacts import Artifact, VisitedFilm, Written
from kneematch.run.database import Run
from kneematch.run.film_record import FILES, SETTINGS, FilmRecord

KNEE = make_detection("left", (40.5, 50.25), (30.0, 40.0), 3.0, landmarks={"margin": (1.5, 2.0)})
AREA = Area.from_detection(KNEE)
ODD = os.fsdecode(b"odd \xff\nname.dcm")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path, create=True)


def visited(film: FilmRecord, *knees: Detection) -> FilmRecord:
    version = FileVersion(10, 20)
    found = replace(film, status="ok", size=(100, 80), mm_per_px=0.2, version=version)
    return replace(found, found=knees, knees=knees, thumbnail=b"jpeg")


def save_one(run: Run, *knees: Detection, path: str = "a.dcm") -> int:
    (number,) = run.add([path])
    (film,) = run.to_visit([number])
    run.save([visited(film, *knees)])
    return number


def refuse(film: VisitedFilm, folder: Path) -> Written:
    raise AssertionError


def test_run_keeps_the_id_of_a_knee_when_its_film_is_searched_again(run: Run) -> None:
    save_one(run, KNEE)
    (before,) = run.query("SELECT id FROM knees")
    (film,) = run.to_visit([1])
    run.save([visited(film)])  # no knee any more
    assert [film.knees for film in run.records()] == [()]
    run.save([visited(film, KNEE)])
    assert run.query("SELECT id FROM knees") == [before]


def test_run_saves_all_films_of_a_batch_or_none(run: Run) -> None:
    numbers = run.add(["a.dcm", "b.dcm"])
    one, two = run.to_visit(numbers)
    broken = replace(visited(two, KNEE), mm_per_px=object())  # type: ignore[arg-type]
    with pytest.raises(sqlite3.Error):
        run.save([visited(one, KNEE), broken])
    assert list(run.records()) == []
    assert run.thumbnail(1) is None


def test_run_is_for_one_process_at_a_time(run: Run) -> None:
    with pytest.raises(SettingsError, match="Another process is working on"):
        Run(run.out)
    run.close()
    with Run(run.out):
        pass


def test_run_says_in_one_line_that_it_is_damaged(run: Run) -> None:
    save_one(run, KNEE)
    run.close()
    content = bytearray(run.path.read_bytes())
    for damage in (b"no database at all", bytes(content[:5000]), bytes(4096) + content[4096:]):
        run.path.write_bytes(damage)
        with pytest.raises(SettingsError, match=r"damaged\. The tables beside it are still good"):
            Run(run.out).close()


def test_run_unmeasured_leaves_out_areas_of_other_parts(run: Run) -> None:
    hip = replace(make_detection("right", (70.0, 50.0), (20.0, 20.0)), template="hip")
    lines = np.array([[30.0, 48.0], [50.0, 48.0]]), np.array([[30.0, 52.0], [50.0, 52.0]])
    measures = JointMeasures.from_outlines(Outlines(*lines, medial="right"))
    save_one(run, replace(KNEE, measures=measures), hip, path="a.dcm")
    without = save_one(run, KNEE, hip, path="b.dcm")
    assert run.unmeasured() == [without]


@pytest.mark.parametrize("damage", ["start", "middle"])
def test_run_says_that_only_its_thumbnails_are_damaged(run: Run, damage: str) -> None:
    number = save_one(run, KNEE)
    film = replace(run.record(number), thumbnail=bytes(20_000))
    run.save([film])
    run.close()
    thumbnails = run.out / "thumbnails.sqlite"
    content = thumbnails.read_bytes()
    broken = b"nothing" if damage == "start" else content[:4096] + bytes(len(content) - 4096)
    thumbnails.write_bytes(broken)
    refused = pytest.raises(SettingsError, match=r"thumbnails\.sqlite is damaged\. Remove it")
    with refused, Run(run.out) as again:
        again.save([film])
    thumbnails.unlink()
    with Run(run.out) as again:
        assert again.record(number).found[0].to_dict() == KNEE.to_dict()
        assert again.thumbnail(number) is None


@pytest.mark.parametrize(
    ("change", "read"),
    [
        ("decisions SET content = '{'", lambda run: list(run.decisions())),
        ('decisions SET content = \'{"state": "accepted"}\'', lambda run: list(run.records())),
        ("decisions SET content = '{}'", lambda run: run.count_outdated_decisions()),
        ("knees SET found = '['", lambda run: run.decide(1, KNEE.side, Decision("accepted", AREA))),
        ("films SET made = '{'", lambda run: list(run.records())),
        ("films SET made = '[1]'", lambda run: run.outdated([Artifact("crops", {}, refuse)])),
        ("""films SET made = '{"..": {"files": []}}'""", lambda run: list(run.records())),
        ("films SET height = 'high'", lambda run: list(run.records())),
        ("films SET reason = zeroblob(9)", lambda run: list(run.records())),
        (f"knees SET found = '{'[' * 100_000}'", lambda run: list(run.records())),
    ],
)
def test_run_says_in_one_line_that_its_content_is_damaged(
    run: Run, change: str, read: Callable[[Run], object]
) -> None:
    number = save_one(run, KNEE)
    run.decide(number, KNEE.side, Decision("accepted", replace(AREA, width_px=90.0)))
    (run.out / "crops").mkdir()
    read(run)
    run.query(f"UPDATE {change}")
    with pytest.raises(SettingsError, match=r"is damaged|cannot be read"):
        read(run)


@pytest.mark.parametrize("file", ["../a.txt", "/a.txt", "b/a.txt", "a\0"])
def test_run_refuses_files_outside_its_folders(run: Run, file: str) -> None:
    save_one(run, KNEE)
    (run.out / "crops").mkdir()
    run.query("UPDATE films SET made = ?", json.dumps({"crops": {SETTINGS: 1, FILES: [file]}}))
    with pytest.raises(SettingsError, match="a name that leaves its folder"):
        list(run.to_visit([1]))
    with pytest.raises(SettingsError, match="a name that leaves its folder"):
        run.outdated([Artifact("crops", {}, lambda film, folder: ([], ""))])


@pytest.mark.parametrize(
    ("name", "value"),
    [("landmarks", "[]"), ("fingerprint", "5"), ("out", "{}"), ("run", '"text"')],
)
def test_run_refuses_settings_of_another_type(run: Run, name: str, value: str) -> None:
    run.query("INSERT OR REPLACE INTO settings VALUES (?, ?)", name, value)
    with pytest.raises(SettingsError, match=r"run\.sqlite is damaged"):
        run.setting(name)


def test_run_counts_decisions_about_areas_that_have_moved(run: Run) -> None:
    number = save_one(run, KNEE)
    run.decide(number, "left", Decision("accepted", AREA))
    assert run.count_outdated_decisions() == 0
    (film,) = run.to_visit([number])
    moved = make_detection("left", (45.5, 50.25), (30.0, 40.0), 3.0)
    run.save([visited(film, moved)])
    assert run.count_outdated_decisions() == 1
    run.save([visited(film)])
    assert run.count_outdated_decisions() == 1
    run.decide(number, "left", Decision("rejected", AREA))
    assert run.count_outdated_decisions() == 0  # there is no knee, as the reviewer says
