"""Models on disk: what is saved comes back, and other files are told apart."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from kneematch.errors import SettingsError
from kneematch.films.annotation import PLATEAU_MARGINS
from kneematch.models.cpu_inference import RANGED
from kneematch.models.model_file import FORMAT, Model, builtin_model, load_model, save_model
from kneematch.paper.network import PoseNetwork
from kneematch.paper.template import Template

MOST_BYTES = 20_000_000  # size of the built-in model
CONVOLUTION = "fine.backbone.layer1.0.conv1.weight"
BIAS = "fine.regress.2.bias"


def template(height: int, seed: int) -> Template:
    image, detail = torch.rand(2, height, 60, generator=torch.Generator().manual_seed(seed))
    return Template(
        image=image,
        local_contrast=detail,
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
    ranges = dict.fromkeys(("coarse", "fine"), dict.fromkeys(RANGED, (-0.5, 2.0)))
    return Model(*weights, template(50, 1), template(40, 2), settings, ranges)


def test_load_model_returns_what_was_saved(model: Model, tmp_path: Path) -> None:
    save_model(tmp_path / "model.safetensors", model)
    back = load_model(tmp_path / "model.safetensors")
    assert (back.settings, back.ranges) == (model.settings, model.ranges)
    for before, after in ((model.coarse, back.coarse), (model.fine, back.fine)):
        assert sorted(before) == sorted(after)
        assert all(torch.equal(value, before[name]) for name, value in after.items())
    for phase in ("coarse_template", "fine_template"):
        one, other = getattr(model, phase), getattr(back, phase)
        assert torch.equal(one.image, other.image)
        assert torch.equal(one.local_contrast, other.local_contrast)
        assert (one.red, one.green, one.landmarks) == (other.red, other.green, other.landmarks)


def test_builtin_model_is_small_and_has_templates_of_one_scale() -> None:
    assert builtin_model().stat().st_size <= MOST_BYTES
    model, sizes = load_model(builtin_model()), []
    for template in (model.coarse_template, model.fine_template):
        (x0, y0), (x1, y1) = (template.landmarks[name] for name in PLATEAU_MARGINS)
        height, width = template.size
        sizes.append(math.hypot((x1 - x0) * width, (y1 - y0) * height) / 2)
    assert sizes[0] == pytest.approx(sizes[1], rel=0.01)


NO_MODEL = "not a usable model"


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (None, "instead of 'kneematch-model/2'"),
        ({"format": "kneematch-model/1"}, "instead of 'kneematch-model/2'"),
        *(
            ({"format": FORMAT, "about": about}, NO_MODEL)
            for about in ("{", "null", '{"templates": 1}', "[" * 10**5)
        ),
    ],
)
def test_load_model_refuses_other_formats_and_malformed_metadata(
    tmp_path: Path, metadata: dict | None, message: str
) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "model.safetensors", metadata)
    with pytest.raises(SettingsError, match=message):
        load_model(tmp_path / "model.safetensors")


def set_steps(tensors: dict, steps: torch.Tensor) -> None:
    """Store the weights of one convolution in 8 bits."""
    tensors[CONVOLUTION] = torch.ones(tensors[CONVOLUTION].shape, dtype=torch.int8)
    tensors[f"{CONVOLUTION}.steps"] = steps


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda t, *_: t[CONVOLUTION].view(-1)[7].fill_(torch.nan), f"{CONVOLUTION} holds NaN"),
        (lambda t, *_: set_steps(t, torch.ones(64, 1)), f"{CONVOLUTION} has shape"),
        (lambda t, *_: t.pop("coarse.backbone.bn1.bias"), "no 'coarse.backbone.bn1.bias'"),
        (lambda t, *_: t.update({BIAS: torch.zeros(7)}), rf"{BIAS} has shape \(7,\) instead of"),
        (lambda _, fine, __: fine.update(red=[0, 5, 4, 10**5]), "100000] leaves its template"),
        (lambda _, fine, __: fine["landmarks"].update(rim=[math.nan, 0]), "landmarks holds NaN"),
        (lambda _, __, ranges: ranges.pop("layer2.0.bn1"), "no 'layer2.0.bn1'"),
        (lambda _, __, ranges: ranges.update({"layer2.0.bn1": [0, math.inf]}), "ranges holds NaN"),
    ],
)
def test_load_model_refuses_unusable_values(
    model: Model, tmp_path: Path, change: Callable[..., None], found: str
) -> None:
    path = tmp_path / "model.safetensors"
    save_model(path, model)
    with safe_open(path, framework="pt") as file:
        names, metadata = file.keys(), file.metadata()
        tensors = {name: file.get_tensor(name) for name in names}
    about = json.loads(metadata["about"])
    change(tensors, about["templates"]["fine"], about["ranges"]["fine"])
    save_file(tensors, path, {**metadata, "about": json.dumps(about)})
    with pytest.raises(SettingsError, match=f"is {NO_MODEL}: .*{found}") as caught:
        load_model(path)
    assert "\n" not in str(caught.value)
