"""Models on disk: what is saved comes back, and other files are told apart."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from kneematch import __version__
from kneematch.errors import SettingsError
from kneematch.matching.template import Template
from kneematch.networks.model_file import FORMAT, Model, load_model, save_model, shipped_model
from kneematch.networks.pose_network import PoseNetwork

MOST_BYTES = 50_000_000  # of the model in the box


def template(height: int, seed: int) -> Template:
    image, detail = torch.rand(2, height, 60, generator=torch.Generator().manual_seed(seed))
    return Template(
        image,
        detail,
        red=(..., slice(5, 20), slice(3, 17)),
        green=(..., slice(6, 21), slice(40, 57)),
        landmarks={"inner border": (-0.5, 0.125), "ä": (0.75, 0.0)},
    )


@pytest.fixture(scope="module")
def model() -> Model:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        weights = PoseNetwork().state_dict(), PoseNetwork().state_dict()
    settings = {"recipe": "paper", "films": 3, "losses": [0.5, 0.25]}
    return Model(*weights, template(50, 1), template(40, 2), settings)


def same_template(one: Template, other: Template, tolerance: float) -> bool:
    return (
        torch.allclose(one.image, other.image, rtol=0, atol=tolerance)
        and torch.allclose(one.fine_structure, other.fine_structure, rtol=0, atol=tolerance)
        and (one.red, one.green) == (other.red, other.green)
        and dict(one.landmarks) == dict(other.landmarks)
    )


def test_a_model_comes_back_as_it_was_saved(model: Model, tmp_path: Path) -> None:
    save_model(tmp_path / "model.safetensors", model)
    back = load_model(tmp_path / "model.safetensors")
    for before, after in ((model.coarse, back.coarse), (model.fine, back.fine)):
        assert sorted(before) == sorted(after)
        assert all(torch.equal(before[name], value) for name, value in after.items())
    assert same_template(model.coarse_template, back.coarse_template, 0)
    assert same_template(model.fine_template, back.fine_template, 0)
    assert back.settings == model.settings


def test_half_precision_halves_the_file_and_loads_as_float32(model: Model, tmp_path: Path) -> None:
    save_model(tmp_path / "whole.safetensors", model)
    save_model(tmp_path / "half.safetensors", model, dtype=torch.float16)
    sizes = [(tmp_path / f"{name}.safetensors").stat().st_size for name in ("half", "whole")]
    assert sizes[0] / sizes[1] == pytest.approx(0.5, abs=0.01)
    back = load_model(tmp_path / "half.safetensors")
    assert {back.fine[name].dtype for name, _ in PoseNetwork().named_parameters()} == {
        torch.float32
    }
    assert same_template(model.fine_template, back.fine_template, 1e-3)
    for name, value in back.fine.items():
        assert torch.allclose(value, model.fine[name], rtol=1e-3, atol=1e-6), name


def test_a_model_says_which_version_made_it(model: Model, tmp_path: Path) -> None:
    save_model(tmp_path / "model.safetensors", model)
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        metadata = file.metadata()
    assert metadata["format"] == FORMAT
    assert json.loads(metadata["about"])["version"] == __version__


def test_the_model_in_the_box_is_there_small_enough_and_finds_something() -> None:
    assert shipped_model().stat().st_size <= MOST_BYTES
    shipped = load_model(shipped_model())
    with torch.no_grad():
        theta = shipped.networks().poses(torch.rand(1, 2, 800, 500))
    assert theta.shape == (1, 2, 4)
    assert bool(theta.isfinite().all())


def test_other_files_are_told(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with pytest.raises(SettingsError, match=r"no such file; expected a model"):
        load_model(path)
    save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(SettingsError, match=r"not a model of kneematch \(format None\)"):
        load_model(path)
    save_file({"a": torch.zeros(1)}, path, {"format": "kneematch-model/2"})
    with pytest.raises(SettingsError, match=r"kneematch-model/2.*expected 'kneematch-model/1'"):
        load_model(path)
    with pytest.raises(SettingsError, match="cannot be read as safetensors"):
        load_model(tmp_path)


def test_a_model_that_is_cut_short_is_told(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_model(path, model)
    whole = path.read_bytes()
    for content in (b"", b"no model", whole[:1000], whole[:-1]):
        path.write_bytes(content)
        with pytest.raises(SettingsError, match="cannot be read as safetensors"):
            load_model(path)


def test_nothing_is_left_of_a_model_that_could_not_be_written(model: Model, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").mkdir()
    with pytest.raises(OSError, match=r"model\.safetensors"):
        save_model(tmp_path / "model.safetensors", model)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
