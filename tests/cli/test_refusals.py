"""Wrong arguments, and files of the user as targets, are refused with one line and code 2."""

from pathlib import Path

import pytest

from kneematch.cli.main import main

FILM = "films/phantom-00000.dcm"
DETECT = f"detect {FILM} --template films/template.json -o new"
TRAIN = "train films --template films/template.json --device cpu -o"
EVALUATE = f"evaluate {FILM} -o new"
COMPARE = "compare run --visits pairs.csv -o"
REPLACE = "eplace it with --force, or choose another name"
COMMANDS = {  # what is said, by command
    f"detect films -o {FILM}": "not a folder",
    "detect films -o results": "replace them with --force",
    "synth -n 1 -o films": REPLACE,
    f"{TRAIN} mine.safetensors": REPLACE,
    f"{TRAIN} measured.safetensors": REPLACE,  # whose metrics are there
    f"{TRAIN} {FILM}": "must end in .safetensors",
    "evaluate films --template films/template.json -o evaluated": REPLACE,
    "export-onnx -o exported": REPLACE,
    f"annotate {FILM} --no-browser -o {FILM}": "must end in .json",
    f"{COMPARE} films/truth.csv": REPLACE,
    f"{COMPARE} {FILM} --force": "must end in .csv",
    "nonsense": "nonsense",
    "info --nonsense": "--nonsense",
    "synth": "--out",
    "synth -o new -n 0": "-n",
    "synth -o new --size big": "--size",
    "synth -o new --format gif": "--format",
    f"synth -n 1 -o {FILM}": "not a folder",
    "detect films -o new --workers two": "int. See 'kneematch detect --help'.",
    "detect films -o new --workers -1": "Must be >= 0. See 'kneematch detect --help'.",
    f"{DETECT} --model missing.safetensors": "missing.safetensors",
    f"detect {FILM} --template missing.json -o new": "missing.json",
    f"{DETECT} --method neural": "--method",
    f"{DETECT} --batch-size 0": "--batch-size",
    f"{DETECT} --series hand": "hand",
    f"{DETECT} *.xyz": "*.xyz",
    "detect films -o new --config nope.toml": "nope.toml cannot be read",
    "detect films -o new --config unknown.toml": 'Unknown option: "[crop]"',
    "detect films -o new --config broken.toml": "holds no settings",
    "detect films -o new --config pairs.csv": "neither a TOML file nor the run.json",
    "evaluate -o new": "FILMS requires an argument",
    f"{EVALUATE} --methods nonsense": "--methods must be some of auto",
    f"{EVALUATE} --methods neural,neural": "each once",
    f"{EVALUATE} --methods neural,grid": "with --grid N",
    f"{EVALUATE} --grid -1": "--grid",
    f"{EVALUATE} --truth missing.csv": "missing.csv",
    f"{TRAIN} model.pt": "model.pt: ",
    f"{TRAIN} films/template.json/x.safetensors": "cannot be written",
    "annotate missing.dcm": "missing.dcm",
    f"annotate {FILM} -o no/such/folder/template.json": "no/such/folder",
    f"annotate {FILM} --films *.xyz": "*.xyz",
    f"annotate {FILM} --port 99999": "--port",
    "apply missing": "missing holds no run",
    "apply films": "films holds no run",
    "review missing": "missing holds no run",
    "review films": "films holds no run",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with films, models and results that must not be lost."""
    folder = tmp_path_factory.mktemp("place")
    assert main(["synth", "-n", "2", "--size", "320x400", "-o", str(folder / "films")]) == 0
    for name in ("mine.safetensors", "measured.metrics.csv", "pairs.csv"):
        (folder / name).write_text("mine")
    (folder / "unknown.toml").write_text("crop = 1")
    (folder / "broken.toml").write_text("crops =")
    for name in ("results", "evaluated", "run", "exported"):
        (folder / name).mkdir()
    (folder / "results" / "detections.csv").write_text("mine")
    (folder / "evaluated" / "evaluation.md").write_text("mine")
    (folder / "exported" / "pose.onnx").write_text("mine")
    return folder


def content(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("command", COMMANDS)
def test_main_refuses_wrong_arguments_and_to_replace_what_is_there(
    command: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    before = content(place)
    assert main(command.split()) == 2
    said = capsys.readouterr()
    assert said.err.startswith("kneematch: ")
    assert said.err.count("\n") == 1
    assert said.out == ""
    assert COMMANDS[command] in said.err
    assert content(place) == before
    assert not (place / "new").exists()
