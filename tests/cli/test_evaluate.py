"""`kneematch evaluate`, end to end."""

from pathlib import Path

import pytest

from kneematch.cli.main import main
from kneephantoms import SynthConfig, synthesize
from tables import read_table

OPTIONS = ["--methods", "search,sliding", "--paper", "--device", "cpu", "--workers", "0"]


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two small phantoms, and a file that was cut off."""
    folder = tmp_path_factory.mktemp("films")
    synthesize(folder, SynthConfig(2, size=(320, 400), workers=0))
    whole = (folder / "phantom-00000.dcm").read_bytes()
    (folder / "broken.dcm").write_bytes(whole[:5000])
    return folder


def test_evaluate_writes_tables_and_continues(
    films: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    known = ["--template", str(films / "template.json"), "--truth", str(films / "truth.csv")]
    command = ["evaluate", str(films), "-o", str(out), *known, *OPTIONS]
    assert main(command) == 1  # one film failed
    said = capsys.readouterr()
    assert "broken.dcm" in said.err
    for title in ("left + right loss", "mean IoU"):
        assert title in said.out
    assert said.out.endswith(f"{out / 'evaluation.md'}\n")
    row, *_ = read_table(out / "losses.csv")
    assert f"{float(row['left + right loss']):.3f}" in said.out

    before = (out / "accuracy.csv").read_text()
    assert main([*command, "--quiet"]) == 1
    assert (out / "accuracy.csv").read_text() == before
    quiet = capsys.readouterr()
    assert quiet.out == ""
    assert quiet.err.count("\n") == 1  # the film that failed


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "FILMS requires an argument"),
        (["film.dcm", "--methods", "nonsense"], "--methods must be some of locator"),
        (["film.dcm", "--methods", "neural,neural"], "each once"),
        (["film.dcm", "--methods", "neural,grid"], "with --grid N"),
        (["film.dcm", "--grid", "-1"], "--grid"),
        (["film.dcm", "--truth", "missing.csv"], "missing.csv"),
    ],
)
def test_evaluate_refuses_contradictions_in_one_line_and_writes_nothing(
    options: list[str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["evaluate", *options, "-o", "out"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("kneematch: ")
    assert error.count("\n") == 1
    assert said in error
    assert not Path("out").exists()
