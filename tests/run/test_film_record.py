"""Names of films among the artifacts: unique, recognisable, and short enough for any disk."""

import os
from pathlib import Path

from kneematch.run.film_record import film_names


def test_film_names_take_as_many_folders_as_tell_films_apart() -> None:
    films = [f"/oai/{folder}/001" for folder in ("a/2004", "a/2005", "b/2004")]
    assert film_names(films, set()) == ["a_2004_001", "2005_001", "b_2004_001"]
    assert film_names(["a/1/001", "a/2/001", "b/002"], set()) == ["1_001", "2_001", "002"]


def test_film_names_ignore_case_and_number_what_nothing_tells_apart() -> None:
    films = ["a/1.dcm", "b/1", "1.png", "1.tif", "X", "x.dcm", "../x.png", "..dcm"]
    assert film_names(films, set()) == ["a_1", "b_1", "1", "1-2", "X", "X-2", "X-3", "film"]
    films = ["/data/films/a.dcm", "/data/films/A.png", "/data/films/b.dcm"]
    assert film_names(films, set()) == ["a", "a-2", "b"]
    more = film_names([*films, "/data/more/a.dcm"], set())
    assert more == ["films_a", "films_a-2", "b", "more_a"]


def test_film_names_leave_names_that_are_taken() -> None:
    taken = {"001", "b_001"}
    assert film_names(["b/001", "c/001", "d/002"], taken) == ["b_001-2", "c_001", "002"]
    assert taken == {"001", "b_001", "b_001-2", "c_001", "002"}


def test_film_names_shorten_long_names_and_keep_them_apart(tmp_path: Path) -> None:
    films = [f"{'é' * 120}{k}.dcm" for k in range(3)] + [os.fsdecode(b"\xff" * 200)]
    names = film_names(films, set())
    assert len(set(names)) == 4
    assert all(len(os.fsencode(name)) <= 120 for name in names)
    assert names[0].startswith("é" * 50)
    for name in names:
        (tmp_path / f"{name}-picture.dcm").touch()


def test_film_names_of_many_equal_files_are_distinct() -> None:
    assert len(set(film_names([f"{k}/001" for k in range(20_000)], set()))) == 20_000
    assert len(set(film_names([f"001.{k}" for k in range(20_000)], set()))) == 20_000
