"""Models on disk: what is saved comes back, and other files are told apart."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from kneematch import __version__
from kneematch.errors import SettingsError
from kneematch.films.annotation import PLATEAU_MARGINS
from kneematch.models.model_file import FORMAT, Model, builtin_model, load_model, save_model
from kneematch.paper.network import PoseNetwork
from kneematch.paper.template import Template

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
        and torch.allclose(one.local_contrast, other.local_contrast, rtol=0, atol=tolerance)
        and (one.red, one.green) == (other.red, other.green)
        and dict(one.landmarks) == dict(other.landmarks)
    )


def test_save_model_reads_back(model: Model, tmp_path: Path) -> None:
    save_model(tmp_path / "model.safetensors", model)
    back = load_model(tmp_path / "model.safetensors")
    for before, after in ((model.coarse, back.coarse), (model.fine, back.fine)):
        assert sorted(before) == sorted(after)
        assert all(torch.equal(before[name], value) for name, value in after.items())
    assert same_template(model.coarse_template, back.coarse_template, 0)
    assert same_template(model.fine_template, back.fine_template, 0)
    assert back.settings == model.settings


def test_save_model_compactly_loads_as_float32(model: Model, tmp_path: Path) -> None:
    save_model(tmp_path / "whole.safetensors", model)
    save_model(tmp_path / "compact.safetensors", model, compact=True)
    sizes = [(tmp_path / f"{name}.safetensors").stat().st_size for name in ("compact", "whole")]
    assert sizes[0] / sizes[1] == pytest.approx(0.27, abs=0.01)
    back = load_model(tmp_path / "compact.safetensors")
    assert {back.fine[name].dtype for name, _ in PoseNetwork().named_parameters()} == {
        torch.float32
    }
    assert same_template(model.fine_template, back.fine_template, 1e-3)
    for name, value in back.fine.items():
        largest = model.fine[name].abs().max()
        assert (value - model.fine[name]).abs().max() <= 0.005 * largest, name


def test_save_model_stores_the_version(model: Model, tmp_path: Path) -> None:
    save_model(tmp_path / "model.safetensors", model)
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        metadata = file.metadata()
    assert metadata["format"] == FORMAT
    assert json.loads(metadata["about"])["version"] == __version__


def test_shipped_model_is_small_and_finds_something() -> None:
    assert builtin_model().stat().st_size <= MOST_BYTES
    shipped = load_model(builtin_model())
    with torch.no_grad():
        theta = shipped.networks().poses(torch.rand(1, 2, 800, 500))
    assert theta.shape == (1, 2, 4)
    assert bool(theta.isfinite().all())


def test_load_model_refuses_other_files(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with pytest.raises(SettingsError, match=r"no such file; expected a model"):
        load_model(path)
    save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(SettingsError, match=r"not a model of kneematch \(format None\)"):
        load_model(path)
    save_file({"a": torch.zeros(1)}, path, {"format": "kneematch-model/3"})
    with pytest.raises(SettingsError, match=r"kneematch-model/3.*expected 'kneematch-model/2'"):
        load_model(path)
    with pytest.raises(SettingsError, match="cannot be read as safetensors"):
        load_model(tmp_path)


def test_load_model_refuses_a_truncated_file(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_model(path, model)
    whole = path.read_bytes()
    for content in (b"", b"no model", whole[:1000], whole[:-1]):
        path.write_bytes(content)
        with pytest.raises(SettingsError, match="cannot be read as safetensors"):
            load_model(path)


def test_save_model_leaves_nothing_on_failure(model: Model, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").mkdir()
    with pytest.raises(OSError, match=r"model\.safetensors"):
        save_model(tmp_path / "model.safetensors", model)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def changed(path: Path, model: Model, change: Callable[[dict, dict], None]) -> Path:
    """Write a model whose tensors and description were changed."""
    save_model(path, model)
    with safe_open(path, framework="pt") as file:
        names, metadata = file.keys(), file.metadata()
        tensors = {name: file.get_tensor(name) for name in names}
    about = json.loads(metadata["about"])
    change(tensors, about)
    save_file(tensors, path, {**metadata, "about": json.dumps(about)})
    return path


@pytest.mark.parametrize(("left", "right"), [(-0.7, 0.7), (0.7, -0.7)])
def test_load_model_renames_the_margins_of_older_models(
    tmp_path: Path, model: Model, left: float, right: float
) -> None:
    old = {"plateau_left": [left, 0.1], "spine": [0.0, 0.0], "plateau_right": [right, 0.1]}

    def age(tensors: dict, about: dict) -> None:
        about["templates"]["fine"]["landmarks"] = old

    loaded = load_model(changed(tmp_path / "model.safetensors", model, age))
    assert loaded.fine_template.landmarks == {
        "plateau_medial": (-0.7, 0.1),
        "plateau_lateral": (0.7, 0.1),
        "spine": (0.0, 0.0),
    }


def set_nan(tensors: dict, about: dict) -> None:
    tensors["fine.backbone.layer3.1.conv2.weight"][5, 4, 1, 1] = torch.nan


def set_infinity(tensors: dict, about: dict) -> None:
    tensors["coarse.regress.4.bias"][0] = torch.inf


def blacken_template(tensors: dict, about: dict) -> None:
    tensors["fine_template.image"].zero_()


def remove_tensor(tensors: dict, about: dict) -> None:
    del tensors["coarse.backbone.bn1.bias"]


def reshape_tensor(tensors: dict, about: dict) -> None:
    tensors["fine.regress.2.bias"] = torch.zeros(7)


def compact(tensors: dict) -> str:
    """Store the weights of one convolution in 8 bits; return the name of its steps."""
    name = "fine.backbone.layer1.0.conv1.weight"
    tensors[name] = tensors[name].new_ones(tensors[name].shape, dtype=torch.int8)
    tensors[f"{name}.steps"] = torch.ones(len(tensors[name]))
    return f"{name}.steps"


def reshape_steps(tensors: dict, about: dict) -> None:
    steps = compact(tensors)
    tensors[steps] = tensors[steps][:, None]


def round_steps(tensors: dict, about: dict) -> None:
    steps = compact(tensors)
    tensors[steps] = tensors[steps].int()


def move_window(tensors: dict, about: dict) -> None:
    about["templates"]["fine"]["red"] = [0, 5, 4, 100_000]


def remove_templates(tensors: dict, about: dict) -> None:
    about["templates"] = []


def spoil_landmark(tensors: dict, about: dict) -> None:
    about["templates"]["coarse"]["landmarks"] = {"plateau_left": [0.1, math.nan]}


def overflow_landmark(tensors: dict, about: dict) -> None:
    about["templates"]["fine"]["landmarks"] = {"plateau_left": [0, 10**400]}


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (set_nan, r"fine\.backbone\.layer3\.1\.conv2\.weight holds NaN or infinity"),
        (set_infinity, r"coarse\.regress\.4\.bias holds NaN or infinity"),
        (reshape_steps, r"fine\.backbone\.layer1\.0\.conv1\.weight has steps that do not fit"),
        (round_steps, "has steps that do not fit"),
        (blacken_template, "the fine template shows a single grey"),
        (remove_tensor, r"no 'coarse\.backbone\.bn1\.bias'"),
        (reshape_tensor, r"fine\.regress\.2\.bias has shape \(7,\) instead of \(32,\)"),
        (move_window, r"window \[0, 5, 4, 100000\] leaves its template"),
        (remove_templates, "list indices must be integers"),
        (spoil_landmark, "landmark of the coarse template is not a point"),
        (overflow_landmark, "int too large to convert to float"),
    ],
)
def test_load_model_refuses_unusable_values(
    model: Model, tmp_path: Path, change: Callable[[dict, dict], None], found: str
) -> None:
    path = changed(tmp_path / "model.safetensors", model, change)
    with pytest.raises(SettingsError, match=rf"not a usable model \(.*{found}") as caught:
        load_model(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("about", ["", "{", "[]", "null", '{"templates": 1}', "[" * 100_000])
def test_load_model_refuses_malformed_metadata(model: Model, tmp_path: Path, about: str) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.zeros(1)}, path, {"format": FORMAT, "about": about})
    with pytest.raises(SettingsError, match="not a usable model"):
        load_model(path)


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null"])
def test_load_model_refuses_what_is_not_a_regular_file(device: str) -> None:
    with pytest.raises(SettingsError, match=r"safetensors \(not a regular file\)"):
        load_model(device)


def test_shipped_templates_have_one_scale() -> None:
    model = load_model(builtin_model())

    def plateau_px(template: Template) -> float:
        (x0, y0), (x1, y1) = (template.landmarks[name] for name in PLATEAU_MARGINS)
        height, width = template.size
        return math.hypot((x1 - x0) * width, (y1 - y0) * height) / 2

    sizes = plateau_px(model.coarse_template), plateau_px(model.fine_template)
    assert sizes[0] == pytest.approx(sizes[1], rel=0.01)
