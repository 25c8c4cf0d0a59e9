"""The laboratory's commands keep up with the library; each runs as its own process."""

import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import code_size
from kneematch.cli.main import app
from kneematch.knee.measure import widths_at
from kneematch.paper.network import PoseNetwork
from kneephantoms import SynthConfig, synthesize
from measure import outlines_of_mask
from paper import IMAGENET_URL, initial_networks
from results import PARTS
from servers import tool

LAB = Path(__file__).parents[2] / "lab"
COLUMNS = ("film", "image_side", "plateau_medial_x_px", "plateau_medial_y_px")
COLUMNS += ("plateau_lateral_x_px", "plateau_lateral_y_px", "review", "reason")


def run(script: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(LAB / script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def checked(script: str, *arguments: str | Path) -> str:
    done = run(script, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def write_run(folder: Path, *rows: tuple[str, ...], failed: tuple[str, ...] = ()) -> Path:
    """Write the tables of a run."""
    folder.mkdir()
    for name, header, content in (
        ("detections.csv", COLUMNS, rows),
        ("failures.csv", ("film", "error"), [(film, "broken") for film in failed]),
    ):
        with (folder / name).open("w", newline="") as file:
            csv.writer(file).writerows([header, *content])
    return folder


LEFT = ("a.dcm", "left", "10", "20", "30", "20", "", "")


def test_rows_names_every_difference(tmp_path: Path) -> None:
    moved, judged, gone = (("c.dcm", *LEFT[1:]), ("d.dcm", *LEFT[1:]), ("e.dcm", *LEFT[1:]))
    before = write_run(tmp_path / "before", LEFT, moved, judged, gone, failed=("b.dcm",))
    rows = (
        (*LEFT[:2], "10.03", "20.03", *LEFT[4:]),  # below the limit
        (*moved[:2], "10.1", *moved[3:]),
        (*judged[:6], "yes", "metal"),
        ("e.dcm", "right", *LEFT[2:]),
    )
    assert "4 knees in both runs" in checked("rows.py", before, before)
    done = run("rows.py", before, write_run(tmp_path / "after", *rows))
    assert done.returncode == 1
    assert done.stdout.splitlines()[1:] == [
        "only before: e.dcm left",
        "only after: e.dcm right",
        "moved by 0.100 px: c.dcm left",
        "judged otherwise: d.dcm left:  /  -> yes / metal",
        "without a result only before: b.dcm",
    ]


def test_accuracy_scores_phantoms_of_every_framing() -> None:
    printed = checked("accuracy.py", "--films", "1")
    for framing in ("bilateral", "single", "full_leg", "offcentre", "lateral", "other"):
        assert f"| {framing} | 1 | 1.000 |" in printed


def test_results_names_commands_and_options_that_exist() -> None:
    listed = [
        line[2:].split() for line in checked("results.py", "--list").splitlines() if "$" in line
    ]
    listed += [command.split() for command in PARTS["large"]]
    assert len(listed) > 30
    for name, *words in (words[words[0].startswith("PYTHONPATH=") :] for words in listed):
        if name == "kneematch":
            app.parse_args(words)
        elif name != "ls":
            source = (LAB.parent / name).read_text("utf-8")
            assert all(f'"{word}"' in source for word in words if word.startswith("--")), name


def test_measure_compares_phantoms_with_their_outlines() -> None:
    assert "joint-line angle, degrees" in checked("measure.py", "phantoms", "--films", "1")


def test_outlines_of_mask_are_its_borders_bridged_where_columns_are_empty() -> None:
    x, y = np.arange(120), np.arange(80)[:, None]
    mask = (x >= 10) & (x < 110) & (y >= 40 - (x - 10) / 10) & (y < 50)
    widths = widths_at(outlines_of_mask(mask), np.linspace(0.1, 0.3))
    assert widths.min() == pytest.approx(11, abs=0.6)
    mask[:, 40:50] = False
    assert outlines_of_mask(mask).width_px == 100


def test_code_size_counts_functions_files_and_changes_of_file_in_each_process() -> None:
    calls = [("1", "a", "1"), ("1", "b", "5"), ("2", "b", "5"), ("1", "b", "5"), ("1", "a", "9")]
    assert list(code_size.measure_way(calls).values()) == [3, 2, 4]


def test_code_size_names_what_is_too_large() -> None:
    sizes = dict(code_size.LIMITS)
    assert code_size.exceeded(sizes) == []
    assert code_size.exceeded(sizes | {"commands": sizes["commands"] + 1}) == ["commands"]


def test_soak_sends_films_to_a_node() -> None:
    tool("storescp")
    told = checked("soak.py", "--films", "8", "--distinct", "2", "--workers", "1")
    assert "16 arrived, 0 of them twice" in told
    assert "not sent here: 0" in told


def test_paper_says_where_the_training_started(tmp_path: Path) -> None:
    synthesize(tmp_path / "films", SynthConfig(2, size=(480, 480), framing="knee"))
    films, template = tmp_path / "films", tmp_path / "films" / "template.json"
    given = ("--train", films, "--template", template, "--test", films / "phantom-00000.dcm")
    options = ("--device", "cpu", "--beside", "oai", "--rounds", "1", "--epochs", "1")
    printed = checked("paper.py", "-o", tmp_path / "out", *given, *options)
    assert "started from `synthetic`" in printed
    assert "| template matching | 1 |" in printed


def test_initial_networks_have_the_backbones_of_imagenet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    weights = {f"fc.{name}": each for name, each in torch.nn.Linear(512, 9).state_dict().items()}
    weights |= {name: each + 1 for name, each in PoseNetwork().backbone.state_dict().items()}
    file = tmp_path / "hub" / "checkpoints" / IMAGENET_URL.rsplit("/", 1)[1]
    file.parent.mkdir(parents=True)
    torch.save(weights, file)
    for network in initial_networks("imagenet"):
        for name, each in network.backbone.state_dict().items():
            assert torch.equal(each, weights[name])
