"""The command line: help, errors in one line, and the commands end to end."""

import json
import logging
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import kneematch
from kneematch.cli.main import COMMANDS, app, main
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


def test_main_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from kneematch.cli.main import main; code = main(['--help']);"
        "print(*sys.modules, file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not HEAVY & set(done.stderr.split())


@pytest.mark.parametrize("command", ["", *(each.__name__ for each in COMMANDS)])
def test_main_help_shows_no_python_types(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert main([*([command.replace("_", "-")] if command else []), "--help"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("Usage: kneematch")
    assert not re.search(r"<\w|[{}]|--no-(?!browser)", said)


def test_detect_takes_settings_from_a_file_and_from_a_run(tmp_path: Path) -> None:
    path = film(tmp_path / "film.png")
    settings = tmp_path / "run.toml"
    settings.write_text('crops = true\ncrop_mm = 100.0\nexport = "coco"\nworkers = 0\n')
    first, second = tmp_path / "first", tmp_path / "second"
    start = ["detect", str(path), "--device", "cpu", "--quiet"]
    main([*start, "-o", str(first), "--config", str(settings), "--crop-mm", "90"])
    main([*start, "-o", str(second), "--config", str(first / "run.json")])
    for out in (first, second):
        taken = json.loads((out / "run.json").read_text())["settings"]
        assert (taken["crops"], taken["export"], taken["workers"]) == (True, ["coco"], 0)
        assert taken["crop_mm"] == 90  # given on the command line
        assert (out / "coco.json").exists()


def test_run_ends_beside_idle_threads() -> None:
    code = (
        "import sys; from concurrent.futures import ThreadPoolExecutor; "
        "from kneematch.cli.main import run; "
        "pool = ThreadPoolExecutor(1); pool.submit(int).result(); "
        "sys.argv[1:] = ['--version']; run()"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


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
    assert re.fullmatch("kneematch: .*memory.*\n", done.stderr)  # of the program, or of the film
    assert done.returncode in (1, 2)


def test_info_tells_what_was_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    paths = [film(tmp_path / "a.dcm", series="PA Fixed"), film(tmp_path / "b.png", (200, 100))]
    assert main(["info", *map(str, paths)]) == 0
    dicom, png = capsys.readouterr().out.strip().split("\n\n")
    assert f"film: {paths[0]}\nsize_px: 120, 160\nmm_per_px: 0.2\n" in dicom
    assert f"film: {paths[1]}\nsize_px: 200, 100\nmm_per_px: -\n" in png
    assert main(["info", *map(str, paths), "--json"]) == 0
    dicom, png = json.loads(capsys.readouterr().out)
    assert (dicom["size_px"], dicom["mm_per_px"]) == ([120, 160], 0.2)
    assert dicom["spacing_tag"] == "ImagerPixelSpacing"
    assert (dicom["laterality"], dicom["view"]) == ("B", "PA")
    assert (dicom["series"], dicom["polarity_tag"]) == ("PA Fixed", "MONOCHROME2")
    assert (png["size_px"], png["mm_per_px"]) == ([200, 100], None)


def test_info_without_films_describes_the_installation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["versions"]["kneematch"] == kneematch.__version__
    assert told["devices"][0].startswith("cpu")
    assert set(told["extras"]) == {"web", "serve", "ray", "onnx"}
    assert all(re.fullmatch("[0-9a-f]{64}", each) for each in told["models"].values())
    assert {"locator.safetensors", "outlines.safetensors"} < set(told["models"])
    assert "search" in told["methods"]
    assert "seg" in told["exports"]
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
    script = app.generate_completion(shell="bash")
    assert all(word in script for word in ("evaluate", "--crops", "search"))


def test_info_goes_on_after_a_bad_film(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    bad, missing = tmp_path / "bad.dcm", tmp_path / "missing.png"
    bad.write_bytes(b"not a film")
    good = film(tmp_path / "good.dcm")
    assert main(["info", str(bad), str(missing), str(good)]) == 1
    said = capsys.readouterr()
    assert said.out.startswith(f"film: {good}\n")
    assert [line.split(": ")[:2] for line in said.err.splitlines()] == [
        ["kneematch", str(path)] for path in (bad, missing)
    ]
    assert main(["info", str(bad)]) == 2


def test_log_to_stderr_shows_messages_of_the_library_while_a_command_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logger = logging.getLogger("kneematch.part")
    with log_to_stderr():
        logger.info("looking\nfor films")
        logger.debug("detail")
    logger.info("after the command")
    assert capsys.readouterr().err == "kneematch: looking for films\n"
