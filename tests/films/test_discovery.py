"""Which films are meant by what is named."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from kneematch.errors import SettingsError
from kneematch.films.discovery import find_films
from kneephantoms.files import write_dicom, write_png16

PIXELS = np.eye(64, dtype=np.float32)


def dicom(path: Path, series: str | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_dicom(path, PIXELS, mm_per_px=None, laterality="B", series=series)
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Films with and without suffix, and what else lies about in archives."""
    root = tmp_path / "films"
    for name in ("b.dcm", "a.DCM", "study/001", "study/10", "study/.hidden.dcm", ".cache/c.dcm"):
        dicom(root / name)
    write_png16(root / "picture.PNG", PIXELS)
    shutil.copy(root / "picture.PNG", root / "unnamed_picture")
    dicom(root / "study" / "DICOMDIR")
    (root / "no_preamble").write_bytes((root / "b.dcm").read_bytes()[132:])
    (root / "notes.txt").write_text("not a film, though it is long enough to be one" * 9)
    (root / "empty").write_bytes(b"")
    (root / "template.json").write_text("{}")
    os.mkfifo(root / "pipe.dcm")
    monkeypatch.chdir(tmp_path)
    return root


NAMES = ("a.DCM", "b.dcm", "no_preamble", "picture.PNG", "unnamed_picture", "study/001", "study/10")
IN_FOLDER = [f"films/{name}" for name in NAMES]


def test_find_films_searches_folders_by_suffix_and_content(folder: Path) -> None:
    odd = os.fsdecode(b"two\nlines \xff.dcm")
    dicom(folder / "study" / odd)
    found = [*IN_FOLDER, f"films/study/{odd}"]
    assert find_films(["films"]) == found
    dicom(folder / "out" / "overlay.dcm")
    assert find_films(["films"], leave_out=[folder / "out"]) == found
    assert "films/out/overlay.dcm" in find_films(["films"])


def test_find_films_does_not_follow_links_to_folders(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert find_films(["films"]) == IN_FOLDER
    assert caplog.text == ""
    for name in ("link", "study/up"):  # circles: followed, they would never end
        (folder / name).symlink_to(folder)
    assert find_films(["films"]) == IN_FOLDER
    assert "films: links to folders are not followed: 2, such as films/link." in caplog.text
    assert find_films(["films/**/*.dcm"]) == ["films/b.dcm", "films/pipe.dcm"]
    assert find_films(["films/**/[la]*"]) == ["films/a.DCM"]
    assert find_films(["**/1*"]) == find_films(["films/**/s*/1*"]) == ["films/study/10"]
    assert find_films([f"{folder}/**/**/1*"]) == [str(folder / "study" / "10")]
    assert find_films(["films/**"]) == find_films(["**"]) == IN_FOLDER
    assert find_films(["films/l*/*.dcm"]) == ["films/link/b.dcm", "films/link/pipe.dcm"]


def test_find_films_takes_each_file_that_is_named_once(folder: Path) -> None:
    unusual = ["missing.dcm", "films/.cache/c.dcm", "x" * 300, "a\0b"]
    assert find_films(unusual) == unusual
    named = ["films/study", "films/./b.dcm", str(folder / "b.dcm"), "films/study/10", "films/a.DCM"]
    found = ["films/study/001", "films/study/10", "films/./b.dcm", "films/a.DCM"]
    assert find_films(named) == found
    assert find_films(["films/*.dcm"]) == ["films/b.dcm", "films/pipe.dcm"]
    dicom(Path("odd[1].dcm"))
    assert find_films(["odd[1].dcm"]) == ["odd[1].dcm"]  # no pattern


def test_find_films_takes_lists(folder: Path) -> None:
    Path("list.txt").write_bytes(b"films/b.dcm\r\n\n missing \nfilms/study\n")
    found = ["films/b.dcm", " missing ", "films/study/001", "films/study/10"]
    assert find_films(["@list.txt"]) == found
    (folder / "list.txt").write_text("b.dcm\nfilms/a.DCM\nnowhere.dcm\n")
    assert find_films(["@films/list.txt"]) == ["films/b.dcm", "films/a.DCM", "nowhere.dcm"]
    odd = b"new\nline \xff.dcm"
    Path("list.txt").write_bytes(b"films/b.dcm\0" + odd + b"\0")
    assert find_films(["@list.txt"]) == ["films/b.dcm", os.fsdecode(odd)]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("named", "message"),
    [
        ([], "No films were named"),
        (["nothing"], "holds no films"),
        (["films/*.xyz"], "No films match"),
        (["@missing.txt"], "cannot be read: No such file"),
        (["@empty.txt"], "list of films is empty"),
        (["@films/a.DCM"], "is a film, not a list"),
        ([""], "name is empty"),
    ],
)
def test_find_films_refuses_what_names_no_films(named: list[str], message: str) -> None:
    Path("nothing").mkdir()
    Path("empty.txt").write_text("\n")
    with pytest.raises(SettingsError, match=message):
        find_films(named)


def test_find_films_selects_by_series_description(tmp_path: Path) -> None:
    knee = dicom(tmp_path / "a", "Bilateral PA Fixed Flexion Knee")
    hand, unknown = dicom(tmp_path / "b", "PA HAND"), dicom(tmp_path / "c")
    missing, cut, picture = (tmp_path / name for name in ("missing", "cut off", "picture.png"))
    write_png16(picture, PIXELS)
    cut.write_bytes(hand.read_bytes()[:200])
    named = list(map(str, (knee, hand, unknown, missing, cut, picture)))
    found = find_films(named, series="pa fixed")
    assert found == [str(knee), str(missing)]  # what cannot be read is not left out


def test_find_films_skips_the_results_of_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a.png", "found/crops/a-R.png", "old/overlays/a.png", "mine/crops/b.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "found" / "run.sqlite").touch()
    (tmp_path / "old" / "run.sqlite").touch()
    films = [str(tmp_path / name) for name in ("a.png", "mine/crops/b.png")]
    with caplog.at_level("INFO", logger="kneematch"):
        assert find_films(tmp_path) == films
        assert find_films(f"{tmp_path}/**/*.png") == films
    said = "skipped, since it holds the results of an earlier run"
    skipped = [f"{tmp_path / name}: {said}" for name in ("found", "old")]
    assert [record.getMessage() for record in caplog.records] == skipped
    crop = str(tmp_path / "found" / "crops" / "a-R.png")
    assert find_films(tmp_path / "found" / "crops") == [crop]  # as asked for
    (tmp_path / "mine" / "run.sqlite").touch()
    (tmp_path / "mine" / "c.png").touch()
    assert find_films(tmp_path / "mine") == [str(tmp_path / "mine" / "c.png")]  # beside results


def test_find_films_counts_the_other_files_of_a_folder(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    films = ("a.bmp", "b.jp2", "c.webp", "d.gif", "sub/e.png")
    others = ("f.dcm.gz", "sub/g.DCM.GZ", "notes.txt", "film.xyz", "README", "DICOMDIR", ".hidden")
    (tmp_path / "sub").mkdir()
    for name in (*films, *others):
        (tmp_path / name).touch()
    with caplog.at_level("INFO", logger="kneematch"):
        assert find_films(tmp_path) == [str(tmp_path / name) for name in films]
    counts = "dcm.gz 2, no suffix 1, xyz 1"
    assert caplog.messages == [f"{tmp_path}: 4 other files skipped ({counts})"]
    for name in films:
        (tmp_path / name).unlink()
    with pytest.raises(SettingsError, match=f"holds no films, only other files .{counts}"):
        find_films(tmp_path)
