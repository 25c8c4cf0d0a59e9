"""Runs that measure; the network is untrained, so that every outline is doubtful."""

import csv
import json
from pathlib import Path

import pytest
import torch
from pyarrow import parquet

from kneematch.errors import SettingsError
from kneematch.models.outlines import OutlineNetwork, save_network
from kneematch.run.config import DetectConfig
from kneematch.run.pipeline import detect_folder
from kneematch.run.outputs.measurements import COLUMNS, FORMAT


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("network") / "untrained.safetensors"
    torch.manual_seed(0)
    save_network(path, OutlineNetwork((4, 4, 4, 4, 4)).eval(), {"trained_on": "nothing"})
    return str(path)


def config(network: str, workers: int = 0) -> DetectConfig:
    return DetectConfig(
        method="neural",
        device="cpu",
        workers=workers,
        limit=2,
        measure=True,
        outlines=network,
        magnification=1.1,
    )


def test_detect_folder_measures(films: Path, tmp_path: Path, network: str) -> None:
    result = detect_folder(films, tmp_path / "one", config(network))
    assert result.review == result.knees == 4
    with (tmp_path / "one" / "measurements.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [*rows[0]] == [*COLUMNS]
    assert [row["side"] for row in rows] == ["left", "right"] * 2
    assert all("outline not clear" in row["reason"] for row in rows)
    assert all(row["jsw_x250_pct"] == "" and row["magnification"] == "1.1000" for row in rows)
    assert parquet.read_table(tmp_path / "one" / "measurements.parquet").num_rows == 4
    outlines = json.loads((tmp_path / "one" / "outlines.json").read_text())
    assert outlines["format"] == FORMAT
    for knee in outlines["knees"]:
        assert {"film", "side", "femur", "tibia", "landmarks", "mm_per_px"} <= set(knee)
        assert len(knee["landmarks"]) == 16
        assert knee["femur"][0][0] < knee["femur"][-1][0]  # from the picture's left to its right


def test_detect_folder_measures_the_same_in_workers(
    films: Path, tmp_path: Path, network: str
) -> None:
    for name, workers in (("none", 0), ("two", 2)):
        detect_folder(films, tmp_path / name, config(network, workers))
    for file in ("measurements.csv", "outlines.json", "detections.csv"):
        one, two = ((tmp_path / name / file).read_bytes() for name in ("none", "two"))
        assert one == two, file


def test_detect_folder_refuses_a_missing_outline_network(films: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"no such file; expected the outline network"):
        detect_folder(films, tmp_path / "out", config(str(tmp_path / "none.safetensors")))
    assert not (tmp_path / "out").exists()


def test_detect_config_refuses_settings_of_measures_alone() -> None:
    with pytest.raises(SettingsError, match="expected --measure"):
        DetectConfig(magnification=1.1)
    with pytest.raises(SettingsError, match="from 1 to 2"):
        DetectConfig(measure=True, magnification=3)
