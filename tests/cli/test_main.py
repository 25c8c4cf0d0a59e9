"""The command line: help, errors in one line, and the commands end to end."""

import csv
import json
import logging
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import kneematch
from kneematch.cli.main import main
from kneematch.cli.terminal import log_to_stderr
from kneephantoms.files import write_dicom, write_png16

HEAVY = {"torch", "numpy", "skimage", "pydicom", "PIL"}


def film(path: Path, size: tuple[int, int] = (120, 160), series: str | None = None) -> Path:
    """Two bright columns on a dark film, alike to left and right."""
    pixels = np.zeros(size, np.float32)
    pixels[:, size[1] // 5 : size[1] // 3] = 1
    pixels = np.maximum(pixels, pixels[:, ::-1])
    if path.suffix == ".png":
        write_png16(path, pixels)
    else:
        write_dicom(path, pixels, mm_per_px=0.2, laterality="B", series=series)
    return path


def one_line(text: str) -> str:
    """The only line there is, which is the program's."""
    assert text.startswith("kneematch: ")
    assert text.count("\n") == 1
    return text


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines(), delimiter="\t"))


def test_main_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from kneematch.cli.main import main; code = main(['--help']);"
        "print(*sys.modules, file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not HEAVY & set(done.stderr.split())


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["info", "--nonsense"],
        ["synth"],
        ["synth", "-o", "x", "-n", "0"],
        ["synth", "-o", "x", "--size", "big"],
        ["synth", "-o", "x", "--format", "gif"],
        ["info", "FILM", "--preview", "no/such/sheet.png"],
        ["synth", "-n", "1", "-o", "FILM"],
    ],
)
def test_main_reports_wrong_arguments_in_one_line_with_code_2(
    arguments: list[str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    path = film(tmp_path / "FILM.png").rename("FILM")
    assert main(arguments) == 2
    said = capsys.readouterr()
    one_line(said.err)
    assert said.out == ""
    assert list(tmp_path.iterdir()) == [tmp_path / path]


def test_run_bears_closed_streams(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kneematch", "detect", "missing.dcm", "-o", "out"]
    for closed in ("<&-", ">&-", "<&- >&- 2>&-"):
        script = f"{shlex.join(command)} {closed}"
        done = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, capture_output=True, check=False
        )
        assert done.returncode == 2
        assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("megabytes", [300, 800])  # too few to load torch, and to search a film
def test_main_reports_too_little_memory_in_one_line(tmp_path: Path, megabytes: int) -> None:
    command = [sys.executable, "-m", "kneematch", "detect", str(film(tmp_path / "film.dcm"))]
    limit = f"ulimit -v {megabytes << 10}; exec {shlex.join(command)} -o {tmp_path}/out"
    done = subprocess.run(["bash", "-c", limit], capture_output=True, text=True, check=False)
    assert "memory" in one_line(done.stderr)  # of the program, or of the film
    assert done.returncode in (1, 2)


def test_info_tells_what_was_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    paths = [film(tmp_path / "a.dcm", series="PA Fixed"), film(tmp_path / "b.png", (200, 100))]
    assert main(["info", *map(str, paths)]) == 0
    dicom, png = table(capsys.readouterr().out)
    assert dicom["film"] == str(paths[0])
    assert dicom["kind"] == "DICOM"
    assert dicom["size_px"] == "120x160"
    assert dicom["stored"] == "12 of 16 bits"
    assert float(dicom["mm_per_px"]) == 0.2
    assert dicom["spacing_tag"] == "ImagerPixelSpacing"
    assert (dicom["laterality"], dicom["view"]) == ("B", "PA")
    assert (dicom["series"], dicom["polarity_tag"]) == ("PA Fixed", "MONOCHROME2")
    assert float(dicom["axis_x_px"]) == 80
    assert (dicom["left_half_x_px"], dicom["right_half_x_px"]) == ("0-88", "72-160")
    assert (png["kind"], png["size_px"], png["stored"]) == ("PNG", "200x100", "16 bits")
    assert {png["mm_per_px"], png["laterality"], png["series"]} == {"-"}
    sheet = tmp_path / "sheet.png"
    assert main(["info", *map(str, paths), "--json", "--preview", str(sheet)]) == 0
    dicom, png = json.loads(capsys.readouterr().out)
    assert (dicom["size_px"], dicom["mm_per_px"]) == ([120, 160], 0.2)
    assert (png["size_px"], png["mm_per_px"]) == ([200, 100], None)
    with Image.open(sheet) as picture:
        assert picture.width > 160  # both, side by side


def test_info_without_films_describes_the_installation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["versions"]["kneematch"] == kneematch.__version__
    assert told["devices"][0].startswith("cpu")
    assert set(told["extras"]) == {"web", "ray"}
    assert re.fullmatch("[0-9a-f]{64}", told["model_sha256"])
    assert str(Path.home()) not in json.dumps(told)
    assert main(["info"]) == 0
    assert f"versions: kneematch {kneematch.__version__}, python 3" in capsys.readouterr().out


def test_main_version_names_what_results_depend_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names == ["kneematch", "python", "torch", "numpy", "pydicom"]
    assert main([]) == 0
    assert "Usage: kneematch" in capsys.readouterr().out


def test_main_completion_knows_commands_and_options() -> None:
    words = {"detect --cro": "--crops", "evalu": "evaluate", "detect --method sea": "search"}
    for typed, completed in words.items():
        environment = {
            "_KNEEMATCH_COMPLETE": "complete_bash",
            "COMP_WORDS": f"kneematch {typed}",
            "COMP_CWORD": str(len(typed.split())),
        }
        command = [sys.executable, "-m", "kneematch"]
        done = subprocess.run(
            command, env=os.environ | environment, capture_output=True, text=True, check=True
        )
        assert completed in done.stdout


def test_info_goes_on_after_a_bad_film(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    bad = tmp_path / "bad.dcm"
    bad.write_bytes(b"not a film")
    good, tiny = film(tmp_path / "good.dcm"), film(tmp_path / "tiny.png", (20, 20))
    missing, sheet = tmp_path / "missing.png", tmp_path / "sheet.png"
    files = [str(path) for path in (bad, missing, tiny, good)]
    assert main(["info", *files, "--preview", str(sheet)]) == 1
    said = capsys.readouterr()
    assert [row["film"] for row in table(said.out)] == [str(good)]
    complaints = said.err.splitlines()
    assert [line.split(": ")[:2] for line in complaints] == [
        ["kneematch", str(path)] for path in (bad, missing, tiny)
    ]
    assert sheet.exists()
    assert main(["info", str(bad)]) == 2


def test_synth_writes_films_that_info_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "films"
    assert main(["synth", "-n", "2", "-o", str(folder), "--size", "96x128"]) == 0
    assert capsys.readouterr() == (f"{folder}: 2 films, truth.csv and template.json\n", "")
    assert main(["info", *map(str, sorted(folder.glob("*.dcm")))]) == 0
    assert [row["size_px"] for row in table(capsys.readouterr().out)] == ["96x128"] * 2


def test_log_to_stderr_shows_messages_of_the_library_while_a_command_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logger = logging.getLogger("kneematch.part")
    with log_to_stderr():
        logger.info("looking\nfor films")
        logger.debug("detail")
    logger.info("after the command")
    assert capsys.readouterr().err == "kneematch: looking for films\n"
