"""Films of OAI and MOST, found in packages laid out as docs/reproduce.md says.

The paths, series descriptions and expected films are written down literally. Participants and
accession numbers are invented.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from kneematch.errors import SettingsError
from kneephantoms.files import write_dicom
from reproduce_config import ReproduceConfig
from study_films import (
    MOST,
    OAI,
    Study,
    find_study_films,
    relative_path,
    split_films,
)

FRONTAL = "Bilateral PA Fixed Flexion Knee"

# Series descriptions by path; None is a header without one.
OAI_FILES = {
    "00m/0.C.2/9990001/20050519/00492203/001": FRONTAL,
    "00m/0.C.2/9990001/20050519/00492202/001": "PA Right Hand",
    "00m/0.C.2/9990001/20050519/00492204/001": "AP Pelvis",
    "00m/0.C.2/9990002/20041112/00456501/001": FRONTAL,
    "00m/0.C.2/9990002/20041112/00456502/001": "PA Both Hands",
    # A participant with two films: the first by path counts.
    "00m/0.E.1/9990003/20040909/00429606/001": FRONTAL,
    "00m/0.E.1/9990003/20040909/00429603/001": FRONTAL.upper(),
    # A participant whose only film of the visit is another view.
    "00m/0.E.1/9990004/20040921/00433001/001": "Lateral Right Knee",
    "00m/0.E.1/9990005/20050107/00467102/001": f"{FRONTAL} (repeat)",
    # Later visits of participants with and without a baseline film.
    "12m/1.C.2/9990001/20060601/01071603/001": FRONTAL,
    "12m/1.E.1/9990004/20050930/01033301/001": FRONTAL,
    "24m/3.C.2/9990006/20070412/01502201/001": FRONTAL,
    # An MRI series is a folder of many slices.
    **{f"00m/0.C.2/9990001/20050519/10693717/{k:03}": "SAG_3D_DESS_LEFT" for k in range(1, 13)},
    **{f"00m/0.E.1/9990004/20040921/10387203/{k:03}": "COR_IW_TSE_LEFT" for k in range(1, 13)},
}
OAI_BASELINE = [
    ("9990001", "00m/0.C.2/9990001/20050519/00492203/001"),
    ("9990002", "00m/0.C.2/9990002/20041112/00456501/001"),
    ("9990003", "00m/0.E.1/9990003/20040909/00429603/001"),
    ("9990005", "00m/0.E.1/9990005/20050107/00467102/001"),
]

# Folders tell the view; headers say nothing.
MOST_FILES = {
    "M1001_ABCD/V0/12345/PA10/123451": None,
    "M1001_ABCD/V0/12345/PA05/123452": None,
    "M1001_ABCD/V0/12345/LLAT/123453": None,
    "M1001_ABCD/V0/12345/RLAT/123454": None,
    "M1001_ABCD/V3/22345/PA10/223451": None,
    "MB01002/V0/12346/PA15/123461": None,
    "MB01002/V0/12346/FULL/123462": "Full Limb AP",
    "MI01003/V0/12347/LLAT/123471": None,
    "M1004/V5/32348/PA10/323481": None,
    # A release without folders of views, where the header tells.
    "M1005_EFGH/V0/12349/1": f"BL {FRONTAL} - 10 degrees caudal",
    "M1005_EFGH/V0/12349/0": "BL Left Lateral Knee",
}
MOST_BASELINE = [
    ("M1001", "M1001_ABCD/V0/12345/PA10/123451"),
    ("M1005", "M1005_EFGH/V0/12349/1"),
    ("MB01002", "MB01002/V0/12346/PA15/123461"),
]


def write_films(root: Path, files: Mapping[str, str | None]) -> Path:
    """Write small DICOM files; their pixels do not matter here."""
    for path, series in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        blank = np.zeros((16, 20), np.float32)
        write_dicom(root / path, blank, mm_per_px=0.2, laterality="B", series=series)
    return root


@pytest.fixture(scope="module")
def oai(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = write_films(tmp_path_factory.mktemp("OAI"), OAI_FILES)
    (root / "00m/contents.csv").write_text("Folder,ParticipantID,StudyDate\n")
    (root / "00m/0.C.2/9990001/20050519/00492201").mkdir()
    (root / "00m/0.C.2/9990001/20050519/00492201/001").write_bytes(b"not a film")
    (root / "00m/0.E.1/9990003/20040909/10387204.tar.gz").write_bytes(b"\x1f\x8b")
    return root


@pytest.fixture(scope="module")
def most(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = write_films(tmp_path_factory.mktemp("MOST"), MOST_FILES)
    (root / "M1001_ABCD/V0/12345/PA05/.DS_Store").write_bytes(b"hidden")
    (root / "M1001_ABCD/V0/12345/PA05/123450").write_bytes(b"not a film")
    return root


def found(
    study: Study, root: Path, config: ReproduceConfig = ReproduceConfig()
) -> list[tuple[str, str]]:
    """Participants and paths from the root."""
    films = find_study_films(study, root, config)
    return [(participant, relative_path(path, root)) for participant, path in films]


def test_find_study_films_of_oai_takes_one_frontal_film_per_participant_at_baseline(
    oai: Path,
) -> None:
    assert found(OAI, oai) == OAI_BASELINE


def test_find_study_films_accepts_the_visit_or_a_release_as_root(oai: Path) -> None:
    visit = [(who, path.removeprefix("00m/")) for who, path in OAI_BASELINE]
    assert found(OAI, oai / "00m") == visit
    release = [(who, path.removeprefix("0.C.2/")) for who, path in visit if "0.C.2" in path]
    assert found(OAI, oai / "00m" / "0.C.2") == release


def test_find_study_films_of_another_visit(oai: Path) -> None:
    assert found(OAI, oai, ReproduceConfig(visit="12m")) == [
        ("9990001", "12m/1.C.2/9990001/20060601/01071603/001"),
        ("9990004", "12m/1.E.1/9990004/20050930/01033301/001"),
    ]


def test_find_study_films_of_any_visit(oai: Path) -> None:
    participants = [who for who, _ in found(OAI, oai, ReproduceConfig(visit="*"))]
    assert participants == ["9990001", "9990002", "9990003", "9990004", "9990005", "9990006"]


def test_find_study_films_of_another_series(oai: Path) -> None:
    pelvis = found(OAI, oai, ReproduceConfig(series="ap pelvis"))
    assert pelvis == [("9990001", "00m/0.C.2/9990001/20050519/00492204/001")]


def test_find_study_films_judges_a_stack_of_slices_by_its_first(oai: Path) -> None:
    stack = found(OAI, oai, ReproduceConfig(series="SAG_3D_DESS"))
    assert stack == [("9990001", "00m/0.C.2/9990001/20050519/10693717/001")]


def test_find_study_films_of_most_knows_the_view_by_folder_or_by_header(most: Path) -> None:
    assert found(MOST, most) == MOST_BASELINE


def test_find_study_films_lets_a_given_series_outweigh_the_folders_name(most: Path) -> None:
    lateral = found(MOST, most, ReproduceConfig(series="lateral"))
    assert lateral == [("M1005", "M1005_EFGH/V0/12349/0")]


def test_find_study_films_with_other_names_of_participants(tmp_path: Path) -> None:
    write_films(tmp_path, {"00m/person-7/001": FRONTAL})
    with pytest.raises(SettingsError, match="1 films, none in a folder of a participant"):
        find_study_films(OAI, tmp_path)
    config = ReproduceConfig(participant=r"person-(\d+)")
    assert found(OAI, tmp_path, config) == [("7", "00m/person-7/001")]


def test_find_study_films_takes_a_list_instead_of_searching(oai: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "film.dcm"
    pelvis, first = "00m/0.C.2/9990001/20050519/00492204/001", OAI_BASELINE[2][1]
    listed = tmp_path / "films.txt"
    listed.write_text("".join(f"{line}\n" for line in (first, pelvis, first, elsewhere)))
    films = find_study_films(OAI, oai, ReproduceConfig(films=listed))
    assert films == [
        (str(elsewhere), str(elsewhere)),
        ("9990001", str(oai / pelvis)),
        ("9990003", str(oai / first)),
    ]
    table = tmp_path / "films.csv"
    table.write_text(f"participant,path\n1,{pelvis}\n")
    assert found(OAI, oai, ReproduceConfig(films=table)) == [("9990001", pelvis)]


def test_split_films_is_seeded_disjoint_and_grows_at_its_end(oai: Path) -> None:
    first = split_films(OAI, oai, ReproduceConfig(train=2, test=2, seed=3))
    paths = [str(oai / path) for _, path in OAI_BASELINE]
    assert sorted((*first.train, *first.test)) == paths
    assert split_films(OAI, oai, ReproduceConfig(train=2, test=2, seed=3)) == first
    others = [split_films(OAI, oai, ReproduceConfig(train=2, test=2, seed=k)) for k in range(9)]
    assert any(other != first for other in others)
    fewer = split_films(OAI, oai, ReproduceConfig(train=2, test=1, seed=3))
    assert (fewer.train, fewer.test) == (first.train, first.test[:1])


def test_split_films_draws_nobody_who_is_in_a_list(oai: Path, tmp_path: Path) -> None:
    test = tmp_path / "test.txt"
    test.write_text("00m/0.E.1/9990003/20040909/00429606/001\n")  # not the film that is drawn
    split = split_films(OAI, oai, ReproduceConfig(train=3, test_list=test))
    assert split.test == (str(oai / "00m/0.E.1/9990003/20040909/00429606/001"),)
    assert {relative_path(film, oai) for film in split.train} == {
        path for who, path in OAI_BASELINE if who != "9990003"
    }


def test_split_films_takes_lists_as_they_are_and_nobody_in_both(oai: Path, tmp_path: Path) -> None:
    train, test = tmp_path / "train.txt", tmp_path / "test.txt"
    train.write_text("a.dcm\nb.dcm\n")
    test.write_text("c.dcm\n")
    config = ReproduceConfig(train_list=train, test_list=test)
    split = split_films(OAI, tmp_path / "no such root", config)  # nothing to search for
    assert (split.train, split.test) == (("a.dcm", "b.dcm"), ("c.dcm",))
    train.write_text("00m/0.E.1/9990003/20040909/00429606/001\n")
    test.write_text("00m/0.E.1/9990003/20040909/00429603/001\n")
    with pytest.raises(SettingsError, match="1 participants in both"):
        split_films(OAI, oai, config)


def test_find_study_films_of_oai_does_not_open_mri_series(oai: Path, tmp_path: Path) -> None:
    write_films(tmp_path, {f"{OAI_BASELINE[0][1]}": FRONTAL})
    slices = tmp_path / "00m/0.C.2/9990001/20050519/10693717"
    slices.mkdir()
    os.mkfifo(slices / "001")  # opening it would wait for a writer
    (slices / "002").symlink_to("/dev/zero")
    assert found(OAI, tmp_path) == OAI_BASELINE[:1]


def test_split_films_never_tests_on_the_annotated_film(oai: Path, tmp_path: Path) -> None:
    for who, path in OAI_BASELINE:
        split = split_films(OAI, oai, ReproduceConfig(train=2, test=2), oai / path)
        assert str(oai / path) in split.train, who
        assert str(oai / path) not in split.test
    listed = tmp_path / "test.txt"
    listed.write_text(f"{OAI_BASELINE[2][1]}\n")
    other = oai / "00m/0.E.1/9990003/20040909/00429606/001"  # of the same participant
    with pytest.raises(SettingsError, match="the participant whose film the template was drawn on"):
        split_films(OAI, oai, ReproduceConfig(train=2, test_list=listed), other)
    assert split_films(OAI, oai, ReproduceConfig(train=2, test_list=listed), tmp_path / "film")


def test_split_films_of_most_has_no_training_films(most: Path) -> None:
    split = split_films(MOST, most, ReproduceConfig(test=3))
    assert split.train == ()
    assert sorted(split.test) == sorted(str(most / path) for _, path in MOST_BASELINE)


def test_split_films_refuses_too_few(oai: Path) -> None:
    with pytest.raises(SettingsError, match=r"4 participants .* expected 500 to train and 400 to"):
        split_films(OAI, oai)


def test_find_study_films_asks_to_unpack_archives(tmp_path: Path) -> None:
    archive = tmp_path / "00m/0.C.2/9990001/20040909/10693717.tar.gz"
    archive.parent.mkdir(parents=True)
    archive.write_bytes(b"\x1f\x8b")
    with pytest.raises(SettingsError, match=r"no film of OAI.*10693717.tar.gz\): unpack them"):
        find_study_films(OAI, tmp_path)


@pytest.mark.parametrize("exists", [True, False])
def test_find_study_films_refuses_a_root_without_films(tmp_path: Path, exists: bool) -> None:
    root = tmp_path if exists else tmp_path / "gone"
    with pytest.raises(SettingsError, match=f"{root}: no"):
        find_study_films(OAI, root)


def test_studies_have_the_numbers_that_the_paper_printed() -> None:
    assert list(OAI.printed.values()) == [0.221, 0.159, 0.141]
    assert list(MOST.printed.values()) == [0.249, 0.224, 0.157]
    assert (OAI.train, OAI.test, MOST.train, MOST.test) == (500, 400, 0, 400)
