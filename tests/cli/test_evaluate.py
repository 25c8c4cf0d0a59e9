"""`kneematch evaluate`, end to end."""

from pathlib import Path

import pytest

from kneematch.cli.main import main
from kneephantoms import SynthConfig, synthesize
from tables import read_table

OPTIONS = ["--methods", "search,sliding", "--device", "cpu", "--workers", "0"]


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
