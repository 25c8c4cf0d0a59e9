"""The exported networks and run_onnx.py, against the detector in float32."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from PIL import Image

from kneematch.films.read import read_isolated
from kneematch.knee.detection import Detection
from kneematch.knee.detector import Detector
from kneematch.knee.measuring import measure_knees
from kneematch.knee.onnx_export import FILES, export_onnx
from kneematch.models.model_file import builtin_model, load_model, save_model
from kneematch.models.two_stage import check_consistency, network_solver
from kneephantoms import SynthConfig, synthesize

AGREE_PX = 0.01
Run = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("onnx") / "made"
    assert export_onnx(folder) == [folder / name for name in FILES]
    return folder


@pytest.fixture(scope="module")
def run(exported: Path) -> Run:
    return partial(run_onnx, exported)


def run_onnx(folder: Path, *films: Path) -> list[dict[str, Any]]:
    """Run run_onnx.py by itself, where torch and kneematch cannot be imported."""
    for name in ("torch", "kneematch"):
        (folder / f"{name}.py").write_text("raise ImportError\n")
    command = [sys.executable, str(folder / FILES[-1]), *map(str, films)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return [json.loads(line) for line in done.stdout.splitlines()]


def float32_detector(path: Path) -> Detector:
    """The detector of a model as on a GPU: in float32, whatever this CPU can do."""
    model, loaded = load_model(path), Detector.load(path, device="cpu")
    networks = model.networks(located=True, float32=True)
    larger = model.coarse_template.size[1] / model.fine_template.size[1]
    return replace(
        loaded,
        solver=network_solver(networks),
        check=partial(check_consistency, networks, larger),
        preparation=replace(loaded.preparation, precise=True),
    )


@pytest.fixture(scope="module")
def detector() -> Detector:
    return float32_detector(builtin_model())


def films_of(folder: Path, framing: str, count: int = 2, **others: Any) -> list[Path]:
    synthesize(folder, SynthConfig(count=count, framing=framing, seed=11, **others))
    return sorted(path for path in folder.iterdir() if path.suffix in (".dcm", ".png"))


def farthest(knee: Detection, other: dict[str, Any]) -> float:
    points = [*zip(knee.corners, other["corners"], strict=True)]
    points += [(knee.landmarks[name], point) for name, point in other["landmarks"].items()]
    return max(float(np.linalg.norm(np.subtract(*pair))) for pair in points)


@pytest.mark.parametrize(
    ("framing", "others"),
    [
        ("full_leg", {"format": "png"}),  # small knees, seen in a second look
        ("single", {}),
        ("bilateral", {"turn_deg": 90.0}),
        ("bilateral", {"turn_deg": 7.0}),
        ("other", {}),
    ],
)
def test_run_onnx_finds_what_detect_finds_in_float32(
    tmp_path: Path, run: Run, detector: Detector, framing: str, others: dict[str, Any]
) -> None:
    films = films_of(tmp_path, framing, **others)
    answers = run(*films)
    assert [each["film"] for each in answers] == [str(film) for film in films]
    for film, answer in zip(films, answers, strict=True):
        (found,) = detector.detect_each([film])
        knees = [] if isinstance(found, Exception) else list(found)
        assert bool(knees) == (framing != "other")
        assert [knee.side for knee in knees] == [each["image_side"] for each in answer["knees"]]
        for knee, other in zip(knees, answer["knees"], strict=True):
            assert farthest(knee, other) < AGREE_PX


def test_run_onnx_borders_lie_on_the_measured_outlines(
    tmp_path: Path, run: Run, detector: Detector
) -> None:
    (film,) = films_of(tmp_path, "knee", count=1)
    (answer,) = run(film)
    pixels = read_isolated(film)
    measured = measure_knees(pixels, detector.detect(pixels))
    for knee, other in zip(measured, answer["knees"], strict=True):
        assert knee.measures is not None
        for bone in ("femur", "tibia"):
            line = np.array(getattr(knee.measures.outlines, bone))
            seen = np.array(other[bone])
            apart = np.abs(np.interp(line[:, 0], *seen[seen[:, 0].argsort()].T) - line[:, 1])
            # The measured ones were smoothed and moved to the film's edge.
            assert np.median(apart) < 0.01 * knee.width_px


def test_run_onnx_sees_bones_on_the_negative_of_a_film(
    tmp_path: Path, run: Run, detector: Detector
) -> None:
    (film,) = films_of(tmp_path, "knee", count=1, format="png")
    with Image.open(film) as picture:
        pixels = np.asarray(picture)
    Image.fromarray(pixels.max() - pixels).save(tmp_path / "negative.png")
    plain, negative = run(film, tmp_path / "negative.png")
    found = detector.detect(tmp_path / "negative.png")
    assert [knee.polarity for knee in found] == ["negative"] * 2
    for knee, one, other in zip(found, plain["knees"], negative["knees"], strict=True):
        assert farthest(knee, other) < AGREE_PX
        middle = [np.array(each["tibia"])[len(each["tibia"]) // 2] for each in (one, other)]
        assert np.abs(middle[0] - middle[1]).max() < 0.03 * knee.width_px


def test_export_onnx_includes_the_coarse_network_of_a_model_without_margins(tmp_path: Path) -> None:
    built_in, path = load_model(builtin_model()), tmp_path / "mine.safetensors"
    bare = {
        name: replace(getattr(built_in, name), landmarks={})
        for name in ("coarse_template", "fine_template")
    }
    save_model(path, replace(built_in, **bare))
    export_onnx(tmp_path / "made", path)
    (film,) = films_of(tmp_path / "films", "knee", count=1)
    (answer,) = run_onnx(tmp_path / "made", film)
    found = float32_detector(path).detect(film)
    assert len(found) == 2
    for knee, other in zip(found, answer["knees"], strict=True):
        assert farthest(knee, other) < AGREE_PX


def test_export_onnx_graphs_are_valid_and_say_what_they_hold(exported: Path) -> None:
    for name in FILES[:3]:
        graph = onnx.load(exported / name)
        onnx.checker.check_model(graph, full_check=True)
        about = {each.key: each.value for each in graph.metadata_props}
        assert set(json.loads(about["landmarks"])) == {"plateau_medial", "plateau_lateral"}
