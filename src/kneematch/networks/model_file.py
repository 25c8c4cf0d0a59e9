"""A model: both networks, both templates and how they were made, in one file without pickle."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from kneematch import __version__
from kneematch.errors import SettingsError
from kneematch.io.atomic import write_aside
from kneematch.matching.template import Template, Window
from kneematch.networks.cpu_inference import cpu_network
from kneematch.networks.pose_network import network_of
from kneematch.networks.two_stage import TwoPhases

FORMAT: Final = "kneematch-model/1"
SHIPPED: Final = "synthetic.safetensors"  # beside this file
PHASES: Final = ("coarse", "fine")

Weights = Mapping[str, Tensor]  # of a PoseNetwork, under its names


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """What `kneematch train` makes."""

    coarse: Weights
    fine: Weights
    coarse_template: Template
    fine_template: Template
    settings: Mapping[str, Any] = field(default_factory=dict)  # JSON: how it was trained

    def networks(self, device: str = "cpu") -> TwoPhases:
        """What finds the fine template, as fast as a device allows."""
        both = self.coarse, self.fine
        coarse, fine = (
            cpu_network(weights) if device == "cpu" else network_of(weights).to(device)
            for weights in both
        )
        return TwoPhases(coarse, fine, self.coarse_template.aspect, self.fine_template.aspect)


def shipped_model() -> Path:
    """The file of the model in the box."""
    return Path(str(files("kneematch.networks") / SHIPPED))


def save_model(
    path: str | os.PathLike[str], model: Model, *, dtype: torch.dtype = torch.float32
) -> None:
    """Write a model; float16 halves the file and moves no margin."""
    tensors: dict[str, Tensor] = {}
    templates = {}
    for phase in PHASES:
        for name, tensor in getattr(model, phase).items():
            kept = tensor.to(dtype) if tensor.is_floating_point() else tensor
            tensors[f"{phase}.{name}"] = kept.cpu().contiguous()
        template: Template = getattr(model, f"{phase}_template")
        tensors[f"{phase}_template.image"] = template.image.to("cpu", dtype).contiguous()
        tensors[f"{phase}_template.detail"] = template.fine_structure.to("cpu", dtype).contiguous()
        templates[phase] = {
            "red": _corners(template.red),
            "green": _corners(template.green),
            "landmarks": dict(template.landmarks),
        }
    about = {"version": __version__, "templates": templates, "settings": dict(model.settings)}
    with write_aside(path) as aside:
        aside.write_bytes(save(tensors, {"format": FORMAT, "about": json.dumps(about)}))


def load_model(path: str | os.PathLike[str]) -> Model:
    """Read a model; its weights are in float32 on the CPU.

    Raises:
        SettingsError: it is not there, or not a model of kneematch.
    """
    tensors, metadata = _read(path)
    if metadata.get("format") != FORMAT:
        raise SettingsError(
            f"{path}: not a model of kneematch (format {metadata.get('format')!r}); expected "
            f"{FORMAT!r}; give a file that 'kneematch train' has written"
        )
    about = json.loads(metadata["about"])
    coarse, fine = (_part(tensors, phase) for phase in PHASES)
    return Model(
        coarse,
        fine,
        _template(tensors, about, "coarse"),
        _template(tensors, about, "fine"),
        about["settings"],
    )


def _read(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return tensors, file.metadata() or {}
    except FileNotFoundError as error:
        raise SettingsError(
            f"{path}: no such file; expected a model; run 'kneematch train' or leave --model out"
        ) from error
    except (OSError, SafetensorError) as error:
        raise SettingsError(
            f"{path}: cannot be read as safetensors ({error}); expected a model of kneematch; "
            "copy it again"
        ) from error


def _part(tensors: Mapping[str, Tensor], phase: str) -> Weights:
    start = f"{phase}."
    return {
        name.removeprefix(start): tensor.float() if tensor.is_floating_point() else tensor
        for name, tensor in tensors.items()
        if name.startswith(start)
    }


def _template(tensors: Mapping[str, Tensor], about: Mapping[str, Any], phase: str) -> Template:
    told = about["templates"][phase]
    return Template(
        tensors[f"{phase}_template.image"].float(),
        tensors[f"{phase}_template.detail"].float(),
        red=_window(told["red"]),
        green=_window(told["green"]),
        landmarks={name: (x, y) for name, (x, y) in told["landmarks"].items()},
    )


def _corners(window: Window) -> list[int]:
    _, rows, columns = window
    return [rows.start, rows.stop, columns.start, columns.stop]


def _window(corners: list[int]) -> Window:
    top, bottom, left, right = corners
    return ..., slice(top, bottom), slice(left, right)
