"""Where the films of a run are."""

from pathlib import Path

import pytest

from kneematch.films.run_folder import find_root


def test_find_root_finds_the_working_folder_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, films = tmp_path / "results" / "out", ["film.dcm", "gone.dcm"]
    out.mkdir(parents=True)
    (tmp_path / "film.dcm").touch()
    monkeypatch.chdir(out)
    assert find_root(out, "results/out", films) == tmp_path
    assert find_root(out, "results/out", films, Path("other")) == Path("other")
    assert find_root(out, str(out), films) == find_root(out, None, films) == Path()
    monkeypatch.chdir(tmp_path)
    assert find_root(out, "results/out", films) == Path()
