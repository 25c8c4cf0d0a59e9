"""`kneematch detect`, end to end."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kneematch.cli.main import main
from kneematch.films.annotation import annotate, save_annotation
from kneematch.run.outputs.tables import COLUMNS
from kneephantoms import SynthConfig, phantom, synthesize
from kneephantoms.files import write_dicom, write_png16
from tables import read_table

TEMPLATE_SEED, SEEDS = 0, {"one.dcm": 1, "two.dcm": 10, "sub/two.png": 21}  # the last a negative
TRUNCATED = "broken.dcm"
SEARCHED = ["--overlays", "--method", "search"]
FILMS = ["one.dcm", TRUNCATED, "two.dcm", "sub/two.png"]
COMMAND = [sys.executable, "-m", "kneematch", "detect", *FILMS, "--template", "template.json"]
COMMAND += ["--batch-size", "3", *SEARCHED]
LANDMARKS = [f"plateau_{end}_{axis}_px" for end in ("medial", "lateral") for axis in "xy"]


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A template, three phantoms, and a file that was cut off."""
    folder = tmp_path_factory.mktemp("films")
    (folder / "sub").mkdir()
    for name, seed in {"template.dcm": TEMPLATE_SEED, **SEEDS}.items():
        pixels = phantom(seed).pixels
        if name.endswith(".png"):
            write_png16(folder / name, pixels)
        else:
            write_dicom(folder / name, pixels, mm_per_px=0.25, laterality="B")
    knee = phantom(TEMPLATE_SEED).knees[1]
    drawn = annotate(folder / "template.dcm", knee.side, knee.plateau_left, knee.plateau_right)
    save_annotation(drawn, folder / "template.json")
    whole = (folder / "one.dcm").read_bytes()
    (folder / TRUNCATED).write_bytes(whole[: len(whole) // 2])
    return folder


@pytest.fixture(scope="module")
def run(films: Path) -> subprocess.CompletedProcess[str]:
    """One run of the real program on all of them."""
    return subprocess.run(
        [*COMMAND, "-o", "out"],
        cwd=films,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_detect_names_a_bad_film_and_goes_on(
    run: subprocess.CompletedProcess[str], films: Path
) -> None:
    assert run.returncode == 1
    table = Path("out") / "detections.csv"
    next_step = f"Next: open {Path('out') / 'report.html'}, or run: kneematch review out"
    assert (
        run.stdout
        == f"{table}: 6 knees in 3 films, 4 to review, 1 failed (failures.csv)\n{next_step}\n"
    )
    assert run.stderr.startswith(f"kneematch: {TRUNCATED}: ")
    assert run.stderr.count("\n") == 1
    (failure,) = read_table(films / "out" / "failures.csv")
    assert failure["film"] == TRUNCATED
    assert failure["reason"] in run.stderr


@pytest.mark.usefixtures("run")
def test_detect_finds_knees_where_they_are(films: Path) -> None:
    found = read_table(films / "out" / "detections.csv")
    assert list(found[0]) == [*COLUMNS, *LANDMARKS]
    assert [row["film"] for row in found] == [name for name in SEEDS for _ in "LR"]
    knees = [knee for seed in SEEDS.values() for knee in phantom(seed).knees]
    for row, knee in zip(found, knees, strict=True):
        known = (knee.laterality, "header")
        if row["film"].endswith(".png"):  # no header, but perhaps a marker that can be read
            known = (knee.laterality, "marker") if row["laterality"] else ("", "")
        assert row["image_side"] == knee.side
        assert (row["laterality"], row["laterality_source"]) == known
        x0, y0, x1, y1 = (float(row[name]) for name in LANDMARKS)
        moved = math.dist((x0, y0), knee.plateau_medial), math.dist((x1, y1), knee.plateau_lateral)
        assert max(moved) < 0.15 * math.dist(knee.plateau_left, knee.plateau_right)
        assert float(row["rotation_deg"]) == pytest.approx(knee.rotation_deg, abs=6)
        assert row["status"] == "ok"
        assert 0 < float(row["loss"]) < float(row["energy"]) < 1
        assert row["mm_per_px"] == ("" if row["film"].endswith("png") else "0.250000")
    assert [row["polarity"] for row in found] == ["positive"] * 4 + ["negative"] * 2


def test_detect_ends_with_1_when_all_films_are_bad(
    films: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = [str(tmp_path / f"empty-{k}.dcm") for k in range(12)]
    for film in bad:
        Path(film).touch()
    template = ["--template", str(films / "template.json"), "--method", "search"]
    assert main(["detect", *bad, *template, "-o", str(tmp_path / "out")]) == 1
    said = capsys.readouterr()
    assert len(said.err.splitlines()) == 11
    assert "2 more films failed" in said.err
    assert len(read_table(tmp_path / "out" / "failures.csv")) == 12
    assert read_table(tmp_path / "out" / "detections.csv") == []


def test_detect_says_that_there_are_no_knees(
    films: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hands, out = tmp_path / "hands", tmp_path / "out"
    synthesize(hands, SynthConfig(2, "png", (300, 240), framing="other"))
    assert main(["detect", str(hands), str(films / TRUNCATED), "-o", str(out)]) == 1
    counts, following = capsys.readouterr().out.splitlines()
    words = "0 knees in 0 films, 2 without a knee, 1 failed (failures.csv)"
    assert counts == f"{out / 'detections.csv'}: {words}"
    assert following == f"Next: open {out / 'report.html'}"
