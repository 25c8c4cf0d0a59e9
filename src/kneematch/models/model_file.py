"""The model file: both networks, both templates and the training settings, as safetensors."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save
from torch import Tensor

from kneematch import __version__
from kneematch.errors import SettingsError
from kneematch.films.annotation import find_plateau_margins
from kneematch.films.files import write_file
from kneematch.models.cpu_inference import RANGED, Ranges, cpu_network
from kneematch.models.locator import VIEW_WIDTH
from kneematch.models.two_stage import TwoStageNetworks
from kneematch.models.weights import (
    FIRST,
    Weights,
    builtin_file,
    check_finite,
    empty_pose_network,
    network_from_weights,
    read_safetensors,
)
from kneematch.paper.algorithm2 import ENLARGE, PHASES
from kneematch.paper.network import Network
from kneematch.paper.pose import enlarge_pose, pose_from_points
from kneematch.paper.split import HALF_ASPECT
from kneematch.paper.template import Template, Window

FORMAT: Final = "kneematch-model/2"
STEPS: Final = ".steps"  # ends the name of the sizes of 8-bit steps, one per output channel


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A trained model: the weights of both networks and the templates that they find."""

    coarse: Weights
    fine: Weights
    coarse_template: Template
    fine_template: Template
    settings: Mapping[str, Any]  # JSON: how it was trained
    ranges: Mapping[str, Ranges]  # lowest and highest activations, by network

    @property
    def width_ratio(self) -> float:
        """Width of the coarse template over that of the fine one."""
        return self.coarse_template.size[1] / self.fine_template.size[1]

    def networks(
        self, device: str = "cpu", *, located: bool = False, float32: bool = False
    ) -> TwoStageNetworks:
        """Return the networks for inference on a device.

        Args:
            device: where they run.
            located: they are given images of located knees instead of halves. There the plateau's
                margins are in place, so that a template with both needs no coarse network.
            float32: compute in float32 also where 8 bits would be faster.
        """

        def network(phase: str) -> Network:
            weights = getattr(self, phase)
            if device == "cpu" and not float32:
                return cpu_network(weights, self.ranges[phase])
            return network_from_weights(weights).to(device)

        aspect = self.coarse_template.aspect
        landmarks = find_plateau_margins(self.coarse_template.landmarks) if located else None
        if landmarks is None:
            coarse: Network | Tensor = network("coarse")
        else:
            margins = torch.tensor([[-1.0, 0.0], [1.0, 0.0]]) / VIEW_WIDTH
            theta = pose_from_points(margins, torch.tensor(landmarks), aspect, HALF_ASPECT)
            coarse = enlarge_pose(theta, ENLARGE).to(device)
        return TwoStageNetworks(coarse, network("fine"), aspect, self.fine_template.aspect)


def builtin_model() -> Path:
    """Return the path of the model that is installed with kneematch."""
    return builtin_file("synthetic.safetensors")


def save_model(path: str | os.PathLike[str], model: Model) -> None:
    """Write a model."""
    tensors: dict[str, Tensor] = {}
    templates: dict[str, Any] = {}
    for phase in PHASES:
        template: Template = getattr(model, f"{phase}_template")
        if template.local_contrast is None:
            raise ValueError(f"the {phase} template has no local contrast")
        named = {f"{phase}.{name}": tensor for name, tensor in getattr(model, phase).items()}
        named[f"{phase}_template.image"] = template.image
        named[f"{phase}_template.detail"] = template.local_contrast
        tensors |= {name: tensor.cpu().contiguous() for name, tensor in named.items()}
        templates[phase] = {"landmarks": dict(template.landmarks)}
        for name, (_, rows, columns) in (("red", template.red), ("green", template.green)):
            templates[phase][name] = [rows.start, rows.stop, columns.start, columns.stop]
    about = {
        "version": __version__,
        "templates": templates,
        "settings": dict(model.settings),
        "ranges": model.ranges,
    }
    write_file(path, save(tensors, {"format": FORMAT, "about": json.dumps(about)}))


def load_model(path: str | os.PathLike[str]) -> Model:
    """Read a model; its weights are on the CPU.

    Raises:
        SettingsError: the file is missing, is not a kneematch model, or holds unusable values.
    """
    tensors, metadata = read_safetensors(path, FORMAT)
    try:
        about = json.loads(metadata["about"])
        coarse, fine = (_weights(tensors, phase) for phase in PHASES)
        one, two = (_template(tensors, about["templates"][phase], phase) for phase in PHASES)
        ranges = {
            phase: {name: (float(low), float(high)) for name, (low, high) in limits.items()}
            for phase, limits in about["ranges"].items()
        }
        for phase in PHASES:
            if missing := set(RANGED) - set(ranges[phase]):
                raise KeyError(min(missing))
            check_finite(f"{phase}.ranges", torch.tensor([*ranges[phase].values()]))
        return Model(coarse, fine, one, two, dict(about["settings"]), ranges)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as error:
        found = f"no {error}" if isinstance(error, KeyError) else error
        raise SettingsError(f"{path} is not a usable model: {found}.") from error


def _weights(tensors: Mapping[str, Tensor], phase: str) -> Weights:
    """Return the weights of one network in float32, if they are complete and finite.

    Convolutions may be in 8 bits, as in the built-in model, with a step for each output channel.
    """
    weights = {}
    expected = empty_pose_network({FIRST: tensors[f"{phase}.{FIRST}"]})
    for name, like in expected.state_dict(keep_vars=True).items():  # copies would take 0.1 s
        label, tensor = f"{phase}.{name}", tensors[f"{phase}.{name}"]
        if tensor.dtype == torch.int8:
            tensor = tensor * tensors[f"{label}{STEPS}"][:, None, None, None]
        if tensor.shape != like.shape:
            found, shape = tuple(tensor.shape), tuple(like.shape)
            raise ValueError(f"{label} has shape {found} instead of {shape}")
        weights[name] = tensor.float() if tensor.is_floating_point() else tensor
        check_finite(label, weights[name])
    return weights


def _template(tensors: Mapping[str, Tensor], about: Mapping[str, Any], phase: str) -> Template:
    image, detail = (tensors[f"{phase}_template.{name}"].float() for name in ("image", "detail"))
    if image.ndim != 2 or image.shape != detail.shape:
        raise ValueError(f"the {phase} template is not an image")
    red, green = (_window(about[name], image) for name in ("red", "green"))
    landmarks = {name: (float(x), float(y)) for name, (x, y) in about["landmarks"].items()}
    check_finite(f"{phase}_template.landmarks", torch.tensor([*landmarks.values()]))
    return Template(image=image, local_contrast=detail, red=red, green=green, landmarks=landmarks)


def _window(corners: list[int], image: Tensor) -> Window:
    top, bottom, left, right = corners
    height, width = image.shape
    if not (0 <= top < bottom <= height and 0 <= left < right <= width):
        raise ValueError(f"window {corners} leaves its template of {height} x {width} pixels")
    return ..., slice(top, bottom), slice(left, right)
