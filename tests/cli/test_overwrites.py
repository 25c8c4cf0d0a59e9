"""Every command that writes, given a file or folder of the user as its target: it is refused."""

import hashlib
from pathlib import Path

import pytest

from kneematch.cli.main import main

FILM = "films/phantom-00000.dcm"
TRAIN = ("train", "films", "--template", "films/template.json", "--device", "cpu", "-o")
COMMANDS: list[tuple[str, ...]] = [
    ("detect", "films", "-o", FILM),
    ("detect", "films", "-o", "results"),
    ("synth", "-n", "1", "-o", "films"),
    (*TRAIN, "mine.safetensors"),
    (*TRAIN, "measured.safetensors"),  # whose metrics are there
    (*TRAIN, FILM),
    ("evaluate", "films", "--template", "films/template.json", "-o", "evaluated"),
    ("export-onnx", "-o", "exported"),
    ("annotate", FILM, "--no-browser", "-o", FILM),
    ("compare", "run", "--visits", "pairs.csv", "-o", "films/truth.csv"),
    ("compare", "run", "--visits", "pairs.csv", "-o", "films/phantom-00000.dcm", "--force"),
]
REFUSALS = (
    "eplace it with --force, or choose another name",
    "replace them with --force.",
    *(f"must end in {suffix}" for suffix in (".safetensors", ".json", ".csv")),
    "not a folder",
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with films, models and results that must not be lost."""
    folder = tmp_path_factory.mktemp("place")
    assert main(["synth", "-n", "2", "--size", "320x400", "-o", str(folder / "films")]) == 0
    for name in ("mine.safetensors", "measured.metrics.csv", "pairs.csv"):
        (folder / name).write_text("mine")
    for name in ("results", "evaluated", "run", "exported"):
        (folder / name).mkdir()
    (folder / "results" / "detections.csv").write_text("mine")
    (folder / "evaluated" / "evaluation.md").write_text("mine")
    (folder / "exported" / "pose.onnx").write_text("mine")
    return folder


def content(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_main_refuses_to_replace_what_is_there(
    command: tuple[str, ...],
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(place)
    before = content(place)
    assert main(command) == 2
    said = capsys.readouterr().err
    assert said.startswith("kneematch: ")
    assert said.count("\n") == 1
    assert any(words in said for words in REFUSALS)
    assert content(place) == before
    assert not (place / "new").exists()
