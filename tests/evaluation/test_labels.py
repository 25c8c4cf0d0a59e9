"""Reading labels, and matching them with films."""

from pathlib import Path

import pytest

from kneematch.errors import SettingsError
from kneematch.evaluation.labels import LabelledKnee, Labels, load_labels

HEADER = "id,knee,x1,y1,x2,y2,flag,source\n"
LABELS = """dev-knee-01,L,100,300,300,300,
dev-knee-01,R,600,300,800,300,osteophytes
dev-leg-02,L,100,300,300,300,very doubtful
dev-leg-02,R,,,,,
dev-leg-02,r,800,310,600,300,,Oulu
"""


def test_load_labels_leaves_out_flagged_labels(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text(HEADER + LABELS)
    truth = load_labels(tmp_path / "labels.csv")
    assert truth.left_out == 2
    assert truth.knees == (
        LabelledKnee("dev-knee-01", "left", (100, 300), (300, 300), "other"),
        LabelledKnee("dev-knee-01", "right", (600, 300), (800, 300), "other"),
        LabelledKnee("dev-leg-02", "right", (600, 300), (800, 310), "Oulu"),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,knee,x1\na,L,1\n", "columns id, knee, x1, y1, x2, y2"),
        (HEADER, "no label"),
        (HEADER + "a,L,1,2,x,4,\n", "line 2"),
        (HEADER + "a,middle,1,2,3,4,\n", "side 'middle'"),
        (HEADER + "a,L,1,2,1,2,\n", "finite and differ"),
        (HEADER + ",L,1,2,3,4,\n", "names no film"),
        ("\udcff\udcfe", "cannot be read"),  # no UTF-8
        (None, "cannot be read"),
    ],
)
def test_load_labels_refuses_other_files(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "labels.csv"
    if text is not None:
        path.write_text(text, "utf-8", "surrogateescape")
    with pytest.raises(SettingsError, match=message):
        load_labels(path)


def known(*names: str) -> Labels:
    knees = [LabelledKnee(name, "left", (100, 300), (300, 300), "other") for name in names]
    return Labels(Path("labels.csv"), tuple(knees), 0)


def test_match_finds_films_by_name_or_stem_in_any_folder() -> None:
    films = ["a/one.jpg", "b/two.dcm", "c/1.2.840.7", "c/other.png"]
    matched = known("one", "two.dcm", "1.2.840.7").match(films)
    assert list(matched) == films[:3]


def test_match_refuses_other_films_ambiguous_names_and_second_labels() -> None:
    with pytest.raises(SettingsError, match="labels none of the films, such as one"):
        known("two").match(["a/one.jpg"])
    films = ["a/one.jpg", "b/one.dcm", "b/two.dcm"]
    with pytest.raises(SettingsError, match=r"fits both a/one\.jpg and b/one\.dcm"):
        known("one").match(films)
    assert list(known("two", "one.dcm").match(films)) == ["b/two.dcm", "b/one.dcm"]
    with pytest.raises(SettingsError, match="labelled twice"):
        known("one", "one.jpg").match(["a/one.jpg"])
