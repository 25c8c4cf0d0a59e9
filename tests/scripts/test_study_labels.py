"""Labels in the layouts of KNEEL and of denizlab, made from points that are known on the film."""

from pathlib import Path

import numpy as np
import pytest

from kneematch.errors import SettingsError
from kneephantoms.files import write_dicom
from study_labels import load_oai_labels

SPACING = 0.2  # mm
SIZE = (900, 1200)
FILM = "00m/0.C.2/9990001/20050519/00492203/001"
MARGINS = {"left": ((150.0, 420.0), (480.0, 414.0)), "right": ((720.0, 405.0), (1050.0, 417.0))}
SIDES = {"left": "R", "right": "L"}


@pytest.fixture
def film(tmp_path: Path) -> str:
    path = tmp_path / FILM
    path.parent.mkdir(parents=True)
    write_dicom(path, np.zeros(SIZE, np.float32), mm_per_px=SPACING, laterality="B")
    return str(path)


def kneel_row(side: str, participant: str = "9990001") -> str:
    """Return a row of bf_landmarks_1_0.3.csv: a crop of 466 pixels of 0.3 mm, left knees mirrored.

    Points are rounded to such pixels, on the film with 100 of them around it.
    """
    (xa, ya), (xb, yb) = MARGINS[side]
    points = [(xa, ya), ((xa + xb) / 2, (ya + yb) / 2 - 30), (xb, yb)]
    padded = [(x * SPACING / 0.3 + 100, y * SPACING / 0.3 + 100) for x, y in points]
    cx, cy = (int(value) for value in padded[1])
    x0, y0 = cx - 233, cy - 233
    inside = [(x - x0, y - y0) for x, y in padded]
    if side == "right":
        inside = [(466 - x, y) for x, y in reversed(inside)]
    tibia = ",".join(f"{round(x)},{round(y)}" for x, y in inside)
    box = f"{x0},{y0},{x0 + 466},{y0 + 466}"
    return f'{participant},{SIDES[side]},2,"{tibia}","0,0","{box}","{cx},{cy}"\n'


def kneel_file(folder: Path, *rows: str) -> Path:
    path = folder / "bf_landmarks_1_0.3.csv"
    path.write_text("subject_id,side,kl,tibia,femur,bbox,center\n" + "".join(rows))
    return path


def denizlab_file(
    folder: Path, boxes: str, name: str = "0.C.2_9990001_20050519_00492203_001"
) -> Path:
    path = folder / "test.csv"
    path.write_text(f"0,1,2,3,4,5,6,7,8\n/data/bounding_box/test/{name}.h5,{boxes}\n")
    return path


def test_load_oai_labels_of_kneel_have_the_margins_on_the_film(film: str, tmp_path: Path) -> None:
    path = kneel_file(tmp_path, kneel_row("left"), kneel_row("right"), kneel_row("left", "9990002"))
    truth = load_oai_labels(path, [film])
    knees = {knee.side: knee for knee in truth.match([film])[film]}
    assert knees.keys() == {"left", "right"}
    for side, (left, right) in MARGINS.items():
        assert knees[side].left == pytest.approx(left, abs=0.8)  # half a pixel of 0.3 mm
        assert knees[side].right == pytest.approx(right, abs=0.8)
        assert not knees[side].is_box
    assert truth.left_out == 0


def test_load_oai_labels_of_denizlab_have_the_areas_on_the_film(film: str, tmp_path: Path) -> None:
    # The right half's box comes first, as in the published file.
    path = denizlab_file(tmp_path, "0.55,0.3,0.8,0.6333333333,0.1,0.3,0.35,0.6333333333")
    knees = {knee.side: knee for knee in load_oai_labels(path, [film]).match([film])[film]}
    assert knees["left"].left == pytest.approx((170.0, 420.0))
    assert knees["left"].right == pytest.approx((370.0, 420.0))  # 300 pixels over 1.5
    assert knees["right"].left[0] == pytest.approx(710.0)
    assert all(knee.is_box for knee in knees.values())


def test_load_oai_labels_leave_out_rows_without_boxes(film: str, tmp_path: Path) -> None:
    path = denizlab_file(tmp_path, "-1,-1,-1,-1,0.1,0.3,0.35,0.63")
    with pytest.raises(SettingsError, match="none of 1 test films is labelled"):
        load_oai_labels(path, [film])


def test_load_oai_labels_refuse_films_that_are_not_labelled(film: str, tmp_path: Path) -> None:
    for path in (
        kneel_file(tmp_path, kneel_row("left", "9990009")),
        denizlab_file(tmp_path, "0.5,0.3,0.8,0.6,0.1,0.3,0.4,0.6", "0.C.2_9990009_20050519_1_001"),
    ):
        with pytest.raises(SettingsError, match=r"none of 1 test films .* --test-list"):
            load_oai_labels(path, [film])


def test_load_oai_labels_name_the_broken_line(film: str, tmp_path: Path) -> None:
    path = kneel_file(tmp_path, kneel_row("left").replace("R,2", "X,2"))
    with pytest.raises(SettingsError, match=r"0\.3\.csv, line 2: 'X'; expected the layout"):
        load_oai_labels(path, [film])


def test_load_oai_labels_read_other_labels_too(film: str, tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text("id,knee,x1,y1,x2,y2\n001,L,1,2,30,2\n")
    (knee,) = load_oai_labels(path, [film]).match([film])[film]
    assert (knee.left, knee.right) == ((1.0, 2.0), (30.0, 2.0))
