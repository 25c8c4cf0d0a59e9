"""Links, pipes and devices in folders from elsewhere, and headers that were made to break a run."""

import os
import re
import sys
from pathlib import Path

import pydicom
import pytest
from pydicom.dataset import Dataset
from pydicom.sequence import Sequence

from kneematch.errors import LONGEST, FilmError, KneematchError
from kneematch.films.annotation import load_annotation
from kneematch.films.csv_text import read_csv
from kneematch.films.files import open_regular
from kneematch.films.read import read
from kneematch.knee.decision import Area, Decision
from kneematch.run.database import Run as RunDatabase
from program import SEARCH, Run
from tables import read_table

DETECT = ("detect", "phantom-00000.dcm", "-o", "out", *SEARCH, "--overlays", "--crops")
EVALUATE = ("--template", "template.json", "--methods", "search", "--device", "cpu")
SECRET = "ZZPATIENTZZ"


def state(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {path.name: (path.stat().st_ino, path.read_bytes()) for path in folder.iterdir()}


def test_commands_do_not_follow_a_link_out_of_a_run_folder(folder: Path, run: Run) -> None:
    """The films have the names of the files that would be written and removed."""
    assert run(*DETECT).returncode == 0
    with RunDatabase(folder / "out") as database:
        found = database.record(1).found[0]
        database.decide(1, found.side, Decision("rejected", Area.from_detection(found)))
    for name in ("overlays", "crops"):
        films = folder / "films"
        (folder / "out" / name).rename(films)
        (folder / "out" / name).symlink_to("../films")
        before = state(films)
        for command in (("apply", "out"), DETECT, (*DETECT, "--force")):
            done = run(*command)
            assert done.returncode == 2
            assert f"out/{name} is a link." in done.stderr
        assert state(films) == before
        (folder / "out" / name).unlink()
        films.rename(folder / "out" / name)


def test_detect_does_not_open_a_database_through_a_link(folder: Path, run: Run) -> None:
    assert run(*DETECT).returncode == 0
    film = folder / "phantom-00001.dcm"
    before = film.read_bytes()
    for name in ("run.sqlite-journal", "thumbnails.sqlite-journal", "run.sqlite"):
        (folder / "out" / name).unlink(missing_ok=True)
        (folder / "out" / name).symlink_to(film)
        done = run(*DETECT)
        assert (done.returncode, done.stderr.count("is not a regular file")) == (2, 1)
        assert film.read_bytes() == before
        (folder / "out" / name).unlink()


def test_detect_removes_no_file_that_a_database_names_elsewhere(folder: Path, run: Run) -> None:
    assert run(*DETECT).returncode == 0
    database, mine = folder / "out" / "run.sqlite", [folder / "a.jpg", folder / "out" / "a.jpg"]
    good = database.read_bytes()
    for path in mine:
        path.touch()
    elsewhere = '{{"{}": {{"settings": {{}}, "files": ["{}"]}}}}'
    for change, command in (
        ("name = '../../a'", (*DETECT, "--force")),
        (f"made = '{elsewhere.format('crops', '../../a.jpg')}', bytes = 1", DETECT),
        (f"made = '{elsewhere.format('..', 'a.jpg')}', bytes = 1", DETECT),
        ("made = '{', bytes = 1", DETECT),
    ):
        database.write_bytes(good)
        with RunDatabase(folder / "out") as changed:
            changed.query(f"UPDATE films SET {change}")
        done = run(*command)
        assert all(path.exists() for path in mine), change
        assert done.returncode == 2, change
        assert re.search(r"leaves its folder\. |run\.sqlite is damaged\. ", done.stderr)
        assert "Traceback" not in done.stderr


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
def test_open_regular_neither_waits_for_a_pipe_nor_reads_a_device(tmp_path: Path) -> None:
    pipe = tmp_path / "template.json"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero"), tmp_path):
        with pytest.raises(OSError, match=r"regular file|directory"):
            open_regular(path)
        for reader in (load_annotation, read):
            with pytest.raises(KneematchError):
                reader(path)
        with pytest.raises(OSError, match=r"regular file|directory"):
            read_csv(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
def test_commands_do_not_wait_for_pipes(folder: Path, run: Run) -> None:
    """They are called like films, and like files of a run."""
    assert run(*DETECT).returncode == 0
    for name in ("pipe.dcm", "DICOMDIR", "run.sqlite", "truth.csv.png"):
        os.mkfifo(folder / name)
    for name in ("report.html", "run.json", "review.csv", "detections.csv"):
        (folder / "out" / name).unlink(missing_ok=True)
        os.mkfifo(folder / "out" / name)
    assert run("apply", "out").returncode == 0
    done = run("detect", ".", "-o", "out", *SEARCH, "--overlays", "--crops")
    assert done.returncode == 0, done.stderr
    assert "6 knees in 3 films" in done.stdout
    os.mkfifo(folder / "out" / "run.sqlite-journal")
    done = run("apply", "out")
    assert (done.returncode, "not a regular file" in done.stderr) == (2, True)
    (folder / "template.json").unlink()
    os.mkfifo(folder / "template.json")
    assert run("annotate", "pipe.dcm", "--no-browser").returncode == 2
    assert "cannot be read" in run("detect", ".", "-o", "new", *SEARCH).stderr


def nested(path: Path, depth: int) -> None:
    """Write a sequence into a film that holds itself, hundreds deep, and the patient's name."""
    dataset = pydicom.dcmread(path)
    inner = Dataset()
    inner.PatientName = SECRET
    for _ in range(depth + 1):
        outer = Dataset()
        outer.add_new("ReferencedStudySequence", "SQ", Sequence([inner]))
        inner = outer
    dataset.update(inner)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        dataset.save_as(path)
    finally:
        sys.setrecursionlimit(limit)


def test_commands_bear_sequences_nested_hundreds_deep(folder: Path, run: Run) -> None:
    """A header fails a film at most, never a run."""
    nested(folder / "phantom-00000.dcm", 200)
    nested(folder / "phantom-00001.dcm", 1500)
    for command in (
        ("detect", ".", "-o", "out", *SEARCH, "--series", "", "--export", "dicom"),
        ("info", *(f"phantom-0000{k}.dcm" for k in range(3))),
        ("evaluate", ".", "-o", "scores", *EVALUATE),
    ):
        done = run(*command)
        assert done.returncode in (0, 1), done.stderr
        assert "Traceback" not in done.stderr
        assert SECRET not in done.stderr + done.stdout
    assert "phantom-00002.dcm" in (folder / "out" / "detections.csv").read_text()


@pytest.mark.parametrize("keyword", ["SamplesPerPixel", "Rows", "BitsAllocated", "BitsStored"])
def test_failures_quote_no_value_of_a_header(folder: Path, keyword: str) -> None:
    """An element that should be a number is a text of 900 kB, or a number that is an identity."""
    for value in (SECRET, SECRET * 80_000, "4711471147"):
        dataset = pydicom.dcmread(folder / "phantom-00001.dcm")
        dataset[keyword] = pydicom.DataElement(dataset[keyword].tag, "UT", value)
        dataset.save_as(folder / "text.dcm")
        with pytest.raises(FilmError) as refused:
            read(folder / "text.dcm")
        message = str(refused.value)
        assert len(message) <= LONGEST
        assert not any(secret in message for secret in (SECRET, "4711"))


def test_messages_have_300_characters_at_most(folder: Path, run: Run) -> None:
    deep = folder
    for _ in range(15):
        deep /= "a" * 200
    deep.mkdir(parents=True)
    (deep / "film.dcm").write_bytes(b"no film")
    done = run("detect", ".", "-o", "out", *SEARCH)
    (failure,) = read_table(folder / "out" / "failures.csv")
    assert len(failure["reason"]) <= LONGEST
    assert failure["reason"].endswith("WebP, GIF or JPEG 2000.")
    assert all(len(line) < 2 * LONGEST for line in done.stderr.splitlines())
