"""Which films of a study are meant, in trees laid out as OAI and MOST are distributed."""

from pathlib import Path

import numpy as np
import pytest

from kneematch.errors import SettingsError
from kneematch.evaluation.datasets import (
    MOST,
    OAI,
    Choice,
    Study,
    find_study_films,
    from_root,
    split_films,
)
from kneematch.io.write import write_dicom

FRONTAL = "Bilateral PA Fixed Flexion Knee"
SIZE = (64, 80)


def put(path: Path, series: str | None = FRONTAL) -> Path:
    """A file that has a header; nobody looks at its pixels here."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_dicom(path, np.zeros(SIZE, np.float32), mm_per_px=0.2, laterality="B", series=series)
    return path


def people(count: int) -> list[str]:
    return [str(9_000_100 + 7 * k) for k in range(count)]


def oai(root: Path, count: int = 6) -> Path:
    """Baseline films of some, and everything that is beside them."""
    for k, person in enumerate(people(count)):
        group = "0.C.2" if k % 2 else "0.E.1"
        study = root / "00m" / group / person / f"2004090{k % 9 + 1}"
        put(study / f"0042960{k % 9}" / "001")
        put(study / "00429690" / "001", "PA Right Hand")
    return root


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = oai(tmp_path / "OAI")
    first, second, third, *_ = people(6)
    put(root / "12m" / "1.C.2" / second / "20050909" / "00529603" / "001")  # another visit
    put(root / "00m/0.E.1" / first / "20040901" / "00429699" / "001")  # a second film
    broken = root / "00m/0.E.1" / third / "20040903" / "00429601" / "001"
    broken.parent.mkdir()
    broken.write_bytes(b"not a film")
    for slice_number in range(12):
        put(root / f"00m/0.E.1/{first}/20040901/10693717/{slice_number + 1:03}", "SAG_3D_DESS_LEFT")
    put(root / "00m/0.E.1" / "9000999" / "20040901" / "00429603" / "001", "AP Pelvis")
    (root / "00m" / "contents.csv").write_text("Folder,ParticipantID\n")
    return root


def most(root: Path) -> Path:
    for k in range(4):
        person = root / f"M{1000 + k}_ABCD"
        put(person / "V0" / f"1{k}608" / "PA10" / f"1{k}6081", None)
        put(person / "V0" / f"1{k}608" / "LLAT" / f"1{k}6084", None)
        put(person / "V3" / f"2{k}608" / "PA10" / f"2{k}6081", None)
    return root


def names(study: Study, root: Path, choice: Choice | None = None) -> list[str]:
    return [from_root(film.path, root) for film in find_study_films(study, root, choice)]


def test_of_oai_one_bilateral_film_of_each_participant_at_baseline(tree: Path) -> None:
    films = find_study_films(OAI, tree)
    assert [film.participant for film in films] == people(6)
    assert from_root(films[0].path, tree) == "00m/0.E.1/9000100/20040901/00429600/001"
    assert all("/00m/" in film.path and "10693717" not in film.path for film in films)


def test_the_root_may_be_the_visit_or_a_part_of_it(tree: Path) -> None:
    assert len(find_study_films(OAI, tree / "00m")) == 6
    assert len(find_study_films(OAI, tree / "00m" / "0.C.2")) == 3


def test_another_visit_or_series_can_be_asked_for(tree: Path) -> None:
    assert names(OAI, tree, Choice(visit="12m")) == ["12m/1.C.2/9000107/20050909/00529603/001"]
    pelvis = names(OAI, tree, Choice(series="ap pelvis"))
    assert pelvis == ["00m/0.E.1/9000999/20040901/00429603/001"]


def test_a_stack_of_slices_is_judged_by_its_first(tree: Path) -> None:
    found = names(OAI, tree, Choice(series="SAG_3D_DESS"))
    assert found == ["00m/0.E.1/9000100/20040901/10693717/001"]


def test_of_most_folders_tell_the_view_where_headers_do_not(tmp_path: Path) -> None:
    films = find_study_films(MOST, most(tmp_path))
    assert [film.participant for film in films] == ["M1000", "M1001", "M1002", "M1003"]
    assert all("/V0/" in film.path and "/PA10/" in film.path for film in films)


def test_of_most_headers_tell_the_view_where_folders_do_not(tmp_path: Path) -> None:
    series = f"BL {FRONTAL} - 10 degrees caudal"
    frontal = put(tmp_path / "MB00012" / "V0" / "a" / "1", series)
    put(tmp_path / "MB00012" / "V0" / "a" / "0", "BL Left Lateral Knee")
    assert [film.path for film in find_study_films(MOST, tmp_path)] == [str(frontal)]


def test_a_series_that_is_asked_for_outweighs_a_folders_name(tmp_path: Path) -> None:
    root = most(tmp_path)
    lateral = put(root / "M1000_ABCD/V0/10608/LLAT/106084", "Left Lateral Knee")
    found = find_study_films(MOST, root, Choice(series="lateral"))
    assert [film.path for film in found] == [str(lateral)]


def test_participants_may_be_named_otherwise(tmp_path: Path) -> None:
    film = put(tmp_path / "00m" / "person-7" / "001")
    with pytest.raises(SettingsError, match="1 films, none in a folder of a participant"):
        find_study_films(OAI, tmp_path)
    (found,) = find_study_films(OAI, tmp_path, Choice(participant=r"person-(\d+)"))
    assert (found.path, found.participant) == (str(film), "7")
    with pytest.raises(SettingsError, match="expected a regular expression"):
        Choice(participant="(")


def test_a_list_takes_the_place_of_the_tree(tree: Path, tmp_path: Path) -> None:
    inside = names(OAI, tree)[:2]
    elsewhere = put(tmp_path / "other" / "film.dcm")
    listed = tmp_path / "films.txt"
    listed.write_text("".join(f"{line}\n" for line in [*inside, inside[0], elsewhere]))
    films = find_study_films(OAI, tree, Choice(films=listed))
    assert {film.path for film in films} == {str(tree / name) for name in inside} | {str(elsewhere)}
    table = tmp_path / "films.csv"
    table.write_text(f"participant,path\n1,{inside[1]}\n")
    (film,) = find_study_films(OAI, tree, Choice(films=table))
    assert film.path == str(tree / inside[1])


def test_a_split_is_seeded_and_disjoint(tmp_path: Path) -> None:
    root = oai(tmp_path, 12)
    first = split_films(OAI, root, Choice(train=7, test=5, seed=3))
    assert (len(first.train), len(first.test)) == (7, 5)
    assert len({*first.train, *first.test}) == 12
    assert split_films(OAI, root, Choice(train=7, test=5, seed=3)) == first
    assert split_films(OAI, root, Choice(train=7, test=5, seed=4)) != first
    fewer = split_films(OAI, root, Choice(train=7, test=2, seed=3))
    assert (fewer.train, fewer.test) == (first.train, first.test[:2])


def test_lists_come_first_and_nobody_is_on_both_sides(tmp_path: Path) -> None:
    root = oai(tmp_path / "OAI", 8)
    films = names(OAI, root)
    test = tmp_path / "test.txt"
    test.write_text("\n".join(films[:2]))
    # Another film of somebody who is to be tested.
    put(root / Path(films[0]).parent.parent / "00429611" / "001")
    split = split_films(OAI, root, Choice(train=6, test_list=test))
    assert split.test == tuple(str(root / film) for film in films[:2])
    assert {from_root(film, root) for film in split.train} == set(films[2:])
    train = tmp_path / "train.txt"
    train.write_text("\n".join(films[5:]))
    split = split_films(OAI, root / "none", Choice(train_list=train, test_list=test))
    assert (split.train, split.test) == (
        tuple(films[5:]),
        tuple(films[:2]),
    )  # nobody looks for them
    train.write_text(str(root / Path(films[0]).parent.parent / "00429611" / "001"))
    with pytest.raises(SettingsError, match="1 participants in both"):
        split_films(OAI, root, Choice(train_list=train, test_list=test))


def test_most_is_only_tested_on(tmp_path: Path) -> None:
    split = split_films(MOST, most(tmp_path), Choice(test=3))
    assert split.train == ()
    assert len(split.test) == 3


def test_too_few_are_told_in_a_line(tree: Path) -> None:
    with pytest.raises(SettingsError, match=r"6 participants .* expected 500 to train and 400 to"):
        split_films(OAI, tree)


def test_archives_are_to_be_unpacked_first(tmp_path: Path) -> None:
    archive = tmp_path / "00m" / "0.C.2" / "9000296" / "20040909" / "10693717.tar.gz"
    archive.parent.mkdir(parents=True)
    archive.write_bytes(b"\x1f\x8b")
    with pytest.raises(SettingsError, match=r"no film of OAI.*10693717.tar.gz\): unpack them"):
        find_study_films(OAI, tmp_path)


@pytest.mark.parametrize("there", [True, False])
def test_a_root_without_films_is_told_in_a_line(tmp_path: Path, there: bool) -> None:
    root = tmp_path if there else tmp_path / "gone"
    with pytest.raises(SettingsError, match=f"{root}: no"):
        find_study_films(OAI, root)


def test_the_paper_printed_this() -> None:
    assert list(OAI.printed.values()) == [0.221, 0.159, 0.141]
    assert list(MOST.printed.values()) == [0.249, 0.224, 0.157]
    assert (OAI.train, OAI.test, MOST.train, MOST.test) == (500, 400, 0, 400)
