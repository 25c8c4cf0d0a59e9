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
from typer.testing import CliRunner

import kneematch
from kneematch.cli.main import app, main
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


def test_help_names_the_commands() -> None:
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    assert "info" in result.output
    assert "synth" in result.output
    assert "completion" in result.output


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from kneematch.cli.main import main; code = main(['--help']);"
        "print(*sys.modules, file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not HEAVY & set(done.stderr.split())


def test_compare_imports_no_torch() -> None:
    code = "import sys, kneematch.evaluation.longitudinal; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "torch" not in done.stdout.split()


def test_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith(f"kneematch {kneematch.__version__}\n")


def test_no_arguments_show_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "Usage: kneematch" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["info", "--nonsense"],
        ["synth"],
        ["synth", "-o", "x", "-n", "many"],
        ["synth", "-o", "x", "-n", "0"],
        ["synth", "-o", "x", "--size", "big"],
        ["synth", "-o", "x", "--size", "1x1"],
        ["synth", "-o", "x", "--seed", "-1"],
        ["synth", "-o", "x", "--format", "gif"],
        ["synth", "-o", "x", "--workers", "-1"],
        ["synth", "-o", "x", "--framing", "hand"],
    ],
)
def test_wrong_arguments_are_one_line_and_code_2(
    arguments: list[str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    said = capsys.readouterr()
    one_line(said.err)
    assert said.out == ""
    assert list(tmp_path.iterdir()) == []


def test_main_names_the_command_whose_help_to_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["detect", "films", "-o", "x", "--method", "foo"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("kneematch: Invalid value for '--method': 'foo' is not one of 'auto'")
    assert told.endswith("'sliding'. See 'kneematch detect --help'.\n")


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(path: Path) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("kneematch.knee.describe.describe", broken)
    with pytest.raises(ZeroDivisionError):
        main(["info", str(film(tmp_path / "a.png"))])


def test_closed_streams_are_no_error(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kneematch", "detect", "missing.dcm", "-o", "out"]
    for closed in ("<&-", ">&-", "<&- >&- 2>&-"):
        script = f"{shlex.join(command)} {closed}"
        done = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, capture_output=True, check=False
        )
        assert done.returncode == 2
        assert b"Traceback" not in done.stderr


def test_too_little_memory_of_a_gpu_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(path: Path) -> None:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 MiB.\nGPU 0 has ...")

    monkeypatch.setattr("kneematch.knee.describe.describe", full)
    assert main(["info", str(film(tmp_path / "a.png"))]) == 2
    assert one_line(capsys.readouterr().err).startswith("kneematch: not enough memory on the GPU; ")


@pytest.mark.parametrize("megabytes", [300, 800])  # too few to load torch, and to search a film
def test_too_little_memory_is_one_line(tmp_path: Path, megabytes: int) -> None:
    command = [sys.executable, "-m", "kneematch", "detect", str(film(tmp_path / "film.dcm"))]
    limit = f"ulimit -v {megabytes << 10}; exec {shlex.join(command)} -o {tmp_path}/out"
    done = subprocess.run(["bash", "-c", limit], capture_output=True, text=True, check=False)
    assert "memory" in one_line(done.stderr)  # of the program, or of the film
    assert done.returncode in (1, 2)


def test_info_tells_what_was_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    series = "a series description that is longer than a line of the terminal " * 3
    paths = [film(tmp_path / "a.dcm", series=series[:64]), film(tmp_path / "b.png", (200, 100))]
    assert main(["info", *map(str, paths)]) == 0
    dicom, png = table(capsys.readouterr().out)
    assert dicom["film"] == str(paths[0])
    assert dicom["kind"] == "DICOM"
    assert dicom["size_px"] == "120x160"
    assert dicom["stored"] == "12 of 16 bits"
    assert float(dicom["mm_per_px"]) == 0.2
    assert dicom["spacing_tag"] == "ImagerPixelSpacing"
    assert (dicom["laterality"], dicom["view"]) == ("B", "PA")
    assert dicom["series"] == series[:64].strip()
    assert dicom["polarity_tag"] == "MONOCHROME2"
    assert float(dicom["axis_x_px"]) == 80
    assert (dicom["left_half_x_px"], dicom["right_half_x_px"]) == ("0-88", "72-160")
    assert (png["kind"], png["size_px"], png["stored"]) == ("PNG", "200x100", "16 bits")
    assert {png["mm_per_px"], png["laterality"], png["series"]} == {"-"}


def test_info_prints_json_with_numbers_as_numbers(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    paths = [film(tmp_path / "a.dcm"), film(tmp_path / "b.png", (200, 100))]
    assert main(["info", *map(str, paths), "--json"]) == 0
    dicom, png = json.loads(capsys.readouterr().out)
    assert (dicom["size_px"], dicom["mm_per_px"]) == ([120, 160], 0.2)
    assert (png["size_px"], png["mm_per_px"]) == ([200, 100], None)


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


def test_version_names_what_results_depend_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names == ["kneematch", "python", "torch", "numpy", "pydicom"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_commands_and_options(shell: str) -> None:
    words = {"detect --cro": "--crops", "evalu": "evaluate"}
    for typed, completed in words.items():
        line = f"kneematch {typed}"
        environment = {
            "_KNEEMATCH_COMPLETE": f"complete_{shell}",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(typed.split())),
            "_TYPER_COMPLETE_ARGS": line,
            "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        }
        done = subprocess.run(
            [sys.executable, "-m", "kneematch"],
            env=os.environ | environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert completed in done.stdout


def test_info_on_a_terminal_takes_no_header_for_markup(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    assert main(["info", str(film(tmp_path / "a.dcm", series="[red]knee[/]"))]) == 0
    said = capsys.readouterr().out
    assert "[red]knee[/]" in said
    assert "…" not in said


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


def test_info_draws_a_sheet_of_several_films(tmp_path: Path) -> None:
    paths = [str(film(tmp_path / f"{k}.png")) for k in range(3)]
    one, three = tmp_path / "one.png", tmp_path / "three.png"
    assert main(["info", paths[0], "--preview", str(one)]) == 0
    assert main(["info", *paths, "--preview", str(three)]) == 0
    with Image.open(one) as small, Image.open(three) as large:
        assert small.width == 160
        assert large.width > 2 * 160


def test_a_preview_that_cannot_be_written_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    target = tmp_path / "no" / "such" / "sheet.png"
    assert main(["info", str(film(tmp_path / "a.png")), "--preview", str(target)]) == 2
    assert str(target) in one_line(capsys.readouterr().err)


def test_synth_then_info_as_real_processes(tmp_path: Path) -> None:
    run = [sys.executable, "-m", "kneematch"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    folder = tmp_path / "films"
    command = [*run, "synth", "-n", "2", "-o", str(folder), "--size", "96x128"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout == f"{folder}: 2 films, truth.csv and template.json\n"
    assert done.stderr == ""
    films = [str(path) for path in sorted(folder.glob("*.dcm"))]
    command = [*run, "info", *films]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert [row["size_px"] for row in table(done.stdout)] == ["96x128"] * 2


def test_synth_refuses_to_mix_with_other_files(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    command = ["synth", "-n", "1", "-o", str(tmp_path), "--size", "64x64"]
    assert main(command) == 2
    assert "--force" in one_line(capsys.readouterr().err)
    assert main([*command, "--force"]) == 0
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_synth_into_what_is_no_folder_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    target = tmp_path / "file"
    target.write_text("")
    assert main(["synth", "-n", "1", "-o", str(target)]) == 2
    assert str(target) in one_line(capsys.readouterr().err)


def test_log_to_stderr_shows_messages_of_the_library_while_a_command_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logger = logging.getLogger("kneematch.part")
    with log_to_stderr():
        logger.info("looking\nfor films")
        logger.debug("detail")
    logger.info("after the command")
    assert capsys.readouterr().err == "kneematch: looking for films\n"
