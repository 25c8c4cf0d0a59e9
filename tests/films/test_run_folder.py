import json
from pathlib import Path

import pytest

from kneematch.films.run_folder import find_root


def write_settings(out: Path, settings: object) -> None:
    (out / "run.json").write_text(json.dumps({"settings": settings}))


def test_find_root_finds_the_working_folder_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "results" / "out"
    out.mkdir(parents=True)
    (tmp_path / "film.dcm").touch()
    films = ["film.dcm", "gone.dcm"]
    write_settings(out, {"out": "results/out"})
    monkeypatch.chdir(out)
    assert find_root(out, films) == (tmp_path, 1)
    assert find_root(out, films, Path("other")) == (Path("other"), 0)
    monkeypatch.chdir(tmp_path)
    assert find_root(out, films) == (Path(), 1)
    monkeypatch.chdir(out)
    write_settings(out, {"out": str(out)})
    assert find_root(out, films) == (Path(), 0)
    write_settings(out, None)
    assert find_root(out, films) == (Path(), 0)
    (out / "run.json").unlink()
    assert find_root(out, films) == (Path(), 0)
